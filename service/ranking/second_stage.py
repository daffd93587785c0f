"""The second stage: the best of the first stage are scored by what is stored of them, without reading their texts.

Of a pool these are the best `retrieve_k`; of candidates that were sent, all. If there is no time for it, or it fails,
the answer is that of the first stage, and says so.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import StoreUnavailable
from polyrank.model.representations import Representations
from polyrank.service.errors import DeadlineExceeded, InferenceFailed, TimeTooShort, TooManyForExact
from polyrank.service.live.models import LateScorer
from polyrank.service.live.serving import Serving
from polyrank.service.observe.labels import Degraded
from polyrank.service.ranking import retrieval
from polyrank.service.ranking.admission import most_exact
from polyrank.service.ranking.forwards import AT_ONCE, CountedContext, Forwards
from polyrank.service.ranking.retrieval import BestRows
from polyrank.service.ranking.stages import ANSWER_SECONDS, Threads, Timings, until
from polyrank.service.ranking.values import Ranked, RankRequest

# Fetches what is stored of candidates by their positions; also returns whether the caches answered.
Gather = Callable[[NDArray[np.int64]], tuple[Representations, bool]]


class LateScores(NamedTuple):
    """Scores (N,), None where there are none, and what the answer does without."""

    scores: NDArray[np.float32] | None
    degraded: list[Degraded]


class SecondStage:
    """Scores stored candidates: fetched on the threads "candidates", scored on that of the models."""

    def __init__(self, forwards: Forwards, candidates: Threads) -> None:
        self._forwards, self._candidates = forwards, candidates

    async def scores(
        self, ranker: LateScorer, context: CountedContext, count: int, gather: Gather, deadline: float, timings: Timings
    ) -> LateScores:
        """Score so many candidates, part by part."""
        end, parts, cached = deadline - ANSWER_SECONDS, [np.empty(0, np.float32)], True
        try:
            async with until(end):
                for start in range(0, count, AT_ONCE):
                    positions = np.arange(start, min(start + AT_ONCE, count))
                    fetch = partial(timings.measure, "fetch", partial(gather, positions))
                    some, available = await self._candidates.run(fetch, timings)
                    cached = cached and available
                    parts.append(await self._forwards.late(ranker, context, some, count - start, end, timings))
        except (DeadlineExceeded, TimeTooShort):
            return LateScores(None, ["late_skipped_deadline"])
        except InferenceFailed:
            return LateScores(None, ["late_failed"])
        except StoreUnavailable:
            return LateScores(None, ["late_failed", "cache_unavailable"])
        return LateScores(np.concatenate(parts), [] if cached else ["cache_unavailable"])

    async def rank(
        self, serving: Serving, request: RankRequest, context: CountedContext, best: BestRows, timings: Timings
    ) -> Ranked:
        """Place the best rows of the first stage by their second stage's scores.

        Raises:
            TooManyForExact: every candidate was to be scored, and these are too many.
        """
        if request.exact and not best.is_all:
            raise TooManyForExact(best.found.looked_at, most_exact(serving.ranker, request.conversation))
        gather = partial(_stored, serving, request, best)
        late = await self.scores(serving.ranker, context, len(best.rows), gather, request.deadline, timings)
        if late.scores is not None:
            words = serving.generation.words
            best = best.placed_by(late.scores, 1.0 if words is None else words.evidence.late_weight)
        exact = late.scores is not None and best.is_all
        place = partial(retrieval.placed, serving, best.first(request.depth), exact, timings)
        ranked = await self._candidates.run(place, timings)
        return ranked.without(*(reason for reason in late.degraded if reason not in ranked.degraded))


def deeper(ranker: LateScorer, request: RankRequest) -> RankRequest:
    """Return the search that finds what the second stage scores."""
    wanted = most_exact(ranker, request.conversation) if request.exact else request.retrieve_k
    return replace(request, top_k=max(wanted, request.depth), top_n=None, grouping=None)


def _stored(
    serving: Serving, request: RankRequest, best: BestRows, positions: NDArray[np.int64]
) -> tuple[Representations, bool]:
    return serving.representations(best.rows[positions], request.budget)
