"""From encoded context to shortlist.

Ranked are the candidates sent along, or the whole generation, or what its index finds in it.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.faiss_index import CandidateIndex, union
from index_builder.filters import matching_rows
from model.topk import TopK, top_k
from service.errors import DeadlineExceeded, InferenceFailed, UnknownCandidates
from service.serving import Serving
from service.text_cache import Cached
from service.values import Given, Place, RankRequest, Shortlist, Stages

Rows = NDArray[np.int64]
Codes = NDArray[np.float32]

# Rounding of the index's inner products against ours, relative to the score: math.md, section 3.
CERTIFICATE_MARGIN = 1e-4


@dataclass(frozen=True, slots=True)
class Encoded:
    """The vectors of a request.

    Attributes:
        codes: context vectors (M, D).
        texts: of the texts sent, (T, D) in the store's dtype.
        cut: texts that lost their end.
        cache_available: the cache of texts answered, or there was nothing to ask it.
    """

    codes: Codes
    texts: NDArray[Any]
    cut: int
    cache_available: bool


def encode(serving: Serving, request: RankRequest, context: list[int], stages: Stages) -> Encoded:
    """Encode the context and the candidates that came as texts.

    Raises:
        DeadlineExceeded: the time was over before all candidates were encoded.
        InferenceFailed: a vector is not finite.
    """
    own = [given.text for given in _kept(request) if given.text is not None]
    with stages.timed("tokenize"):
        tokens, cut = serving.ranker.tokenize_candidates(own) if own else ([], 0)
    with stages.timed("fetch"):
        texts, known, available = _cached(serving, own)
    new = np.flatnonzero(~known)
    with stages.timed("encode"):
        codes = serving.ranker.encode_contexts([context])[0]
        if len(new):
            wanted = [tokens[at] for at in new]
            # A fresh vector is rounded as a stored one is, so that both score alike.
            texts[new] = serving.ranker.encode_candidates(wanted, lambda _: _check_time(request.deadline))
    if not (np.isfinite(codes).all() and np.isfinite(texts).all()):
        raise InferenceFailed("a vector is not finite")
    if serving.texts is not None:
        serving.texts.write([own[at] for at in new], texts[new])
    return Encoded(codes, texts, cut, available)


def _cached(serving: Serving, texts: list[str]) -> Cached:
    """What is known of texts without encoding them."""
    if serving.texts is not None:
        return serving.texts.read(texts)
    empty = np.empty((len(texts), serving.ranker.dim), serving.generation.store.matrix.dtype)
    return Cached(empty, np.zeros(len(texts), bool), True)


def _check_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise DeadlineExceeded("encoding the candidates")


def _kept(request: RankRequest) -> list[Given]:
    """The candidates sent, without those to exclude."""
    excluded = set(request.exclude_ids)
    return [given for given in request.candidates or () if given.id not in excluded]


def over_given(serving: Serving, request: RankRequest, encoded: Encoded, stages: Stages) -> Shortlist:
    """Rank the candidates that were sent.

    Raises:
        UnknownCandidates: they are all ids, and the generation holds none of them.
    """
    excluded = set(request.exclude_ids)
    sent = [(at, given) for at, given in enumerate(request.candidates or ()) if given.id not in excluded]
    by_id = [given.id for _, given in sent if given.text is None and given.id is not None]
    with stages.timed("fetch"):
        rows = serving.generation.store.ids.rows(by_id)
        gathered = serving.vectors.gather(rows[rows >= 0])
    row_of = dict(zip(by_id, rows.tolist(), strict=True))
    missing = [each for each, row in row_of.items() if row < 0]
    known = [(at, given) for at, given in sent if given.text is not None or row_of[given.id or ""] >= 0]
    if missing and not known:
        raise UnknownCandidates(missing)
    is_text = np.array([given.text is not None for _, given in known], dtype=bool)
    with stages.timed("score"):
        matrix = np.empty((len(known), serving.ranker.dim), encoded.texts.dtype)
        matrix[is_text] = encoded.texts
        matrix[~is_text] = gathered.vectors
        best = top_k(matrix, encoded.codes, request.depth)
    with stages.timed("fetch"):
        places = _places_of_given(serving, [known[at] for at in best.rows.tolist()], row_of, best)
    available = gathered.cache_available and encoded.cache_available
    return Shortlist(places, True, len(known), missing, encoded.cut, available)


def _places_of_given(
    serving: Serving, chosen: list[tuple[int, Given]], row_of: dict[str, int], best: TopK
) -> list[Place]:
    stored_ids = [given.id for _, given in chosen if given.text is None and given.id is not None]
    stored = iter(serving.generation.candidates.rows([row_of[each] for each in stored_ids]))
    places = []
    for (at, given), score in zip(chosen, best.scores.tolist(), strict=True):
        if given.text is not None:
            places.append(Place(given.id, given.text, score, index=at))
        else:
            candidate = next(stored)
            places.append(Place(candidate.id, candidate.text, score, candidate.metadata, index=at))
    return places


def over_generation(
    serving: Serving, request: RankRequest, encoded: Encoded, stages: Stages, threads: int | None = None
) -> Shortlist:
    """Retrieve from the generation: by a scan where it has no index or the request asks for one, else by the index."""
    index = serving.generation.index
    excluded = _excluded_rows(serving, request)
    if index is None or request.exact or request.filter is not None:
        found = _scan(serving, request, encoded.codes, excluded, stages)
    else:
        found = _search(serving, index, request, encoded.codes, excluded, stages, threads)
    with stages.timed("fetch"):
        candidates = serving.generation.candidates.rows(found.best.rows)
    places = [
        Place(candidate.id, candidate.text, score, candidate.metadata)
        for candidate, score in zip(candidates, found.best.scores.tolist(), strict=True)
    ]
    return Shortlist(places, found.exact, found.scored, cache_available=found.cache_available)


@dataclass(frozen=True, slots=True)
class _Found:
    """The best rows of a generation, and how they were found."""

    best: TopK
    exact: bool
    scored: int
    cache_available: bool = True


def _excluded_rows(serving: Serving, request: RankRequest) -> Rows:
    rows = serving.generation.store.ids.rows(request.exclude_ids)
    return np.unique(rows[rows >= 0])


def _scan(serving: Serving, request: RankRequest, codes: Codes, excluded: Rows, stages: Stages) -> _Found:
    """Score every row, or every row that the filter lets through."""
    matrix = serving.vectors.matrix()
    with stages.timed("retrieve"):
        if request.filter is None:
            scanned = len(matrix)
            # So many more that the excluded ones can be dropped: cheaper than to gather all other rows.
            rows = top_k(matrix, codes, request.depth + len(excluded), longest=serving.longest).rows
            rows = rows[~np.isin(rows, excluded)][: request.depth]
        else:
            rows = matching_rows(serving.generation.candidates, request.filter)
            rows = np.setdiff1d(rows, excluded, assume_unique=True)
            scanned = len(rows)
            rows = top_k(matrix, codes, request.depth, rows, serving.longest).rows
    best, cache_available = _score(serving, np.sort(rows), codes, request.depth, stages)
    return _Found(best, True, scanned, cache_available)


def _score(serving: Serving, rows: Rows, codes: Codes, k: int, stages: Stages) -> tuple[TopK, bool]:
    """Score rows (ascending) by their vectors as the store has them now, which is where damage is noticed."""
    with stages.timed("fetch"):
        gathered = serving.vectors.gather(rows)
    with stages.timed("score"):
        found = top_k(gathered.vectors, codes, k)
    return TopK(rows[found.rows], found.scores), gathered.cache_available


def _search(
    serving: Serving,
    index: CandidateIndex,
    request: RankRequest,
    codes: Codes,
    excluded: Rows,
    stages: Stages,
    threads: int | None,
) -> _Found:
    """Score the union of what the index finds for each context vector."""
    available = serving.generation.manifest.count - len(excluded)
    limit = min(max(request.retrieve_k, request.depth), available)
    if limit <= 0:
        return _Found(TopK(np.empty(0, np.int64), np.empty(0, np.float32)), True, 0)
    with stages.timed("retrieve"):
        rows, products = index.search(codes, limit, excluded, threads)
        chosen = union(rows, products, limit)
    best, cache_available = _score(serving, np.sort(chosen), codes, request.depth, stages)
    # Only an index that misses nothing can certify. With every list `limit` long, a row outside the union has no inner
    # product above the worst of those inside, and a score is never above its largest inner product.
    exact = serving.generation.manifest.index.kind == "flat" and (
        limit == available or _certified(best.scores, products[rows == chosen[-1]].max(), request.depth)
    )
    return _Found(best, exact, len(chosen), cache_available)


def _certified(scores: NDArray[np.float32], bound: float, k: int) -> bool:
    """Whether the k-th score is above whatever was not scored.

    Source: docs/architecture.md, "Scores".
    """
    if len(scores) < k:
        return False
    last = float(scores[-1])
    return last > float(bound) + CERTIFICATE_MARGIN * max(1.0, abs(last))
