"""Candidates that were sent along: their vectors, and the best of them (retrieval.py finds others)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.vectors.codec import DTYPES, rounded
from polyrank.model.search.topk import TopK, top_k
from polyrank.service.errors import InferenceFailed, UnknownCandidates
from polyrank.service.live.serving import Serving
from polyrank.service.ranking.values import Given, RankedCandidate, RankRequest, Shortlist, Stages

Codes = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Texts:
    """The candidates of a request that came as texts.

    Attributes:
        vectors: (T, D) in the store's dtype; rows of those not known are filled in when they are encoded.
        new: places of those not known.
        cache_available: the cache of texts answered, or there was nothing to ask it.
    """

    vectors: NDArray[Any]
    new: NDArray[np.int64]
    cache_available: bool


def known_texts(serving: Serving, request: RankRequest, texts: list[str], stages: Stages) -> Texts:
    """Look up what need not be encoded."""
    with stages.timed("fetch"):
        if serving.texts is None:
            empty = np.empty((len(texts), serving.ranker.dim), DTYPES[serving.generation.manifest.dtype])
            return Texts(empty, np.arange(len(texts)), True)
        vectors, known, available = serving.texts.read(texts, request.budget)
        return Texts(vectors, np.flatnonzero(~known), available)


def learn(serving: Serving, texts: list[str], known: Texts, fresh: list[NDArray[np.float32]]) -> None:
    """Fill in the vectors (D,) of the texts that were not known, and remember them.

    Raises:
        InferenceFailed: one of them is not finite in the store's dtype.
    """
    if not fresh:
        return
    try:
        # A fresh vector is rounded as a stored one is, so that both score alike.
        known.vectors[known.new] = rounded(np.stack(fresh), serving.generation.manifest.dtype)
    except BuildError as error:
        raise InferenceFailed(str(error)) from error
    if serving.texts is not None:
        serving.texts.write([texts[at] for at in known.new], known.vectors[known.new])


def kept(request: RankRequest) -> list[tuple[int, Given]]:
    """The candidates sent, without those to exclude, and the place of each in the request."""
    excluded = set(request.exclude_ids)
    return [(at, given) for at, given in enumerate(request.candidates or ()) if given.id not in excluded]


def over_given(
    serving: Serving, request: RankRequest, codes: Codes, texts: Texts, cut: int, stages: Stages
) -> Shortlist:
    """Rank the candidates that were sent.

    Args:
        serving: what the ids mean.
        request: what was sent.
        codes: context vectors (M, D).
        texts: of the candidates that came as texts; all of them are known by now.
        cut: how many of the texts lost their end.
        stages: told how long each took.

    Raises:
        UnknownCandidates: they are all ids, and the generation holds none of them.
    """
    sent = kept(request)
    by_id = [given.id for _, given in sent if given.text is None and given.id is not None]
    with stages.timed("fetch"):
        rows = serving.snapshot.rows(by_id)
        gathered = serving.gather(rows[rows >= 0], request.budget)
    row_of = dict(zip(by_id, rows.tolist(), strict=True))
    missing = [each for each, row in row_of.items() if row < 0]
    known = [(at, given) for at, given in sent if given.text is not None or row_of[given.id or ""] >= 0]
    if missing and not known:
        raise UnknownCandidates(missing)
    is_text = np.array([given.text is not None for _, given in known], dtype=bool)
    with stages.timed("score"):
        matrix = np.empty((len(known), serving.ranker.dim), texts.vectors.dtype)
        matrix[is_text] = texts.vectors
        matrix[~is_text] = gathered.vectors
        best = top_k(matrix, codes, request.depth)
    with stages.timed("fetch"):
        places = _places_of_given(serving, [known[at] for at in best.rows.tolist()], row_of, best)
    available = gathered.cache_available and texts.cache_available
    return Shortlist(places, True, len(known), missing, cut, available)


def _places_of_given(
    serving: Serving, chosen: list[tuple[int, Given]], row_of: dict[str, int], best: TopK
) -> list[RankedCandidate]:
    stored_ids = [given.id for _, given in chosen if given.text is None and given.id is not None]
    stored = iter(serving.snapshot.candidates(np.array([row_of[each] for each in stored_ids], np.int64)))
    places = []
    for (at, given), score in zip(chosen, best.scores.tolist(), strict=True):
        if given.text is not None:
            places.append(RankedCandidate(given.id, given.text, score, index=at))
        else:
            candidate = next(stored)
            places.append(RankedCandidate(candidate.id, candidate.text, score, candidate.metadata, index=at))
    return places
