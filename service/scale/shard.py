"""What a shard does: it holds parts of generations, and finds the best candidates in them. Knows no cluster.

A shard keeps no model: contexts come encoded. It can hold the same part of two generations, so another one is prepared
beside the one that is served.

Every call says at which revision the part is to be searched. A shard that does not know of so late an update reads the
log first. At an earlier revision it leaves out what came later. So an answer does not depend on which replica gave it.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from polyrank.index_builder.errors import GenerationNotFound
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.pages import Page, page
from polyrank.index_builder.store.unmatched import Looked, looking
from polyrank.index_builder.store.update_log import UpdateLog
from polyrank.model.errors import RankingError, Shortage, VectorsDamaged, shortage_in
from polyrank.model.search.scan import faster
from polyrank.model.search.scan.plain import Query
from polyrank.model.text.reading import finish
from polyrank.service.caching.vectors import MatrixVectors
from polyrank.service.live.searchable import Opener, Searchable, SearchStatus
from polyrank.service.ranking import retrieval
from polyrank.service.ranking.parts import Wanted
from polyrank.service.ranking.retrieval import PoolSearch, affordable, learnt, part_found, read_in
from polyrank.service.ranking.values import Hits
from polyrank.service.scale.calls import LATE, SHORT, Holding, PartQuery, PartStored, Reply
from polyrank.service.scheduling.admission import Rate
from polyrank.service.scheduling.stages import Journey


class _Gone(Exception):  # what happened, not what went wrong
    """The shard does not hold the part of the generation."""


class _Behind(Exception):  # likewise
    """The log does not reach the revision that was asked for."""


class _PartCopy:
    """A part that is held, and the log of its generation. Several threads may call its methods."""

    def __init__(self, part: Searchable, log: UpdateLog) -> None:
        self._latest, self._log = part, log
        self._reading = threading.Lock()

    @property
    def search_status(self) -> SearchStatus:
        return self._latest.search_status

    def at(self, revision: int) -> Searchable:
        """Return the part at a revision of its generation. Raises _Behind if the log does not reach it."""
        if self._latest.snapshot.revision < revision:
            self.catch_up()
        latest = self._latest
        if latest.snapshot.revision < revision:
            raise _Behind(
                f"the shard does not see update {revision} in the store, only {latest.snapshot.revision}; check that "
                "its machine mounts the same store, and for how long the mount keeps what it has read"
            )
        return replace(latest, snapshot=latest.snapshot.at(revision))

    def catch_up(self) -> None:
        """Read the updates that were written since; raises GenerationCorrupt where the log is damaged."""
        with self._reading:
            updates = list(self._log.read())
            try:
                snapshot = self._latest.snapshot.updated(updates)
            except BaseException:
                self._log.unread()
                raise
            self._latest = replace(self._latest, snapshot=snapshot)

    def scan_faster(self) -> None:
        """Take up a scan that a timing had refused, once another timing does not; for one thread at a time."""
        scan = faster(self._latest.scan, self._latest.vectors.matrix())
        if scan is not self._latest.scan:
            with self._reading:
                self._latest = replace(self._latest, scan=scan)


class Body:
    """The state of one shard, and its methods; `call` runs one by its name. Several threads may call it.

    `threads`: of FAISS and torch; None leaves it to them.
    """

    def __init__(self, root: str, threads: int | None = None) -> None:
        self._root, self._threads = Path(root), threads
        self._copies: dict[Holding, _PartCopy] = {}
        self._preparing, self._changing = threading.Lock(), threading.Lock()
        self._rate = Rate()  # of searching an index
        self._methods: dict[str, Callable[..., Any]] = {
            each.__name__: each
            for each in (self.prepare, self.drop, self.held, self.search, self.stored, self.page, self.looked)
        }

    def call(self, method: str, arguments: tuple[Any, ...]) -> Reply:
        """Call a method, and tell what became of it."""
        try:
            return Reply(self._methods[method](*arguments))
        except _Gone:
            return Reply(None, "the shard does not hold this part of the generation", "gone")
        except _Behind as error:
            return Reply(None, str(error), "behind")
        except VectorsDamaged as error:
            return Reply(None, str(error), "damaged")
        except (RankingError, OSError, MemoryError) as error:
            return Reply(None, str(error) or type(error).__name__, "refused" if shortage_in(error) is None else SHORT)

    def prepare(self, holding: Holding) -> SearchStatus:
        """Open a part and check its every byte, read its updates, then search it once, unless it is held already.

        Returns how it finds candidates.

        Raises:
            GenerationNotFound: there is no such generation, or it has no such part.
            Shortage: this machine lacks something for that, or the store.
        """
        with self._preparing:
            copy = self._copies.get(holding)
            if copy is None:
                copy = self._opened(holding)
                with self._changing:
                    self._copies = {**self._copies, holding: copy}
            return copy.search_status

    def _opened(self, holding: Holding) -> _PartCopy:
        if not self._root.is_dir():
            raise Shortage(f"there is no {self._root} on the shard's machine; mount the store there")
        store = GenerationStore(self._root)
        manifest = store.manifest(holding.generation)
        number = next((at for at, each in enumerate(manifest.parts) if each.name == holding.part), None)
        if number is None:
            raise GenerationNotFound(f"generation {manifest.id} has no part {holding.part}")
        opened = store.open(manifest.id, number)
        try:
            part = Opener.searchable(opened, MatrixVectors(opened, lambda *_: None))
            copy = _PartCopy(part, store.updates.of(manifest))
            copy.catch_up()
            codes = np.asarray(opened.embeddings.gather(np.zeros(1, np.int64)), np.float32)
            part.scan.top_k([Query(codes, 1)])
        except BaseException:
            opened.close()
            raise
        return copy

    def drop(self, generation: str) -> None:
        """Let go of the parts of a generation; searches in progress end on them."""
        with self._changing:
            self._copies = {holding: copy for holding, copy in self._copies.items() if holding.generation != generation}

    def held(self) -> list[Holding]:
        """What is ready to be searched; reads the logs, so that requests seldom find much to read.

        A scan that a timing had refused is tried again, too.
        """
        for copy in self._copies.values():
            with suppress(RankingError, OSError):  # a request that needs what cannot be read says so
                copy.catch_up()
                copy.scan_faster()
        return list(self._copies)

    def search(self, holding: Holding, queries: Sequence[PartQuery], left_s: Sequence[float]) -> list[Hits]:
        """Find the best candidates of a part for each query, all in one pass if the part is scanned.

        `left_s`: how much time each has left. Where an index is searched, it bounds how many candidates it finds.
        """
        copy, now = self._copy_of(holding), time.monotonic()
        tasks = [
            (copy.at(each.revision), each, Journey(now + left)) for each, left in zip(queries, left_s, strict=True)
        ]
        # An index is searched for one after the other anyway, and each has the time that those before it have left.
        passes = [tasks] if all(part.scans_all for part, _, _ in tasks) else [[each] for each in tasks]
        return [hits for together in passes for hits in self._hits(together)]

    def _hits(self, tasks: Sequence[tuple[Searchable, PartQuery, Journey]]) -> Iterator[Hits]:
        """Find the best for queries, each in the part at its revision; deadlines are on this machine's clock."""
        searches = []
        for part, each, journey in tasks:
            query = affordable(part, each.query, journey, self._rate)
            words = retrieval.read_words(part, query)
            searches.append(PoolSearch(part, query, each.codes, journey, words, query.with_candidates))
        top_rows = retrieval.search(searches, self._threads)
        for search, (_, each, journey), rows in zip(searches, tasks, top_rows, strict=True):
            hits = part_found(search, rows)
            yield learnt(hits, search.query, each.query, journey.total(), self._rate)

    def stored(self, holding: Holding, revision: int, request: Wanted) -> PartStored:
        """Return what is stored of candidates, by their rows, their ids or their texts."""
        part = self._copy_of(holding).at(revision)
        stock = read_in(part, request, Journey())
        return PartStored(
            positions=stock.positions,
            candidates=stock.candidates(stock.every) if request.with_candidates else [],
            vectors=stock.gather(stock.every)[0] if request.with_vectors else part.nothing,
            words=stock.words,
            longest=stock.longest,
        )

    def page(self, holding: Holding, revision: int, first: int, limit: int, filter_: Mapping[str, Any] | None) -> Page:
        return finish(page(self._copy_of(holding).at(revision).snapshot, first, limit, filter_))

    def looked(self, holding: Holding, revision: int, filter_: Mapping[str, Any]) -> Looked:
        return finish(looking(self._copy_of(holding).at(revision).snapshot, filter_))

    def _copy_of(self, holding: Holding) -> _PartCopy:
        copy = self._copies.get(holding)
        if copy is None:
            raise _Gone
        return copy


class ShardDesk:
    """Calls the methods of a body from an event loop: searches one after the other, everything else beside them."""

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
