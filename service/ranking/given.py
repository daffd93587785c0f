"""Ranking candidates that were sent along, as texts or by their ids (retrieval.py finds others)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.vectors.codec import DTYPES, rounded
from polyrank.model.search.additions import Additions
from polyrank.model.search.topk import TopK, longest_row, top_k
from polyrank.service.caching.vector_cache import Cached
from polyrank.service.errors import InferenceFailed, UnknownCandidates
from polyrank.service.live.serving import Serving
from polyrank.service.ranking.stages import Timings
from polyrank.service.ranking.values import Given, Ranked, RankedCandidate, RankRequest
from polyrank.service.ranking.words import SentWords


class TextVectors:
    """Vectors of the candidates that came as texts: those that a cache knows, and those that the model makes.

    Attributes:
        vectors: (T, D) in the store's dtype; rows of texts that are not known yet have no meaning.
        known: whose vector is there, (T,).
        new: positions of the texts that no cache knew, ascending.
        cache_available: the cache of texts answered, or there was nothing to ask it.
        resumes: a cache has room for all of them, so the same request goes on where this one ends.
    """

    def __init__(self, serving: Serving, texts: list[str], cached: Cached) -> None:
        self._cache, self._dtype = serving.texts, serving.generation.manifest.dtype
        self.texts, (self.vectors, self.known, self.cache_available) = texts, cached
        self.new = np.flatnonzero(~self.known)
        self.resumes = self._cache is not None and self._cache.holds(len(texts))

    @property
    def new_texts(self) -> list[str]:
        """The texts that no cache knew."""
        return [self.texts[at] for at in self.new.tolist()]

    @property
    def made(self) -> int:
        """How many of the new texts have been encoded by now."""
        return int(self.known[self.new].sum())

    def keep(self, positions: list[int], outputs: list[NDArray[np.float32]]) -> None:
        """Take in vectors (D,) that the model made, by their positions in `new`, and cache them.

        Raises:
            InferenceFailed: a vector is not finite in the store's dtype.
        """
        rows = self.new[positions]
        try:
            # A new vector is rounded as a stored one is, so that both score alike.
            self.vectors[rows] = rounded(np.stack(outputs), self._dtype)
        except BuildError as error:
            raise InferenceFailed(str(error)) from error
        self.known[rows] = True
        if self._cache is not None:
            self._cache.write([self.texts[at] for at in rows.tolist()], self.vectors[rows])


def look_up(serving: Serving, request: RankRequest, timings: Timings) -> TextVectors:
    """Fetch the vectors of the texts that were sent, as far as a cache knows them."""
    texts = [given.text for _, given in _kept(request) if given.text is not None]
    with timings.timed("fetch"):
        if serving.texts is not None:
            return TextVectors(serving, texts, serving.texts.read(texts, request.budget))
        empty = np.empty((len(texts), serving.ranker.dim), DTYPES[serving.generation.manifest.dtype])
        return TextVectors(serving, texts, Cached(empty, np.zeros(len(texts), bool), True))


def rank(
    serving: Serving,
    request: RankRequest,
    codes: NDArray[np.float32],
    sent_texts: TextVectors,
    words: SentWords | None,
    timings: Timings,
) -> Ranked:
    """Rank the candidates that were sent, by the context vectors `codes` (M, D); every text's vector is known.

    words: None where they do not count.

    Raises:
        UnknownCandidates: only ids were sent, and the generation holds none of them.
    """
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
        matrix = np.empty((len(known), serving.ranker.dim), sent_texts.vectors.dtype)
        matrix[is_text] = sent_texts.vectors
        matrix[~is_text] = gathered.vectors
        longest = max(serving.longest, longest_row(sent_texts.vectors)) if by_id else None
        additions = _additions(serving, words, is_text, rows[rows >= 0])
        best = top_k(matrix, codes, request.depth, longest=longest, additions=additions)
    with timings.timed("fetch"):
        lexical = None if additions is None else additions.values[best.rows].tolist()
        places = _places(serving, [known[at] for at in best.rows.tolist()], row_of, best, lexical)
    ranked = Ranked(places=places, exact=True, scored=len(known), missing_ids=missing)
    return ranked if gathered.cache_available and sent_texts.cache_available else ranked.without("cache_unavailable")


def _additions(
    serving: Serving, words: SentWords | None, is_text: NDArray[np.bool_], rows: NDArray[np.int64]
) -> Additions | None:
    """Put the values of texts, and of the rows of the other candidates, in the order of the candidates."""
    if words is None or serving.generation.words is None:
        return None
    values = np.empty(len(is_text), np.float32)
    values[is_text] = words.texts
    if words.pool is not None:
        values[~is_text] = words.pool.of(rows)
    return Additions(serving.generation.words.evidence.late_weight, values)


def _kept(request: RankRequest) -> list[tuple[int, Given]]:
    """Return the candidates sent, without those to exclude, and the position of each in the request."""
    excluded = set(request.exclude_ids)
    return [(at, given) for at, given in enumerate(request.candidates or ()) if given.id not in excluded]


def _places(
    serving: Serving,
    chosen: list[tuple[int, Given]],
    row_of: dict[str, int],
    best: TopK,
    lexical: list[float] | None,
) -> list[RankedCandidate]:
    stored_ids = [given.id for _, given in chosen if given.text is None and given.id is not None]
    stored = iter(serving.snapshot.candidates(np.array([row_of[stored_id] for stored_id in stored_ids], np.int64)))
    places = []
    values: Sequence[float | None] = lexical or [None] * len(chosen)
    for (at, given), score, value in zip(chosen, best.scores.tolist(), values, strict=True):
        if given.text is not None:
            places.append(RankedCandidate(given.id, given.text, score, index=at, lexical=value))
        else:
            candidate = next(stored)
            metadata = candidate.metadata
            places.append(RankedCandidate(candidate.id, candidate.text, score, metadata, index=at, lexical=value))
    return places
