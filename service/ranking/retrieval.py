"""The best candidates of a generation at a revision: by a scan, or by its index.

What updates have added is always scanned: it is little, and compaction keeps it so.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index_builder.faiss_index import CandidateIndex
from index_builder.retrieval import retrieve
from index_builder.snapshot import Snapshot
from model.topk import TopK, top_k
from service.index.serving import Serving
from service.ranking.shortlist import Codes
from service.ranking.values import Place, Plan, RankRequest, Shortlist, Stages

Rows = NDArray[np.int64]

# Behind a filter an index costs as much as without one: so many rows are scored as soon. And it misses much where the
# filter lets through less than this share of all. docs/results.md, "Kinds of index".
FEW_MATCHES = 30_000
FEW_OF_ALL = 0.01

# Rounding of the index's inner products against ours, relative to the score: math.md, section 3.
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


@dataclass(frozen=True, slots=True)
class _Found:
    """Rows of the generation that hold its best; how many were looked at; what no other row's score is above."""

    rows: Rows
    looked_at: int
    bound: float


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Rows of a snapshot among which are the best.

    Attributes:
        rows: ascending.
        looked_at: how many were scored to find them.
        bound: what no other row's score is above.
        plan: how they were found.
    """

    rows: Rows
    looked_at: int
    bound: float
    plan: Plan


def retrieve_rows(
    serving: Serving, request: RankRequest, codes: Codes, stages: Stages, threads: int | None = None
) -> Retrieved:
    """Find the rows to score, of the generation and of what was added to it; for one thread at a time."""
    snapshot = serving.snapshot
    with stages.timed("retrieve"):
        allowed = _allowed(snapshot, request)
        plan = _plan(serving, request, allowed)
        found = _retrieve(serving, plan, request, codes, allowed, threads)
        if len(found.rows) < min(request.depth, allowed.count):  # a graph may not lead to so many of those allowed
            plan = "scan" if allowed.own is None else "matches"
            found = _retrieve(serving, plan, request, codes, allowed, threads)
        added = top_k(snapshot.vectors_added, codes, request.depth, allowed.added, snapshot.longest_added).rows
    rows = np.concatenate([np.sort(found.rows), snapshot.numbered(np.sort(added))])
    return Retrieved(rows, found.looked_at + len(allowed.added), found.bound, plan)


def over_generation(
    serving: Serving, request: RankRequest, codes: Codes, retrieved: Retrieved, stages: Stages
) -> Shortlist:
    """Score the rows that were found, and fetch the candidates of the best."""
    best, cache_available = _score(serving, request, retrieved.rows, codes, stages)
    with stages.timed("fetch"):
        candidates = serving.snapshot.candidates(best.rows)
    places = [
        Place(candidate.id, candidate.text, score, candidate.metadata)
        for candidate, score in zip(candidates, best.scores.tolist(), strict=True)
    ]
    return Shortlist(
        places,
        _is_exact(best.scores, retrieved.bound, request.depth),
        retrieved.looked_at,
        cache_available=cache_available,
        plan=retrieved.plan,
    )


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


def _plan(serving: Serving, request: RankRequest, allowed: _Allowed) -> Plan:
    """An index is asked where that is cheaper than to score every row allowed, and the answer may be inexact."""
    scans = serving.generation.index is None or request.exact
    if allowed.own is None:
        return "scan" if scans else "index"
    few = max(FEW_MATCHES, FEW_OF_ALL * serving.generation.manifest.count)
    return "matches" if scans or len(allowed.own) <= few else "selector"


def _retrieve(
    serving: Serving, plan: Plan, request: RankRequest, codes: Codes, allowed: _Allowed, threads: int | None
) -> _Found:
    """Rows among which are the generation's best, by as many as are asked for."""
    if not allowed.count:
        return _Found(np.empty(0, np.int64), 0, -np.inf)
    matrix, index, longest = serving.loaded.vectors.matrix(), serving.generation.index, serving.loaded.longest
    if plan == "scan":
        return _scanned(top_k(matrix, codes, request.depth, None, longest, allowed.dropped), allowed)
    if plan == "matches" or index is None:
        return _scanned(top_k(matrix, codes, request.depth, allowed.own, longest), allowed)
    return _searched(index, request, codes, allowed, threads)


def _scanned(best: TopK, allowed: _Allowed) -> _Found:
    return _Found(best.rows, allowed.count, -np.inf)


def _searched(
    index: CandidateIndex, request: RankRequest, codes: Codes, allowed: _Allowed, threads: int | None
) -> _Found:
    """The union of what the index finds for each context vector."""
    limit = max(request.retrieve_k, request.depth)
    if allowed.own is None:
        found = retrieve(index, codes, limit, exclude=allowed.dropped, threads=threads)
    else:
        only = np.zeros(index.count, bool)
        only[allowed.own] = True
        found = retrieve(index, codes, limit, only=only, threads=threads)
    return _Found(found.rows, len(found.rows), found.bound)


def _score(serving: Serving, request: RankRequest, rows: Rows, codes: Codes, stages: Stages) -> tuple[TopK, bool]:
    """Score rows (ascending) by their vectors as the store has them now, which is where damage is noticed."""
    with stages.timed("fetch"):
        gathered = serving.gather(rows, request.budget)
    with stages.timed("score"):
        found = top_k(gathered.vectors, codes, request.depth)
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
