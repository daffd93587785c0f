"""The best candidates of a generation at a revision: by a scan, or by its index.

What updates have added is always scanned: it is little, and compaction keeps it so.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.index.retrieval import retrieve
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.model.search.scan import Query
from polyrank.model.search.topk import TopK, top_k
from polyrank.service.live.serving import Serving
from polyrank.service.observe.labels import Plan
from polyrank.service.ranking.shortlist import Codes
from polyrank.service.ranking.values import Place, RankRequest, Shortlist, Stages

Rows = NDArray[np.int64]

# Behind a filter an index costs as much as without one: so many rows are scored as soon. And it misses much where the
# filter lets through less than this share of all. docs/measurements/index.md.
FEW_MATCHES = 20_000
FEW_OF_ALL = 0.02

# Rounding of the index's inner products, sums of D products in float32, against ours: relative to the score.
CERTIFICATE_MARGIN = 1e-4


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The rows that may be in the answer.

    Attributes:
        own: of the generation, those that a filter lets through, ascending; None: all but `dropped`.
        dropped: of the generation, those removed or excluded; ascending.
        added: by updates, counted from 0; ascending.
        count: of the generation's.
    """

    own: Rows | None
    dropped: Rows
    added: Rows
    count: int

    def mask(self, size: int) -> NDArray[np.bool_] | None:
        """Which of the generation's rows are allowed, (N,); None: all."""
        if self.own is None and not len(self.dropped):
            return None
        mask = np.full(size, self.own is None)
        if self.own is None:
            mask[self.dropped] = False
        else:
            mask[self.own] = True
        return mask


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Rows of a snapshot among which are the best; at first those of its generation alone.

    Attributes:
        rows: ascending, once what was added is among them.
        looked_at: how many were scored to find them.
        bound: what no other row's score is above.
        plan: how they were found.
    """

    rows: Rows
    looked_at: int
    bound: float
    plan: Plan


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """What one request is looking for.

    Attributes:
        serving: where.
        request: what was sent.
        codes: context vectors (M, D).
        stages: told how long each took.
    """

    serving: Serving
    request: RankRequest
    codes: Codes
    stages: Stages

    @property
    def scans(self) -> bool:
        """Whether all rows allowed are scored."""
        return self.serving.loaded.scans_all or self.request.exact

    @property
    def shares(self) -> bool:
        """Whether others gain by being searched for along with it; else each would only wait for all.

        What a filter lets through is found and scored for each request by itself.
        """
        return self.request.filter is None and self.scans and self.serving.loaded.scan.shares


def retrieve_rows(searches: Sequence[Search], threads: int | None = None) -> list[Retrieved]:
    """Find the rows to score, of one generation and of what was added to it; for one thread at a time."""
    began = time.perf_counter()
    asked = [(search, _allowed(search.serving.snapshot, search.request)) for search in searches]
    found = [_searched(*each, threads) for each in asked]
    scanned = _scanned([each for each, rows in zip(asked, found, strict=True) if rows is None])
    retrieved = [_with_added(*each, rows or next(scanned)) for each, rows in zip(asked, found, strict=True)]
    for search in searches:
        search.stages.add("retrieve", time.perf_counter() - began)
    return retrieved


def _with_added(search: Search, allowed: _Allowed, found: Retrieved) -> Retrieved:
    """What was found, and the best of what updates have added."""
    snapshot, depth = search.serving.snapshot, search.request.depth
    added = top_k(snapshot.vectors_added, search.codes, depth, allowed.added, snapshot.longest_added).rows
    rows = np.concatenate([np.sort(found.rows), snapshot.numbered(np.sort(added))])
    return replace(found, rows=rows, looked_at=found.looked_at + len(allowed.added))


def over_generation(search: Search, retrieved: Retrieved) -> Shortlist:
    """Score the rows that were found, and fetch the candidates of the best."""
    best, cache_available = _score(search, retrieved.rows)
    with search.stages.timed("fetch"):
        candidates = search.serving.snapshot.candidates(best.rows)
    places = [
        Place(candidate.id, candidate.text, score, candidate.metadata)
        for candidate, score in zip(candidates, best.scores.tolist(), strict=True)
    ]
    return Shortlist(
        places,
        _is_exact(best.scores, retrieved.bound, search.request.depth),
        retrieved.looked_at,
        cache_available=cache_available,
        plan=retrieved.plan,
    )


def scored_here(search: Search, retrieved: Retrieved) -> Shortlist | Exception | None:
    """As `over_generation`, or why that failed, which must not fail others; None: vectors must be fetched first."""
    if not search.serving.loaded.vectors.are_here:
        return None
    # Vectors that are here are scored in less time than it takes to hand them over to another thread.
    try:
        return over_generation(search, retrieved)
    except Exception as error:
        return error


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


def _plan(search: Search, allowed: _Allowed) -> Plan:
    """An index is asked where that is cheaper than to score every row allowed, and the answer may be inexact."""
    if allowed.own is None:
        return "scan" if search.scans else "index"
    few = max(FEW_MATCHES, FEW_OF_ALL * search.serving.generation.manifest.count)
    return "matches" if search.scans or len(allowed.own) <= few else "selector"


def _scanned(searches: Sequence[tuple[Search, _Allowed]]) -> Iterator[Retrieved]:
    """The best rows of the generation for each, in one pass for all."""
    if not searches:
        return
    serving = searches[0][0].serving
    queries = [
        Query(search.codes, search.request.depth, allowed.mask(serving.generation.manifest.count))
        for search, allowed in searches
    ]
    for best, (_, allowed) in zip(serving.loaded.scan.top_k(queries), searches, strict=True):
        yield Retrieved(best.rows, allowed.count, -np.inf, "scan" if allowed.own is None else "matches")


def _searched(search: Search, allowed: _Allowed, threads: int | None) -> Retrieved | None:
    """The union of what the index finds for each context vector; None where all rows allowed must be scored."""
    index, request, codes = search.serving.generation.index, search.request, search.codes
    plan = _plan(search, allowed)
    if index is None or plan in ("scan", "matches"):
        return None
    limit = max(request.retrieve_k, request.depth)
    if allowed.own is None:
        found = retrieve(index, codes, limit, exclude=allowed.dropped, threads=threads, least=request.depth)
    else:
        only = np.zeros(index.count, bool)
        only[allowed.own] = True
        found = retrieve(index, codes, limit, only=only, threads=threads, least=request.depth)
    if len(found.rows) < min(request.depth, allowed.count):  # a graph may not lead to so many of those allowed
        return None
    return Retrieved(found.rows, len(found.rows), found.bound, plan)


def _score(search: Search, rows: Rows) -> tuple[TopK, bool]:
    """Score rows (ascending) by their vectors as the store has them now, which is where damage is noticed."""
    with search.stages.timed("fetch"):
        gathered = search.serving.gather(rows, search.request.budget)
    with search.stages.timed("score"):
        found = top_k(gathered.vectors, search.codes, search.request.depth)
    return TopK(rows[found.rows], found.scores), gathered.cache_available


def _is_exact(scores: NDArray[np.float32], bound: float, k: int) -> bool:
    """Whether the k-th score is above whatever was not scored.

    Source: docs/architecture.md, "Scores".
    """
    if bound == -np.inf:
        return True
    if len(scores) < k:
        return False
    last = float(scores[-1])
    return last > bound + CERTIFICATE_MARGIN * max(1.0, abs(last))
