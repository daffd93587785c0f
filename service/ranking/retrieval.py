"""A part of a pool in this process, at a revision: its best candidates are found by a scan, or by its index and then
scored.

A search goes through this file from top to bottom: `LocalPart.search` shows its stages, `read_words` reads what words
add to each row, `affordable` says how many candidates there is time for, `SearchBatch` finds the best rows for several
requests in one go, `part_hits` scores rows that have no scores yet, and `learnt` notes how long that took.

What updates have added is always scanned: it is little, and compaction keeps it so.
"""

import math
import time
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.generation.candidates import KnownTexts
from polyrank.index_builder.generation.slots import Slots
from polyrank.index_builder.index.retrieval import BestByWords, best_by_words, retrieve, with_words
from polyrank.index_builder.store.membership import Counts
from polyrank.index_builder.store.pages import Page, page
from polyrank.index_builder.store.snapshot import Snapshot, WordValues
from polyrank.index_builder.store.unmatched import FilterReport, looking
from polyrank.index_builder.store.update_log import Update
from polyrank.model.search.scan import Query
from polyrank.model.search.topk import top_k
from polyrank.service.live.searchable import Searchable
from polyrank.service.observe.labels import Plan
from polyrank.service.ranking.parts import Lookup, Stock
from polyrank.service.ranking.runtime import Runtime
from polyrank.service.ranking.values import Hits, PoolQuery
from polyrank.service.scheduling.admission import Rate
from polyrank.service.scheduling.forwards import ContextOnce
from polyrank.service.scheduling.scheduler import Work
from polyrank.service.scheduling.stages import SHARE_OF_TIME, Journey

Rows = NDArray[np.int64]

# Searching an index with a filter takes as long as without one, and scoring so many rows takes no longer. Also, an
# index misses many candidates where a filter lets through less than this share of all. docs/measurements/index.md.
FEW_MATCHES = 20_000
FEW_OF_ALL = 0.02

# Fewer than so many candidates are never retrieved.
FEWEST = 32
# A search costs as much as so many candidates before it has found one.
FIXED = 200


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
        return replace(self, snapshot=self.snapshot.updated(updates))

    def missing(self, ids: Sequence[str]) -> list[str]:
        rows = self.snapshot.rows(ids).tolist()
        return [candidate_id for candidate_id, row in zip(ids, rows, strict=True) if row < 0]

    def texts_here(self, texts: Sequence[str]) -> KnownTexts | None:
        return self.snapshot.stored_texts(texts)

    async def search(self, runtime: Runtime, query: PoolQuery, context: ContextOnce, journey: Journey) -> Hits:
        """Read fields, then words while the context is encoded, then search on the search thread."""
        if query.filter is not None:  # part by part, and not on the search thread
            await runtime.candidates.run_steps(self.snapshot.reading(query.filter), "retrieve", journey)
        counts_words, words = self.snapshot.generation.words is not None, None
        with journey.queued():  # for room, for threads, and while others of the batch are done
            async with runtime.words if counts_words else nullcontext():
                if counts_words:
                    read = partial(runtime.candidates.run, partial(read_words, self, query), stage="retrieve")
                    encoded, words = await journey.side_by_side(context.encoded, read)
                else:
                    encoded = await context.encoded(journey)
                afforded, before = affordable(self, query, journey, runtime.retrieval), journey.seconds["retrieve"]
                search = PoolSearch(
                    part=self,
                    query=afforded,
                    codes=encoded.encoding.codes,
                    journey=journey,
                    basis=words,
                    with_candidates=query.with_candidates and query.most_exact is None,
                )
                batch = SearchBatch(self.snapshot.generation if search.shares else search, runtime.settings.threads)
                work = Work(batch, [search], [1])
                try:
                    [best] = (await runtime.searches.run("search", work, math.inf)).outputs
                except BaseException:
                    journey.seconds["retrieve"] += work.had
                    raise
                if not self.vectors.are_here:  # fetching vectors from Redis would hold the search thread up
                    best = await runtime.candidates.run(partial(part_hits, search, best), journey)
        return learnt(best, afforded, query, journey.seconds["retrieve"] - before, runtime.retrieval)

    async def read(self, runtime: Runtime, lookup: Lookup, journey: Journey) -> Stock:
        work = partial(read_in, self, lookup, journey)
        if lookup.rows is not None:
            return work()
        counts_words = lookup.conversation is not None and self.generation.words is not None
        async with journey.holding(runtime.words) if counts_words else nullcontext():
            return await runtime.candidates.run(work, journey)

    async def page(
        self, runtime: Runtime, first: int, limit: int, filter_: Mapping[str, Any] | None, journey: Journey
    ) -> Page:
        async with journey.in_time():
            return await runtime.candidates.run_steps(page(self.snapshot, first, limit, filter_), "fetch", journey)

    async def looked(self, runtime: Runtime, filter_: Mapping[str, Any], journey: Journey) -> FilterReport:
        async with journey.in_time():
            return await runtime.candidates.run_steps(looking(self.snapshot, filter_), "fetch", journey)


@dataclass(frozen=True, slots=True)
class _Allowed:
    own: Rows | None  # the generation's rows that a filter lets through, ascending; None: all but `dropped`
    dropped: Rows  # the generation's rows that were removed or are excluded, ascending
    added: Rows  # rows added by updates, counted from 0, ascending
    count: int  # how many of the generation's rows are allowed

    def mask(self, size: int) -> NDArray[np.bool_] | None:
        """Return which of the generation's rows are allowed, (N,); None: all."""
        if self.own is None and not len(self.dropped):
            return None
        mask = np.full(size, self.own is None)
        if self.own is None:
            mask[self.dropped] = False
        else:
            mask[self.own] = True
        return mask


class Basis(NamedTuple):
    """What was read for a search before it begins."""

    words: WordValues | None  # what they say for every row; None: they do not count
    allowed: _Allowed
    best: BestByWords | None = None  # the rows for which words say most; None: all that are allowed are scored


def read_words(part: Searchable, query: PoolQuery) -> Basis | None:
    """Read the lexical score of every row, and choose the best rows by it; None where words do not count.

    All of that takes time in proportion to the pool, so it is not for the search thread.
    """
    words = None if query.conversation is None else part.snapshot.word_values(query.conversation)
    if words is None:
        return None
    allowed, index, best = _allowed(part.snapshot, query), part.snapshot.generation.index, None
    if index is not None and _plan(part, query, allowed) in ("index", "selector"):
        best = best_by_words(index, words.own, query.retrieved, allowed.mask(index.count))
    return Basis(words, allowed, best)


def affordable(part: Searchable, query: PoolQuery, journey: Journey, rate: Rate) -> PoolQuery:
    """Return the query for as many candidates as there is time for; `rate` is that of searching an index."""
    if query.exact or math.isinf(journey.deadline) or part.scans_all:
        return query
    seconds, units = SHARE_OF_TIME * max(0.0, journey.left), FIXED + query.retrieved
    predicted = rate.predict(units)
    if predicted <= seconds:
        return query
    rate.doubt()
    fitting = int(units * seconds / predicted) - FIXED
    return replace(query, retrieve_k=min(query.retrieve_k, max(query.needed, FEWEST, fitting)))


@dataclass(frozen=True, slots=True, eq=False)
class PoolSearch:
    """What one request is looking for in a part."""

    part: Searchable
    query: PoolQuery
    codes: NDArray[np.float32]  # context vectors (M, D)
    journey: Journey
    basis: Basis | None = None  # what was read of words; None: they do not count
    with_candidates: bool = False  # also give the candidates that are found

    @property
    def shares(self) -> bool:
        """Whether it takes less time together with others than one after the other.

        With a filter it does not: each request finds and scores the matching rows for itself.
        """
        query, part = self.query, self.part
        scans = query.filter is None and (query.exact or part.scans_all)
        return scans and part.scan.status.shares(len(self.codes))


class Shortlist(NamedTuple):
    """Rows of a snapshot among which are the best."""

    rows: Rows  # best first where they have scores, else ascending
    scores: NDArray[np.float32] | None  # (len(rows),); None: the rows are still to be scored by their vectors
    looked_at: int  # how many rows were scored or searched to find them
    bound: float  # no other row scores more than this
    plan: Plan


@dataclass(frozen=True)
class SearchBatch:
    """Does searches of one generation in one go; equal for those that may share it, by what they have in common."""

    key: Hashable
    threads: int | None = None  # of FAISS; None leaves it to FAISS

    def __call__(self, searches: list[PoolSearch]) -> list[Any]:
        """Return for each what it found, of vectors in Redis as `Shortlist`, or an error that is its own alone."""
        try:
            shortlists = search(searches, self.threads)
        except BaseException as error:  # as an executor does, so that no caller waits for ever
            # Of several one is to blame: the others must not fail with it.
            return [error] if len(searches) == 1 else [result for each in searches for result in self([each])]
        return [_finished(each, shortlist) for each, shortlist in zip(searches, shortlists, strict=True)]


def _finished(search: PoolSearch, shortlist: Shortlist) -> Any:
    """A frame of its own: an error holds the frame that caught it, which must not hold the whole batch."""
    try:
        return part_hits(search, shortlist) if search.part.vectors.are_here else shortlist
    except BaseException as error:
        return error


def search(searches: Sequence[PoolSearch], threads: int | None = None) -> list[Shortlist]:
    """Find the best rows for each search, all of one generation; for one thread at a time.

    Those that scan share a pass. FAISS uses as many threads as given; None leaves it to FAISS.
    """
    began = time.perf_counter()
    bases = [each.basis or Basis(None, _allowed(each.part.snapshot, each.query)) for each in searches]
    shortlists = [_indexed(each, basis, threads) for each, basis in zip(searches, bases, strict=True)]
    scanned = [at for at, shortlist in enumerate(shortlists) if shortlist is None]
    queries = []
    for at in scanned:
        each, (words, allowed, _) = searches[at], bases[at]
        mask = allowed.mask(each.part.snapshot.generation.manifest.count)
        queries.append(Query(each.codes, each.query.depth, mask, None if words is None else words.own))
    for at, best in zip(scanned, searches[0].part.scan.top_k(queries) if queries else (), strict=True):
        allowed = bases[at].allowed
        plan: Plan = "scan" if allowed.own is None else "matches"
        shortlists[at] = Shortlist(best.rows, best.scores, allowed.count, -np.inf, plan)
    every = [
        _with_added(each, words, allowed, shortlist)
        for each, (words, allowed, _), shortlist in zip(searches, bases, shortlists, strict=True)
        if shortlist is not None
    ]
    for each in searches:
        each.journey.seconds["retrieve"] += time.perf_counter() - began
    return every


def _allowed(snapshot: Snapshot, query: PoolQuery) -> _Allowed:
    excluded: Rows = np.empty(0, np.int64)
    if query.exclude_ids:
        rows = snapshot.rows(query.exclude_ids)
        excluded = np.unique(rows[rows >= 0])
    if query.filter is None:
        dropped, added = snapshot.removed, snapshot.added
        if len(excluded):
            _, own, new = snapshot.split(excluded)
            dropped, added = np.union1d(dropped, own), np.setdiff1d(added, new, assume_unique=True)
        return _Allowed(None, dropped, added, snapshot.generation.manifest.count - len(dropped))
    matching = np.setdiff1d(snapshot.matching(query.filter), excluded, assume_unique=True)
    _, own, added = snapshot.split(matching)
    return _Allowed(own, snapshot.removed, added, len(own))


def _plan(part: Searchable, query: PoolQuery, allowed: _Allowed) -> Plan:
    """Choose the index where it is cheaper than scoring every row allowed, and the answer may be inexact."""
    scans = query.exact or part.scans_all
    if allowed.own is None:
        return "scan" if scans else "index"
    few = max(FEW_MATCHES, FEW_OF_ALL * part.snapshot.generation.manifest.count)
    return "matches" if scans or len(allowed.own) <= few else "selector"


def _indexed(search: PoolSearch, basis: Basis, threads: int | None) -> Shortlist | None:
    """Find the union of what the index finds for each context vector; None: all rows allowed must be scored."""
    index, query, codes = search.part.snapshot.generation.index, search.query, search.codes
    words, allowed, best = basis
    if index is None or (plan := _plan(search.part, query, allowed)) in ("scan", "matches"):
        return None
    if words is not None and best is None:  # a GPU that scanned when words were read has failed since
        return None
    depth, limit = query.depth, query.retrieved
    if allowed.own is None:
        union = retrieve(index, codes, limit, exclude=allowed.dropped, threads=threads, least=depth)
    else:
        union = retrieve(index, codes, limit, only=allowed.mask(index.count), threads=threads, least=depth)
    if len(union.rows) < min(depth, allowed.count):  # a graph may not lead to so many of those allowed
        return None
    if best is not None:
        union = with_words(index, union, best, limit)
    return Shortlist(union.rows, None, len(union.rows), union.bound, plan)


def _with_added(search: PoolSearch, words: WordValues | None, allowed: _Allowed, shortlist: Shortlist) -> Shortlist:
    """Scan what updates have added; of what is scored already, keep the best."""
    rows, scores, snapshot = shortlist.rows, shortlist.scores, search.part.snapshot
    if len(allowed.added):
        depth, longest = search.query.depth, snapshot.longest_added
        additions = None if words is None else words.added
        added = top_k(snapshot.vectors_added, search.codes, depth, allowed.added, longest, additions=additions)
        rows = np.concatenate([rows, snapshot.numbered(added.rows)])
        scores = None if scores is None else np.concatenate([scores, added.scores])
    # Vectors in Redis are scored as they are now, also where a scan of the copy here has found the best.
    if scores is None or not search.part.vectors.are_here:
        rows, scores = np.sort(rows), None
    elif len(allowed.added):
        best = np.lexsort((rows, -scores))[: search.query.depth]
        rows, scores = rows[best], scores[best]
    return shortlist._replace(rows=rows, scores=scores, looked_at=shortlist.looked_at + len(allowed.added))


def part_hits(search: PoolSearch, shortlist: Shortlist) -> Hits:
    """Score the rows that were found in a part, unless a scan has, and fetch the best if that is asked for."""
    part, words, journey = search.part, None if search.basis is None else search.basis.words, search.journey
    rows, scores, cache_available = shortlist.rows, shortlist.scores, True
    if scores is None:
        gather = partial(part.gather, rows, journey.budget, first_only=True)
        stored, cache_available = journey.measure("fetch", gather)
        with journey.timed("score"):
            additions = None if words is None else words.own._replace(values=words.of(rows))
            best = top_k(stored.first, search.codes, search.query.depth, longest=part.longest, additions=additions)
            rows, scores = rows[best.rows], best.scores
    candidates = None
    if search.with_candidates:
        candidates = journey.measure("fetch", partial(part.snapshot.candidates, rows))
    return Hits(
        order=part.snapshot.order(rows),
        rows=rows,
        scores=scores,
        lexical=None if words is None else words.of(rows),
        looked_at=shortlist.looked_at,
        bound=shortlist.bound,
        plan=shortlist.plan,
        candidates=candidates,
        cache_available=cache_available,
    )


def learnt(hits: Hits, afforded: PoolQuery, query: PoolQuery, seconds: float, rate: Rate) -> Hits:
    """Learn what a search has taken, and say in what was found whether it was for fewer candidates."""
    if hits.plan not in ("index", "selector"):
        return hits
    rate.learn(FIXED + afforded.retrieved, seconds)
    return replace(hits, reduced=afforded.retrieve_k < query.retrieve_k)


def read_in(part: Searchable, lookup: Lookup, journey: Journey) -> Stock:
    """Look candidates of a part up; what is stored of them is read later, within a request's budget for Redis."""
    values = None
    if lookup.rows is not None:
        positions, rows = np.arange(len(lookup.rows)), lookup.rows
    else:
        words = None
        if lookup.conversation is not None:
            words = journey.measure("retrieve", partial(part.snapshot.word_values, lookup.conversation))
        of_texts, of_ids = partial(part.snapshot.rows_of_texts, lookup.texts), partial(part.snapshot.rows, lookup.ids)
        row_of = journey.measure("fetch", of_texts if lookup.texts else of_ids)
        positions = np.flatnonzero(row_of >= 0)
        rows = row_of[positions]
        values = None if words is None else words.of(rows)

    return Stock(
        positions=positions,
        words=values,
        longest=part.longest,
        candidates=lambda numbers: part.snapshot.candidates(rows[numbers]),
        gather=lambda numbers, first_only=False: part.gather(rows[numbers], journey.budget, first_only=first_only),
    )
