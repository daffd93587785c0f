"""Sources of the candidates' vectors: the generation's own matrix, or its copy in Redis.

Both hold the same bytes, so scores do not depend on the source. Vectors that Redis lacks, or that are damaged there,
are read from the matrix. A replica without the matrix's file holds a copy in memory.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import StoreUnavailable
from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.vectors.encoder import rounded, rounded_all
from polyrank.index_builder.vectors.late import LocalLateRows, each_of
from polyrank.index_builder.vectors.redis import RedisEmbeddings
from polyrank.model.representations import Representations
from polyrank.service.caching.redis_server import Budget
from polyrank.service.caching.vector_cache import CountCache, RowsCache, VectorCache, known_of

# Texts to what the model makes of them.
EncodeTexts = Callable[[list[str]], Representations]

# So many candidates' rows the model makes in passing, on a thread that others wait for; each next request makes more.
MOST_MADE = 32

log = logging.getLogger(__name__)


class Gathered(NamedTuple):
    """Vectors (N, D) in the store's dtype, and whether the cache in front of them answered."""

    vectors: NDArray[Any]
    cache_available: bool


class GatheredRows(NamedTuple):
    """Rows (R, D2) for a second stage in the store's dtype, how many each candidate has, (N,), and the same."""

    rows: NDArray[Any]
    counts: NDArray[np.int64]
    cache_available: bool


class CandidateVectors(Protocol):
    """The vectors of one generation, by row."""

    are_here: bool  # whether they are read on this machine alone

    def gather(self, rows: NDArray[np.int64], budget: Budget) -> Gathered:
        """Return the vectors of rows, in the order asked, within the request's budget for Redis."""

    def late(self, rows: NDArray[np.int64], budget: Budget) -> GatheredRows:
        """Return what is kept for the second stage, which the generation has; arguments as `gather`."""

    def matrix(self) -> NDArray[Any]:
        """Return all vectors, (N, D), for a scan."""


class MatrixVectors:
    """Vectors from the generation's memory-mapped matrix."""

    are_here = True

    def __init__(self, generation: Generation, count: CountCache) -> None:
        self._generation = generation
        self._count = count

    def gather(self, rows: NDArray[np.int64], budget: Budget) -> Gathered:
        """Return the vectors of rows, in the order asked."""
        self._count("matrix", "hit", len(rows))
        return Gathered(self._generation.embeddings.gather(rows), True)

    def late(self, rows: NDArray[np.int64], budget: Budget) -> GatheredRows:
        """Return the rows of the second stage, in the order asked."""
        self._count("matrix", "hit", len(rows))
        return GatheredRows(*_late_of(self._generation).gather(rows), True)

    def matrix(self) -> NDArray[Any]:
        """Return all vectors, memory-mapped."""
        return self._generation.embeddings.matrix


class RedisVectors:
    """Vectors from the copy in Redis; those that it lacks come from the matrix on disk, or from a copy in memory.

    That copy is made here, once, if the generation has no index (then every request scans), or the matrix's file is
    missing.

    Args:
        generation: open.
        cache: the copy in Redis, by id.
        rows: that of the rows for a second stage; None: there is none.
        open_loader: opens the same copy, with timeouts fit for reading everything once.
        encode: the generation's model, for vectors that neither Redis nor the matrix holds.
        count: counts each vector asked for.

    Raises:
        BuildError: the model gave a vector that is not finite.
    """

    are_here = False

    def __init__(
        self,
        generation: Generation,
        cache: VectorCache,
        rows: RowsCache | None,
        open_loader: Callable[[], RedisEmbeddings],
        encode: EncodeTexts,
        count: CountCache,
    ) -> None:
        self._generation, self._cache, self._rows = generation, cache, rows
        self._encode, self._count = encode, count
        self._loaded: NDArray[Any] | None = None
        if generation.index is None or not generation.embeddings.has_matrix:
            with closing(open_loader()) as loader:
                self._loaded = self._load(loader)

    def gather(self, rows: NDArray[np.int64], budget: Budget) -> Gathered:
        """Fetch the vectors of rows, in the order asked."""
        ids = [candidate.id for candidate in self._generation.candidates.rows(rows)]
        vectors, known, available = self._cache.read(ids, budget)
        gaps = np.flatnonzero(~known)
        if len(gaps):
            vectors[gaps] = np.take(self.matrix(), rows[gaps], axis=0)
            self._count("matrix", "hit", len(gaps))
        return Gathered(vectors, available)

    def late(self, rows: NDArray[np.int64], budget: Budget) -> GatheredRows:
        """Fetch the rows of the second stage; those that Redis lacks come from the disk, or else from the model.

        Raises:
            StoreUnavailable: nobody has them: Redis does not answer, or has lost more than the model makes in passing.
        """
        assert self._rows is not None, "the generation has a second stage"
        candidates, stored = self._generation.candidates.rows(rows), _late_of(self._generation)
        found, available = self._rows.read([candidate.id for candidate in candidates], budget)
        gaps = [at for at, each in enumerate(found) if each is None]
        if gaps and stored.has_rows:
            self._fill(found, gaps, *stored.gather(rows[gaps]))
            self._count("matrix", "hit", len(gaps))
        elif gaps:
            if available:
                self._make(found, gaps[:MOST_MADE], candidates)
            if not available or len(gaps) > MOST_MADE:
                raise StoreUnavailable("rows of the second stage are neither in Redis nor on the disk")
        whole = [each for each in found if each is not None]
        counts = np.fromiter(map(len, whole), np.int64, len(whole))
        empty = np.empty((0, stored.late.dim), self._generation.embeddings.dtype)
        return GatheredRows(np.concatenate([empty, *whole]), counts, available)

    def _make(self, found: list[NDArray[Any] | None], gaps: list[int], candidates: Sequence[Candidate]) -> None:
        """Have the model make what is missing, and keep it."""
        assert self._rows is not None, "the generation has a second stage"
        made = rounded_all(self._encode([candidates[at].text for at in gaps]), self._generation.manifest.dtype)
        if made.late is not None and made.counts is not None:
            self._fill(found, gaps, made.late, made.counts)
            self._rows.write([candidates[at].id for at in gaps], each_of(made.late, made.counts))

    @staticmethod
    def _fill(found: list[NDArray[Any] | None], gaps: list[int], rows: NDArray[Any], counts: NDArray[np.int64]) -> None:
        for at, each in zip(gaps, each_of(rows, counts), strict=True):
            found[at] = each

    def matrix(self) -> NDArray[Any]:
        """Return all vectors: the copy in memory, else memory-mapped."""
        return self._generation.embeddings.matrix if self._loaded is None else self._loaded

    def _load(self, loader: RedisEmbeddings) -> NDArray[Any] | None:
        """Fetch every vector once; None where Redis does not answer and the matrix can be scanned instead."""
        table, own = self._generation.candidates, self._generation.embeddings
        matrix = np.empty((len(table), own.dim), own.dtype)
        encoded = end = 0
        for ids, texts in table.batches():
            start, end = end, end + len(ids)
            try:
                fetched = loader.get_many(ids)
                matrix[start:end], known = fetched.vectors, known_of(fetched.status, self._count, "redis")
            except StoreUnavailable as error:
                self._count("redis", "error", len(ids))
                log.warning("redis is unavailable; doing without", extra={"fields": {"why": error}})
                if own.has_matrix:
                    return None
                known = np.zeros(len(ids), bool)
            gaps = np.flatnonzero(~known)
            if own.has_matrix:
                matrix[start + gaps] = own.gather(start + gaps)
                self._count("matrix", "hit", len(gaps))
            elif len(gaps):
                vectors = self._encode([texts[at] for at in gaps.tolist()])
                matrix[start + gaps] = rounded(vectors.first, self._generation.manifest.dtype)
                encoded += len(gaps)
        if encoded:
            log.warning("vectors that redis lacks were encoded", extra={"fields": {"count": encoded}})
        return matrix


def _late_of(generation: Generation) -> LocalLateRows:
    late = generation.embeddings.late
    assert late is not None, "the generation has a second stage"
    return late
