"""Ranking candidates that were sent along, as texts or by their ids (retrieval.py finds others)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.vectors.codec import DTYPES, rounded
from polyrank.model.search.topk import TopK, top_k
from polyrank.model.text.assembly import Truncation
from polyrank.service.errors import InferenceFailed, UnknownCandidates
from polyrank.service.live.models import LateScorer
from polyrank.service.live.serving import Serving
from polyrank.service.ranking.stages import Timings
from polyrank.service.ranking.values import Given, Ranked, RankedCandidate, RankRequest


class Tokenized(NamedTuple):
    """Token ids of the context and of each text that was sent, and what did not fit."""

    context: list[int]
    texts: list[str]
    of_texts: list[list[int]]
    truncation: Truncation


@dataclass(frozen=True, slots=True)
class TextVectors:
    """Vectors of the candidates that came as texts.

    Attributes:
        vectors: (T, D) in the store's dtype; rows of texts that no cache knows have no meaning yet.
        new: positions of those texts, ascending.
        cache_available: the cache of texts answered, or there was nothing to ask it.
    """

    texts: list[str]
    vectors: NDArray[Any]
    new: NDArray[np.int64]
    cache_available: bool

    @property
    def new_texts(self) -> list[str]:
        """The texts that no cache knows."""
        return [self.texts[at] for at in self.new]


def tokenize(ranker: LateScorer, request: RankRequest) -> Tokenized:
    """Tokenise the context and the texts that were sent."""
    context, truncation = ranker.tokenize_context(request.conversation)
    texts = [given.text for _, given in _kept(request) if given.text is not None]
    of_texts, cut = ranker.tokenize_candidates(texts)
    return Tokenized(context, texts, of_texts, replace(truncation, candidates=cut))


def look_up(serving: Serving, request: RankRequest, texts: list[str], timings: Timings) -> TextVectors:
    """Fetch the vectors of texts that a cache knows."""
    with timings.timed("fetch"):
        if serving.texts is None:
            empty = np.empty((len(texts), serving.ranker.dim), DTYPES[serving.generation.manifest.dtype])
            return TextVectors(texts, empty, np.arange(len(texts)), True)
        vectors, known, available = serving.texts.read(texts, request.budget)
        return TextVectors(texts, vectors, np.flatnonzero(~known), available)


def rank(
    serving: Serving,
    request: RankRequest,
    codes: NDArray[np.float32],
    found: TextVectors,
    encoded: Sequence[NDArray[np.float32]],
    timings: Timings,
) -> Ranked:
    """Rank the candidates that were sent, by the context vectors `codes` (M, D).

    `found` are the texts' vectors, as far as a cache knew them, and `encoded` those (D,) of the other texts.

    Raises:
        InferenceFailed: a vector is not finite in the store's dtype.
        UnknownCandidates: only ids were sent, and the generation holds none of them.
    """
    _complete(serving, found, encoded)
    sent = _kept(request)
    by_id = [given.id for _, given in sent if given.text is None and given.id is not None]
    with timings.timed("fetch"):
        rows = serving.snapshot.rows(by_id)
        gathered = serving.gather(rows[rows >= 0], request.budget)
    row_of = dict(zip(by_id, rows.tolist(), strict=True))
    missing = [candidate_id for candidate_id, row in row_of.items() if row < 0]
    known = [(at, given) for at, given in sent if given.text is not None or row_of[given.id or ""] >= 0]
    if missing and not known:
        raise UnknownCandidates(missing)
    is_text = np.array([given.text is not None for _, given in known], dtype=bool)
    with timings.timed("score"):
        matrix = np.empty((len(known), serving.ranker.dim), found.vectors.dtype)
        matrix[is_text] = found.vectors
        matrix[~is_text] = gathered.vectors
        best = top_k(matrix, codes, request.depth)
    with timings.timed("fetch"):
        places = _places(serving, [known[at] for at in best.rows.tolist()], row_of, best)
    ranked = Ranked(places=places, exact=True, scored=len(known), missing_ids=missing)
    return ranked if gathered.cache_available and found.cache_available else ranked.without("cache_unavailable")


def _kept(request: RankRequest) -> list[tuple[int, Given]]:
    """Return the candidates sent, without those to exclude, and the position of each in the request."""
    excluded = set(request.exclude_ids)
    return [(at, given) for at, given in enumerate(request.candidates or ()) if given.id not in excluded]


def _complete(serving: Serving, found: TextVectors, encoded: Sequence[NDArray[np.float32]]) -> None:
    """Fill in the vectors that no cache knew, and cache them."""
    if not encoded:
        return
    try:
        # A new vector is rounded as a stored one is, so that both score alike.
        found.vectors[found.new] = rounded(np.stack(encoded), serving.generation.manifest.dtype)
    except BuildError as error:
        raise InferenceFailed(str(error)) from error
    if serving.texts is not None:
        serving.texts.write(found.new_texts, found.vectors[found.new])


def _places(
    serving: Serving, chosen: list[tuple[int, Given]], row_of: dict[str, int], best: TopK
) -> list[RankedCandidate]:
    stored_ids = [given.id for _, given in chosen if given.text is None and given.id is not None]
    stored = iter(serving.snapshot.candidates(np.array([row_of[stored_id] for stored_id in stored_ids], np.int64)))
    places = []
    for (at, given), score in zip(chosen, best.scores.tolist(), strict=True):
        if given.text is not None:
            places.append(RankedCandidate(given.id, given.text, score, index=at))
        else:
            candidate = next(stored)
            places.append(RankedCandidate(candidate.id, candidate.text, score, candidate.metadata, index=at))
    return places
