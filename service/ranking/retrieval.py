"""The best candidates of a generation at a revision: found by a scan, or by its index and then scored.

What updates have added is always scanned: it is little, and compaction keeps it so.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.index.retrieval import BestByWords, best_by_words, retrieve, with_words
from polyrank.index_builder.store.snapshot import Snapshot, WordValues
from polyrank.model.representations import Additions
from polyrank.model.search.scan import Query
from polyrank.model.search.topk import TopK, top_k
from polyrank.model.text.assembly import Conversation
from polyrank.service.live.serving import Searchable
from polyrank.service.observe.labels import Plan
from polyrank.service.ranking.values import RankRequest
from polyrank.service.scheduling.admission import Rate
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


@dataclass(frozen=True, slots=True, eq=False)
class PoolWords:
    """The lexical scores of every row of a snapshot.

    Attributes:
        late_weight: of the scores by vectors beside it.
        values: of the generation's own rows, and of the added ones.
    """

    late_weight: float
    values: WordValues

    @property
    def own(self) -> Additions:
        """What is added to the scores of the generation's own rows."""
        return Additions(self.late_weight, self.values.own)

    @property
    def added(self) -> Additions:
        """What is added to the scores of the added rows, counted from 0."""
        return Additions(self.late_weight, self.values.added)

    def of(self, rows: Rows) -> NDArray[np.float32]:
        """Return the values of rows (n,) of the snapshot, (n,)."""
        own, added = self.values
        values = np.empty(len(rows), np.float32)
        is_own = rows < len(own)
        values[is_own], values[~is_own] = own[rows[is_own]], added[rows[~is_own] - len(own)]
        return values


def pool_words(serving: Searchable, conversation: Conversation) -> PoolWords | None:
    """Read the lexical score of every row; None where words do not count for the model."""
    words, values = serving.snapshot.generation.words, serving.snapshot.word_values(conversation)
    return None if words is None or values is None else PoolWords(words.evidence.late_weight, values)


@dataclass(frozen=True, slots=True, eq=False)
class PoolSearch:
    """What one request is looking for."""

    serving: Searchable
    request: RankRequest
    codes: NDArray[np.float32]  # context vectors (M, D)
    journey: Journey
    read: "ReadWords | None" = None  # None: words do not count

    @property
    def words(self) -> PoolWords | None:
        """The lexical score of every row; None where words do not count."""
        return None if self.read is None else self.read.words

    @property
    def shares(self) -> bool:
        """Whether it takes less time together with others than one after the other.

        With a filter it does not: each request finds and scores the matching rows for itself.
        """
        scan = self.serving.scan
        return self.request.filter is None and _scans(self.serving, self.request) and scan.status.shares


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of a snapshot among which are the best.

    Attributes:
        rows: best first where they have scores, else ascending.
        scores: (len(rows),); None: the rows are still to be scored by their vectors.
        looked_at: how many rows were scored or searched to find them.
        bound: no other row scores more than this.
    """

    rows: Rows
    scores: NDArray[np.float32] | None
    looked_at: int
    bound: float
    plan: Plan


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The rows that may be in the answer.

    Attributes:
        own: the generation's rows that a filter lets through, ascending; None: all but `dropped`.
        dropped: the generation's rows that were removed or are excluded, ascending.
        added: rows added by updates, counted from 0, ascending.
        count: how many of the generation's rows are allowed.
    """

    own: Rows | None
    dropped: Rows
    added: Rows
    count: int

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


@dataclass(frozen=True, slots=True, eq=False)
class ReadWords:
    """What a search needs of words.

    Attributes:
        words: what they say for every row.
        allowed: the rows that may be in the answer.
        best: those of them for which words say most; None: all of them are scored.
    """

    words: PoolWords
    allowed: _Allowed
    best: BestByWords | None


def read_words(serving: Searchable, request: RankRequest) -> ReadWords | None:
    """Read the lexical score of every row, and choose the best rows by it; None where words do not count.

    All of that takes time in proportion to the pool, so it is not for the search thread.
    """
    words = pool_words(serving, request.conversation)
    if words is None:
        return None
    allowed, index, best = _allowed(serving.snapshot, request), serving.snapshot.generation.index, None
    if index is not None and _plan(serving, request, allowed) in ("index", "selector"):
        best = best_by_words(index, words.own, _limit(request), allowed.mask(index.count))
    return ReadWords(words, allowed, best)


# Makes the result of a search from what was found for it.
Finish = Callable[[PoolSearch, "Found"], Any]


@dataclass(frozen=True)
class SearchBatch:
    """Does searches of one generation in one go; equal for those that may share it, by what they have in common."""

    key: Hashable
    threads: int | None = None  # of FAISS; None leaves it to FAISS

    def __call__(self, asked: list[tuple[PoolSearch, Finish]]) -> list[Any]:
        """Return a result or an error for each; that of finishing a search is its own alone."""
        try:
            found = search([each for each, _ in asked], self.threads)
        except BaseException as error:  # as an executor does, so that no caller waits for ever
            # Of several one is to blame: the others must not fail with it.
            return [error] if len(asked) == 1 else [result for each in asked for result in self([each])]
        return [_finished(finish, each, share) for (each, finish), share in zip(asked, found, strict=True)]


def _finished(finish: Finish, search: PoolSearch, found: "Found") -> Any:
    try:
        return finish(search, found)
    except BaseException as error:
        return error


def search(searches: Sequence[PoolSearch], threads: int | None = None) -> list[Found]:
    """Find the best rows for each search, all of one generation; for one thread at a time.

    The searches that scan share a pass. FAISS uses as many threads as given; None leaves it to FAISS.
    """
    began = time.perf_counter()
    asked = [
        (search, search.read.allowed if search.read else _allowed(search.serving.snapshot, search.request))
        for search in searches
    ]
    by_index = [_indexed(search, allowed, threads) for search, allowed in asked]
    by_scan = _scanned([pair for pair, found in zip(asked, by_index, strict=True) if found is None])
    found = [_with_added(*pair, found or next(by_scan)) for pair, found in zip(asked, by_index, strict=True)]
    for search in searches:
        search.journey.add("retrieve", time.perf_counter() - began)
    return found


def _allowed(snapshot: Snapshot, request: RankRequest) -> _Allowed:
    excluded = snapshot.rows(request.exclude_ids)
    excluded = np.unique(excluded[excluded >= 0])
    if request.filter is None:
        dropped, kept = snapshot.removed, snapshot.added
        if len(excluded):
            _, own, added = snapshot.split(excluded)
            dropped, kept = np.union1d(dropped, own), np.setdiff1d(kept, added, assume_unique=True)
        return _Allowed(None, dropped, kept, snapshot.generation.manifest.count - len(dropped))
    matching = np.setdiff1d(snapshot.matching(request.filter), excluded, assume_unique=True)
    _, own, added = snapshot.split(matching)
    return _Allowed(own, snapshot.removed, added, len(own))


def _scans(serving: Searchable, request: RankRequest) -> bool:
    """Whether all rows allowed are scored."""
    return serving.scans_all or request.exact


def _limit(request: RankRequest) -> int:
    return max(request.retrieve_k, request.depth)


def _plan(serving: Searchable, request: RankRequest, allowed: _Allowed) -> Plan:
    """Choose the index where it is cheaper than scoring every row allowed, and the answer may be inexact."""
    scans = _scans(serving, request)
    if allowed.own is None:
        return "scan" if scans else "index"
    few = max(FEW_MATCHES, FEW_OF_ALL * serving.snapshot.generation.manifest.count)
    return "matches" if scans or len(allowed.own) <= few else "selector"


def _scanned(searches: Sequence[tuple[PoolSearch, _Allowed]]) -> Iterator[Found]:
    """Find the best rows of the generation for each, in one pass for all."""
    if not searches:
        return
    serving = searches[0][0].serving
    queries = [
        Query(
            search.codes,
            search.request.depth,
            allowed.mask(serving.snapshot.generation.manifest.count),
            None if search.words is None else search.words.own,
        )
        for search, allowed in searches
    ]
    for best, (_, allowed) in zip(serving.scan.top_k(queries), searches, strict=True):
        yield Found(best.rows, best.scores, allowed.count, -np.inf, "scan" if allowed.own is None else "matches")


def _indexed(search: PoolSearch, allowed: _Allowed, threads: int | None) -> Found | None:
    """Find the union of what the index finds for each context vector; None: all rows allowed must be scored."""
    index, request, codes = search.serving.snapshot.generation.index, search.request, search.codes
    plan = _plan(search.serving, request, allowed)
    if index is None or plan in ("scan", "matches"):
        return None
    best = None if search.read is None else search.read.best
    if search.read is not None and best is None:  # a GPU that scanned when words were read has failed since
        return None
    limit = _limit(request)
    if allowed.own is None:
        found = retrieve(index, codes, limit, exclude=allowed.dropped, threads=threads, least=request.depth)
    else:
        only = np.zeros(index.count, bool)
        only[allowed.own] = True
        found = retrieve(index, codes, limit, only=only, threads=threads, least=request.depth)
    if len(found.rows) < min(request.depth, allowed.count):  # a graph may not lead to so many of those allowed
        return None
    if best is not None:
        found = with_words(index, found, best, limit)
    return Found(found.rows, None, len(found.rows), found.bound, plan)


def _with_added(search: PoolSearch, allowed: _Allowed, found: Found) -> Found:
    snapshot, depth = search.serving.snapshot, search.request.depth
    additions = None if search.words is None else search.words.added
    longest = snapshot.longest_added
    added = top_k(snapshot.vectors_added, search.codes, depth, allowed.added, longest, additions=additions)
    rows = np.concatenate([found.rows, snapshot.numbered(added.rows)])
    looked_at = found.looked_at + len(allowed.added)
    # Vectors in Redis are scored as they are now, also where a scan of the copy here has found the best.
    if found.scores is None or not search.serving.vectors.are_here:
        return replace(found, rows=np.sort(rows), scores=None, looked_at=looked_at)
    scores = np.concatenate([found.scores, added.scores])
    best = np.lexsort((rows, -scores))[:depth]
    return replace(found, rows=rows[best], scores=scores[best], looked_at=looked_at)


def scored(search: PoolSearch, found: Found) -> tuple[TopK, bool]:
    """Return the best rows, and whether the cache answered for their vectors."""
    if found.scores is not None:
        return TopK(found.rows, found.scores), True
    with search.journey.timed("fetch"):
        gathered = search.serving.gather(found.rows, search.journey.budget)
    with search.journey.timed("score"):
        words, longest = search.words, search.serving.longest
        additions = None if words is None else Additions(words.late_weight, words.of(found.rows))
        best = top_k(gathered.vectors, search.codes, search.request.depth, longest=longest, additions=additions)
    return TopK(found.rows[best.rows], best.scores), gathered.cache_available


class RetrievalBudget:
    """Limits how many candidates are retrieved to what there is time for; learns what searching an index takes."""

    def __init__(self) -> None:
        self._rate = Rate()

    def affordable(self, serving: Searchable, request: RankRequest, journey: Journey) -> RankRequest:
        """Return the request with as many candidates to retrieve as there is time for."""
        if serving.scans_all or request.exact or math.isinf(journey.deadline):
            return request
        seconds = SHARE_OF_TIME * max(0.0, journey.left)
        predicted = self._rate.predict(_units(request))
        if predicted <= seconds:
            return request
        self._rate.doubt()
        units = int(_units(request) * seconds / predicted)
        return replace(request, retrieve_k=min(request.retrieve_k, max(request.depth, FEWEST, units - FIXED)))

    def learn(self, request: RankRequest, seconds: float) -> None:
        """Take in how long an index was searched."""
        self._rate.learn(_units(request), seconds)


def _units(request: RankRequest) -> int:
    return FIXED + _limit(request)
