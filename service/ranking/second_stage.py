"""The second stage: the best of the first stage are scored by what is stored of them, without reading their texts.

Of a pool these are the best `retrieve_k`; of candidates that were sent, all. If there is no time for it, or it fails,
the answer is that of the first stage, and says so.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import StoreUnavailable
from polyrank.index_builder.vectors.late import each_of
from polyrank.model.representations import Representations
from polyrank.service.errors import DeadlineExceeded, InferenceFailed, TimeTooShort
from polyrank.service.live.models import LateScorer
from polyrank.service.observe.labels import Degraded
from polyrank.service.ranking.forwards import AT_ONCE, CountedContext, Forwards
from polyrank.service.ranking.parts import Gather
from polyrank.service.ranking.stages import ANSWER_SECONDS, Threads, Timings, until

# Of each first-stage vector, as bytes, the first candidate that has it: its position, and its rows.
_Seen = dict[bytes, tuple[int, NDArray[Any]]]


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
        end, scores, cached = deadline - ANSWER_SECONDS, np.empty(count, np.float32), True
        seen = _Seen()
        try:
            async with until(end):
                for start in range(0, count, AT_ONCE):
                    positions = np.arange(start, min(start + AT_ONCE, count))
                    fetch = partial(timings.measure, "fetch", partial(_fetched, gather, positions, seen))
                    some, available, alike = await self._candidates.run(fetch, timings)
                    cached = cached and available
                    if len(some.first):
                        new = positions[alike == positions]
                        scores[new] = await self._forwards.late(ranker, context, some, count - start, end, timings)
                    scores[positions] = scores[alike]
        except (DeadlineExceeded, TimeTooShort):
            return LateScores(None, ["late_skipped_deadline"])
        except InferenceFailed:
            return LateScores(None, ["late_failed"])
        except StoreUnavailable:
            return LateScores(None, ["late_failed", "cache_unavailable"])
        return LateScores(scores, [] if cached else ["cache_unavailable"])


def _fetched(
    gather: Gather, positions: NDArray[np.int64], seen: _Seen
) -> tuple[Representations, bool, NDArray[np.int64]]:
    """Fetch candidates at positions (N,), each of equal ones once: scored in other batches they would differ a little.

    Also returns whether the caches answered, and for each the position of the first that equals it, (N,).
    """
    some, available = gather(positions)
    assert some.late is not None, "the model has a second stage"
    assert some.counts is not None, "so it has counts"
    alike = []
    for at, first, rows in zip(positions.tolist(), some.first, each_of(some.late, some.counts), strict=True):
        before, known = seen.setdefault(first.tobytes(), (at, rows))
        alike.append(before if np.array_equal(known, rows) else at)
    found = np.array(alike, np.int64)
    is_new = found == positions
    return some if is_new.all() else some.take(np.flatnonzero(is_new)), available, found
