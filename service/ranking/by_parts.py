"""Ranking a pool whose parts are held by shards: these search, and this process encodes and has the last word."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.unmatched import notes
from polyrank.model.representations import Representations
from polyrank.model.text.assembly import Conversation
from polyrank.service.errors import TooManyForExact
from polyrank.service.observe.labels import Degraded
from polyrank.service.ranking.forwards import CountedContext
from polyrank.service.ranking.parts import PoolFound, SetServing, most_of, shards_missing
from polyrank.service.ranking.prices import most_exact
from polyrank.service.ranking.retrieval import BestRows, Found, is_certain, ranked_of
from polyrank.service.ranking.second_stage import LateScores, SecondStage, deeper
from polyrank.service.ranking.stages import Timings
from polyrank.service.ranking.values import Ranked, RankRequest


async def rank(
    serving: SetServing, request: RankRequest, context: CountedContext, second_stage: SecondStage, timings: Timings
) -> Ranked:
    """Search the parts once, and place what they found by the second stage if the model has one.

    Raises:
        DeadlineExceeded: no part answered in time.
        ShardsMissing: too many parts are missing.
        TooManyForExact: every candidate was to be scored by the second stage, and these are too many.
    """
    has_late = serving.ranker.late_rows is not None
    searched = deeper(serving.ranker, request) if has_late else request
    with timings.timed("retrieve"):
        found = await serving.parts.search(serving, _for_shards(serving, searched), context.encoding.codes)
    search = _Search(serving, request, found)
    if has_late:
        best, exact = await search.by_second_stage(context, second_stage, timings)
    else:
        best = search.best
        exact = is_certain(best.scores, found.bound, request.depth)
    ranked = await search.placed(best, exact, timings)
    if request.filter is None or found.looked is None or found.missing:  # a missing part may have what is asked for
        return ranked
    return replace(ranked, notes=notes(request.filter, found.looked))


def _for_shards(serving: SetServing, request: RankRequest) -> RankRequest:
    """Return the same search without what shards need not know: they read what was said only where words count."""
    said = request.conversation if serving.generation.words is not None else Conversation(())
    asked = replace(request, conversation=said, candidates=None, score_threshold=None)
    return replace(asked, top_k=request.depth, top_n=None, grouping=None)


class _Search:
    """What was found for one request; rows are places in the pool here."""

    def __init__(self, serving: SetServing, request: RankRequest, found: PoolFound) -> None:
        self._serving, self._request = serving, request
        self._places = dict(zip(found.order.tolist(), found.places.tolist(), strict=True))
        self._missing = found.missing
        self._sent = (
            None if found.candidates is None else dict(zip(found.order.tolist(), found.candidates, strict=True))
        )
        self._degraded: list[Degraded] = ["retrieve_k_reduced"] if found.reduced else []
        among = Found(found.order, found.scores, found.looked_at, found.bound, found.plan)
        self.best = BestRows(found.order, found.scores, found.lexical, among, cache_available=True)

    async def by_second_stage(
        self, context: CountedContext, second_stage: SecondStage, timings: Timings
    ) -> tuple[BestRows, bool]:
        """Place them by the scores of the second stage; also returns whether every candidate had one."""
        serving, request, best = self._serving, self._request, self.best
        if request.exact and not best.is_all:
            raise TooManyForExact(best.found.looked_at, most_exact(serving.ranker, request.conversation))
        with timings.timed("fetch"):
            stored = await serving.parts.fetch(serving, self._at(best.rows), True, most_of(request.deadline))
        is_all = best.is_all and len(stored.positions) == len(best.rows)
        best = self._only(best, stored.positions)
        late = LateScores(np.empty(0, np.float32), [])
        if stored.made is not None:
            gather, end = partial(_taken, stored.made), most_of(request.deadline)
            late = await second_stage.scores(serving.ranker, context, len(best.rows), gather, end, timings)
        self._degraded += late.degraded
        if late.scores is not None:
            words = serving.generation.words
            best = best.placed_by(late.scores, 1.0 if words is None else words.evidence.late_weight)
        return best, late.scores is not None and is_all

    async def placed(self, best: BestRows, exact: bool, timings: Timings) -> Ranked:
        """Fetch the candidates of the best rows, unless they came with what was found."""
        best = best.first(self._request.depth)
        with timings.timed("fetch"):
            if self._sent is not None:
                candidates = [self._sent[row] for row in best.rows.tolist()]
            else:
                at, deadline = self._at(best.rows), self._request.deadline
                positions, candidates, _ = await self._serving.parts.fetch(self._serving, at, False, deadline)
                best = self._only(best, positions)
        ranked = ranked_of(best, candidates, exact).without(*self._degraded)
        return with_missing(self._serving, ranked, self._missing)

    def _at(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([self._places[each] for each in order.tolist()], np.int64).reshape(-1, 2)

    def _only(self, best: BestRows, positions: NDArray[np.int64]) -> BestRows:
        """Return those that could be fetched; the parts of the others count as missing from now on."""
        if len(positions) == len(best.rows):
            return best
        self._missing |= set(np.delete(self._at(best.rows)[:, 0], positions).tolist())
        return best.at(positions)


def with_missing(serving: SetServing, ranked: Ranked, missing: Collection[int]) -> Ranked:
    """Return a ranking that says which share of the pool was searched; raises ShardsMissing if that is too little."""
    if not missing:
        return ranked
    searched = serving.parts.searched(serving, missing)
    return replace(ranked.without("shards_missing"), exact=False, searched=searched)


def require_all(serving: SetServing, missing: Collection[int]) -> None:
    """Raise ShardsMissing if a part is missing."""
    if missing:
        raise shards_missing(serving, missing)


def _taken(made: Representations, positions: NDArray[np.int64]) -> tuple[Representations, bool]:
    return made.take(positions), True


async def stored(serving: SetServing, candidate_id: str, deadline: float) -> Sequence[Candidate]:
    """Return the candidate with an id, if there is one; raises ShardsMissing where its part does not answer."""
    conversation: Conversation | None = None
    return (await serving.parts.known(serving, [candidate_id], conversation, deadline)).candidates
