"""What a shard does: it holds parts of sets, and finds the best candidates in them. Knows no cluster.

A shard keeps no model: contexts come encoded. It can hold the same part of two sets, so another set is prepared beside
the one that is served.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from polyrank.index_builder.errors import GenerationNotFound
from polyrank.index_builder.scale.sets import SetStore
from polyrank.index_builder.store.generation import Generation
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.model.errors import RankingError, Shortage, VectorsDamaged, shortage_in
from polyrank.model.representations import Representations
from polyrank.model.search.scan import Query, prepare
from polyrank.service.caching.vectors import MatrixVectors
from polyrank.service.live.serving import Searchable, SearchStatus, runs_here
from polyrank.service.ranking import retrieval
from polyrank.service.ranking.retrieval import PoolSearch, RetrievalBudget
from polyrank.service.ranking.stages import Timings
from polyrank.service.ranking.words import pool_words
from polyrank.service.scale.calls import (
    LATE,
    SHORT,
    Holding,
    PartFound,
    PartQuery,
    PartStored,
    Reply,
    Rows,
    Wanted,
)


class _Gone(Exception):  # what happened, not what went wrong
    """The shard does not hold the part of the set."""


@dataclass(frozen=True, slots=True)
class _Part(Searchable):
    """A part that is held, ready to be searched."""

    order: Rows


class Body:
    """The state of one shard, and its methods; `call` runs one by its name. Several threads may call it.

    Args:
        root: the directory of the store, as this machine sees it.
        threads: of FAISS and torch; None leaves it to them.
    """

    def __init__(self, root: str, threads: int | None = None) -> None:
        self._root, self._threads = Path(root), threads
        self._held: dict[Holding, _Part] = {}
        self._preparing, self._changing = threading.Lock(), threading.Lock()
        self._budget = RetrievalBudget()
        self._methods: dict[str, Callable[..., Any]] = {
            each.__name__: each for each in (self.prepare, self.drop, self.held, self.search, self.stored)
        }

    def call(self, method: str, arguments: tuple[Any, ...]) -> Reply:
        """Call a method, and tell what became of it."""
        try:
            return Reply(self._methods[method](*arguments))
        except _Gone:
            return Reply(None, "the shard does not hold this part of the set", "gone")
        except VectorsDamaged as error:
            return Reply(None, str(error), "damaged")
        except (RankingError, OSError, MemoryError) as error:
            return Reply(None, str(error) or type(error).__name__, "refused" if shortage_in(error) is None else SHORT)

    def prepare(self, holding: Holding) -> SearchStatus:
        """Open a part and check its every byte, then search it once, unless it is held already.

        Returns how it finds candidates.

        Raises:
            GenerationNotFound: there is no such set, or it has no such part.
            GenerationCorrupt: the set or the part is damaged.
            ModelError: it cannot be searched here.
            Shortage: this machine lacks something for that, or the store.
        """
        with self._preparing:
            part = self._held.get(holding)
            if part is None:
                part = self._opened(holding)
                with self._changing:
                    self._held = {**self._held, holding: part}
            return part.search_status

    def _opened(self, holding: Holding) -> _Part:
        if not self._root.is_dir():
            raise Shortage(f"there is no {self._root} on the shard's machine; mount the store there")
        store = SetStore(self._root)
        named = next((each for each in store.read(holding.set_id).parts if each.name == holding.part), None)
        if named is None:
            raise GenerationNotFound(f"set {holding.set_id} has no part {holding.part}")
        generation = store.open(named)
        try:
            part = self._searchable(generation)
            codes = np.asarray(generation.embeddings.gather(np.zeros(1, np.int64)), np.float32)
            part.scan.top_k([Query(codes, 1)])
        except BaseException:
            generation.close()
            raise
        return part

    def _searchable(self, generation: Generation) -> _Part:
        assert generation.order is not None, "`SetStore.open` refuses a part without it"
        vectors = MatrixVectors(generation, lambda *_: None)
        with runs_here(generation.manifest):
            scan = prepare(vectors.matrix(), "cpu", with_bytes=generation.index is None)
        return _Part(Snapshot.of(generation), vectors, scan, generation.order)

    def drop(self, set_id: str) -> None:
        """Let go of the parts of a set; searches in progress end on them."""
        with self._changing:
            self._held = {holding: part for holding, part in self._held.items() if holding.set_id != set_id}

    def held(self) -> list[Holding]:
        """What is ready to be searched."""
        return list(self._held)

    def search(self, holding: Holding, queries: Sequence[PartQuery], left_s: Sequence[float]) -> list[PartFound]:
        """Find the best candidates of a part for each query, all in one pass if the part is scanned.

        Args:
            holding: the part.
            queries: what to find.
            left_s: how much time each has left. Where an index is searched, it bounds how many candidates it finds.
        """
        part, now = self._part(holding), time.monotonic()
        asked = [
            PartQuery(replace(query.request, deadline=now + left), query.codes)
            for query, left in zip(queries, left_s, strict=True)
        ]
        # An index is searched for one after the other anyway, and each has the time that those before it have left.
        passes = [asked] if part.scans_all else [[query] for query in asked]
        return [found for together in passes for found in self._found(part, together)]

    def _found(self, part: _Part, queries: Sequence[PartQuery]) -> Iterator[PartFound]:
        """Find the best for queries, whose deadlines are on this machine's clock."""
        searches = []
        for query in queries:
            affordable = self._budget.affordable(part, query.request)
            read = retrieval.read_words(part, affordable)
            searches.append(PoolSearch(part, affordable, query.codes, Timings(), read))
        for search, query, among in zip(searches, queries, retrieval.search(searches, self._threads), strict=True):
            best = retrieval.best_of(search, among)
            if among.plan in ("index", "selector"):
                self._budget.learn(search.request, search.timings.total())
            yield PartFound(
                order=part.order[best.rows],
                rows=best.rows,
                scores=best.scores,
                lexical=best.lexical,
                looked_at=among.looked_at,
                bound=among.bound,
                plan=among.plan,
                reduced=search.request.retrieve_k < query.request.retrieve_k,
            )

    def stored(self, holding: Holding, wanted: Wanted) -> PartStored:
        """Return what is stored of candidates, by their rows or their ids."""
        part = self._part(holding)
        if wanted.rows is None:
            found = part.snapshot.rows(wanted.ids)
            positions = np.flatnonzero(found >= 0)
            rows = found[positions]
        else:
            rows, positions = wanted.rows, np.arange(len(wanted.rows))
        words = None
        if wanted.conversation is not None and (pool := pool_words(part, wanted.conversation)) is not None:
            words = pool.of(rows)
        made: Representations | None = part.representations(rows)[0] if wanted.with_vectors else None
        candidates = part.snapshot.candidates(rows) if wanted.with_candidates else []
        return PartStored(positions, candidates, made, words, part.longest)

    def _part(self, holding: Holding) -> _Part:
        part = self._held.get(holding)
        if part is None:
            raise _Gone
        return part


class Desk:
    """Calls the methods of a body from an event loop: searches one after the other, everything else beside them.

    A part that is prepared for long holds up no question of what is held.
    """

    def __init__(self, body: Body) -> None:
        self._body = body
        self._threads = {
            name: ThreadPoolExecutor(1, thread_name_prefix=name) for name in ("search", "stored", "prepare", "held")
        }

    async def ask(self, method: str, arguments: tuple[Any, ...], left_s: float) -> Reply:
        """Call a method when its turn comes, unless the time left is over by then."""
        arrived = time.monotonic()

        def work() -> Reply:
            if time.monotonic() - arrived > left_s:
                return Reply(None, "the time was over before the shard came to it", LATE)
            return self._body.call(method, arguments)

        threads = self._threads.get(method, self._threads["held"])
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    def close(self) -> None:
        """Finish what has begun, drop what waits."""
        for threads in self._threads.values():
            threads.shutdown(wait=True, cancel_futures=True)
