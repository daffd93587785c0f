"""A part in this process: it is searched and read on the threads of a desk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.generation.texts import KnownTexts
from polyrank.index_builder.scale.membership import Counts
from polyrank.index_builder.scale.slots import SLOTS, Slots
from polyrank.index_builder.store.pages import Page, page
from polyrank.index_builder.store.unmatched import Looked, looking
from polyrank.index_builder.store.update_log import Update
from polyrank.model.representations import Representations
from polyrank.model.text.reading import Steps
from polyrank.service.caching.redis_server import Budget
from polyrank.service.live.serving import Searchable
from polyrank.service.ranking.desk import Desk
from polyrank.service.ranking.parts import At, EncodeContext, PartFound, PoolQuery, Stock, Wanted
from polyrank.service.ranking.retrieval import Found, PoolSearch, RetrievalBudget, best_of, read_words
from polyrank.service.ranking.stages import Timings, side_by_side, until
from polyrank.service.ranking.values import RankRequest
from polyrank.service.ranking.words import pool_words

Rows = NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LocalPart(Searchable):
    """See `Part`. A whole pool is one part with all slots."""

    @property
    def slots(self) -> Slots:
        """Every slot."""
        return Slots(0, SLOTS)

    @property
    def counts(self) -> Counts:
        """How many candidates there are."""
        snapshot = self.snapshot
        return Counts(snapshot.count, len(snapshot.added), len(snapshot.removed))

    @property
    def is_here(self) -> bool:
        """It is."""
        return True

    @property
    def has_matrix(self) -> bool:
        """Whether the vectors, and the rows of a second stage, are on the disk."""
        embeddings = self.generation.embeddings
        return embeddings.has_matrix and (embeddings.late is None or embeddings.late.has_rows)

    def updated(self, updates: Sequence[Update]) -> "LocalPart":
        """See `Part.updated`."""
        return replace(self, snapshot=self.snapshot.updated(updates))

    def missing(self, ids: Sequence[str]) -> list[str]:
        """See `Part.missing`."""
        rows = self.snapshot.rows(ids).tolist()
        return [candidate_id for candidate_id, row in zip(ids, rows, strict=True) if row < 0]

    def texts_here(self, texts: Sequence[str]) -> KnownTexts | None:
        """See `Part.texts_here`."""
        return self.snapshot.stored_texts(texts)

    async def search(self, desk: Desk, query: PoolQuery, encode: EncodeContext, timings: Timings) -> PartFound:
        """Read fields and words while the context is encoded, then search."""
        request = query.request
        if request.filter is not None:  # part by part, and not on the search thread
            await desk.in_steps(self.snapshot.reading(request.filter), "retrieve", timings)
        counts_words = self.generation.words is not None
        async with desk.room_for_words(counts_words, timings):
            if counts_words:
                read = partial(desk.measured, "retrieve", partial(read_words, self, request))
                context, words = await side_by_side(encode, read, timings)
            else:
                context, words = await encode(timings), None
            affordable, before = desk.retrieval.affordable(self, request), timings.seconds["retrieve"]
            search = PoolSearch(self, query.deepened(affordable), context.encoding.codes, timings, words)
            sends = query.with_candidates and query.most_exact is None
            found = await desk.search(search, partial(part_found, with_candidates=sends))
        return learnt(desk.retrieval, affordable, found, request, timings.seconds["retrieve"] - before)

    async def read(self, desk: Desk, at: At, wanted: Wanted, timings: Timings) -> Stock:
        """See `Part.read`."""
        work = partial(read_in, self, wanted, at.budget, timings)
        if wanted.rows is not None:
            return work()
        counts_words = wanted.conversation is not None and self.generation.words is not None
        async with desk.room_for_words(counts_words, timings):
            return await desk.candidates.run(work, timings)

    async def page(self, desk: Desk, at: At, first: int, limit: int, filter_: Mapping[str, Any] | None) -> Page:
        """See `Part.page`."""
        return await self._read(desk, at, page(self.snapshot, first, limit, filter_))

    async def looked(self, desk: Desk, at: At, filter_: Mapping[str, Any]) -> Looked:
        """See `Part.looked`."""
        return await self._read(desk, at, looking(self.snapshot, filter_))

    async def _read(self, desk: Desk, at: At, steps: Steps[T]) -> T:
        async with until(at.deadline):
            return await desk.in_steps(steps, "fetch", Timings())


def part_found(search: PoolSearch, among: Found, with_candidates: bool) -> PartFound:
    """Score the rows that were found in a part, unless a scan has, and fetch the best if that is asked for."""
    best, part = best_of(search, among), search.serving
    candidates: Sequence[Any] = ()
    if with_candidates:
        with search.timings.timed("fetch"):
            candidates = part.snapshot.candidates(best.rows)
    return PartFound(
        order=part.order(best.rows),
        rows=best.rows,
        scores=best.scores,
        lexical=best.lexical,
        looked_at=among.looked_at,
        bound=among.bound,
        plan=among.plan,
        reduced=False,
        candidates=candidates,
        cache_available=best.cache_available,
    )


def learnt(
    budget: RetrievalBudget, affordable: RankRequest, found: PartFound, asked: RankRequest, seconds: float
) -> PartFound:
    """Let a budget learn what a search has taken, and say in what was found whether it was for fewer candidates."""
    if found.plan not in ("index", "selector"):
        return found
    budget.learn(affordable, seconds)
    return replace(found, reduced=affordable.retrieve_k < asked.retrieve_k)


def read_in(part: Searchable, wanted: Wanted, budget: Budget, timings: Timings) -> Stock:
    """Look candidates of a part up; what is stored of them is read later, within a request's budget for Redis."""
    values = None
    if wanted.rows is not None:
        positions, rows = np.arange(len(wanted.rows)), wanted.rows
    else:
        with timings.timed("retrieve"):
            words = None if wanted.conversation is None else pool_words(part, wanted.conversation)
        with timings.timed("fetch"):
            found = part.snapshot.rows_of_texts(wanted.texts) if wanted.texts else part.snapshot.rows(wanted.ids)
            positions = np.flatnonzero(found >= 0)
            rows = found[positions]
            values = None if words is None else words.of(rows)

    def first_vectors(asked: Rows) -> tuple[Representations, bool]:
        vectors, available = part.gather(rows[asked], budget)
        return Representations(vectors), available

    return Stock(
        positions=positions,
        words=values,
        longest=part.longest,
        candidates=lambda asked: part.snapshot.candidates(rows[asked]),
        vectors=lambda asked: part.representations(rows[asked], budget),
        first_vectors=first_vectors,
    )
