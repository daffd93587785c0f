"""A part in this process, searched and read on the threads of the runtime, and a pool that is one such part."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.generation.candidates import KnownTexts
from polyrank.index_builder.generation.generation import INDEX_FILE, Generation
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.generation.slots import Slots
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.membership import Counts
from polyrank.index_builder.store.pages import Page, page
from polyrank.index_builder.store.unmatched import Looked, looking
from polyrank.index_builder.store.update_log import Update, UpdateLog
from polyrank.model.search.scan import faster
from polyrank.service.live.searchable import Opener, Searchable
from polyrank.service.ranking.parts import Facts, PoolSnapshot, Serving, Stock, Wanted
from polyrank.service.ranking.retrieval import PoolSearch, SearchBatch, part_found, pool_words, read_words
from polyrank.service.ranking.runtime import Runtime
from polyrank.service.ranking.values import Hits, PoolQuery
from polyrank.service.scheduling.forwards import ContextOnce
from polyrank.service.scheduling.scheduler import Work
from polyrank.service.scheduling.stages import Journey

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LocalPart(Searchable):
    """A part in this process, at a revision."""

    is_here: ClassVar[bool] = True

    @property
    def slots(self) -> Slots:
        """Which candidates it holds."""
        return self.snapshot.slots

    @property
    def counts(self) -> Counts:
        """How many candidates there are."""
        snapshot = self.snapshot
        return Counts(snapshot.count, len(snapshot.added), len(snapshot.removed))

    @property
    def has_matrix(self) -> bool:
        """Whether the vectors, and the rows of a second stage, are on the disk."""
        return self.generation.embeddings.is_whole

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

    async def search(self, runtime: Runtime, query: PoolQuery, context: ContextOnce, journey: Journey) -> Hits:
        """Read fields, then words while the context is encoded, then search on the search thread."""
        counts_words = self.snapshot.generation.words is not None
        if query.filter is not None:  # part by part, and not on the search thread
            await runtime.candidates.run_steps(self.snapshot.reading(query.filter), "retrieve", journey)
        async with journey.holding(runtime.words) if counts_words else nullcontext():
            words = None
            if counts_words:
                read = partial(runtime.candidates.run, partial(read_words, self, query), stage="retrieve")
                encoded, words = await journey.side_by_side(context.encoded, read)
            else:
                encoded = await context.encoded(journey)
            affordable, before = runtime.retrieval.affordable(self, query, journey), journey.seconds["retrieve"]
            search = PoolSearch(
                part=self,
                query=affordable,
                codes=encoded.encoding.codes,
                journey=journey,
                read=words,
                with_candidates=query.with_candidates and query.most_exact is None,
            )
            batch = SearchBatch(self.snapshot.generation if search.shares else search, runtime.settings.threads)
            work = Work(batch, [search], [1])
            with journey.queued():  # also while others of the batch are done; its stages are not
                try:
                    [found] = (await runtime.searches.run("search", work, math.inf)).outputs
                except BaseException:
                    journey.seconds["retrieve"] += work.had
                    raise
            if not self.vectors.are_here:  # fetching vectors from Redis would hold the search thread up
                found = await runtime.candidates.run(partial(part_found, search, found), journey)
        return runtime.retrieval.learnt(affordable, found, query, journey.seconds["retrieve"] - before)

    async def read(self, runtime: Runtime, wanted: Wanted, journey: Journey) -> Stock:
        """See `Part.read`."""
        work = partial(read_in, self, wanted, journey)
        if wanted.rows is not None:
            return work()
        counts_words = wanted.conversation is not None and self.generation.words is not None
        async with journey.holding(runtime.words) if counts_words else nullcontext():
            return await runtime.candidates.run(work, journey)

    async def page(
        self, runtime: Runtime, first: int, limit: int, filter_: Mapping[str, Any] | None, journey: Journey
    ) -> Page:
        """See `Part.page`."""
        async with journey.in_time():
            return await runtime.candidates.run_steps(page(self.snapshot, first, limit, filter_), "fetch", journey)

    async def looked(self, runtime: Runtime, filter_: Mapping[str, Any], journey: Journey) -> Looked:
        """See `Part.looked`."""
        async with journey.in_time():
            return await runtime.candidates.run_steps(looking(self.snapshot, filter_), "fetch", journey)


def read_in(part: Searchable, wanted: Wanted, journey: Journey) -> Stock:
    """Look candidates of a part up; what is stored of them is read later, within a request's budget for Redis."""
    values = None
    if wanted.rows is not None:
        positions, rows = np.arange(len(wanted.rows)), wanted.rows
    else:
        words = None
        if wanted.conversation is not None:
            with journey.timed("retrieve"):
                words = pool_words(part, wanted.conversation)
        with journey.timed("fetch"):
            found = part.snapshot.rows_of_texts(wanted.texts) if wanted.texts else part.snapshot.rows(wanted.ids)
            positions = np.flatnonzero(found >= 0)
            rows = found[positions]
            values = None if words is None else words.of(rows)

    return Stock(
        positions=positions,
        words=values,
        longest=part.longest,
        candidates=lambda asked: part.snapshot.candidates(rows[asked]),
        gather=lambda asked, first_only=False: part.gather(rows[asked], journey.budget, first_only=first_only),
    )


def serve(opener: Opener, parts: Sequence[Generation], log: UpdateLog) -> Serving:
    """Return what is served of the open parts of a generation, of whose log nothing has been read."""
    opened, first = opener.open(parts), parts[0]
    local = tuple(LocalPart(each.snapshot, each.vectors, each.scan) for each in opened.parts)
    manifest = first.whole
    serving = Serving(
        generation=Facts(manifest.id, manifest, first.words),
        snapshot=PoolSnapshot(manifest.revision, 0, tuple(part.counts for part in local)),
        parts=local,
        ranker=opened.ranker,
        log=log,
        texts=opened.texts,
        loaded_at=time.time(),
    )
    return serving.caught_up()


class Here:
    """Holds generations in this process; see `Holder`. What nobody holds any more goes by itself."""

    in_use: Callable[[], list[Serving]]

    def __init__(self, store: GenerationStore, opener: Opener) -> None:
        self._store, self._opener = store, opener

    def load(self, generation: str) -> Serving:
        """See `Holder.load`."""
        parts = self._store.open_parts(generation)
        manifest = parts[0].manifest
        try:
            return serve(self._opener, parts, self._store.updates.of(manifest))
        except BaseException:
            for each in parts:
                each.close()
            raise

    def let_go(self, generation: str) -> None:
        """Do nothing."""

    def replaced(self, before: Serving) -> None:
        """Do nothing."""

    def sped_up(self, serving: Serving) -> Callable[[Serving], Serving] | None:
        """Return what takes up scans that a timing had refused, once another timing does not."""
        local = [cast(LocalPart, part) for part in serving.parts]  # `serve` makes no others
        scans = [faster(part.scan, part.vectors.matrix()) for part in local]
        if all(scan is part.scan for scan, part in zip(scans, local, strict=True)):
            return None

        def taken_up(now: Serving) -> Serving:
            pairs = zip(now.parts, scans, strict=True)
            return replace(now, parts=tuple(replace(cast(LocalPart, part), scan=scan) for part, scan in pairs))

        return taken_up

    def has_model(self, fingerprint: str) -> bool:
        """See `Holder.has_model`."""
        return self._opener.has_model(fingerprint)

    def bytes_of(self, manifest: Manifest) -> int:
        """Return the size of the FAISS indexes, and of the copies of the vectors in bytes that scans read.

        Matrix, texts and words are mapped files, which the system may drop.
        """
        indexes = sum(entry.bytes for name, entry in manifest.files.items() if name.endswith(INDEX_FILE))
        scanned = sum(part.count for part in manifest.parts if part.index.factory is None)
        return indexes + scanned * manifest.dim
