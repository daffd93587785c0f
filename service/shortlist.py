"""From a request to vectors, and from candidates that were sent along to a shortlist (retrieval.py finds others)."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.topk import TopK, top_k
from service.errors import DeadlineExceeded, InferenceFailed, UnknownCandidates
from service.serving import Serving
from service.text_cache import Cached
from service.values import Given, Place, RankRequest, Shortlist, Stages

Codes = NDArray[np.float32]


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
    if serving.loaded.texts is not None:
        serving.loaded.texts.write([own[at] for at in new], texts[new])
    return Encoded(codes, texts, cut, available)


def _cached(serving: Serving, texts: list[str]) -> Cached:
    """What is known of texts without encoding them."""
    if serving.loaded.texts is not None:
        return serving.loaded.texts.read(texts)
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
        rows = serving.snapshot.rows(by_id)
        gathered = serving.gather(rows[rows >= 0])
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
    stored = iter(serving.snapshot.candidates(np.array([row_of[each] for each in stored_ids], np.int64)))
    places = []
    for (at, given), score in zip(chosen, best.scores.tolist(), strict=True):
        if given.text is not None:
            places.append(Place(given.id, given.text, score, index=at))
        else:
            candidate = next(stored)
            places.append(Place(candidate.id, candidate.text, score, candidate.metadata, index=at))
    return places
