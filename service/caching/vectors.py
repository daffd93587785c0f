"""Sources of the candidates' vectors: the generation's own matrix, or its copy in Redis.

Both hold the same bytes, so scores do not depend on the source. Vectors that Redis lacks, or that are damaged there,
are read from the matrix. A replica without the matrix's file holds a copy in memory.
"""

import logging
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import StoreUnavailable
from polyrank.index_builder.store.generation import Generation
from polyrank.index_builder.vectors.codec import rounded
from polyrank.index_builder.vectors.redis import RedisEmbeddings
from polyrank.service.caching.redis_server import Budget
from polyrank.service.caching.vector_cache import CountCache, VectorCache, known_of

# Encodes texts, (N, D).
EncodeTexts = Callable[[list[str]], NDArray[np.floating]]

log = logging.getLogger(__name__)


class Gathered(NamedTuple):
    """Vectors (N, D) in the store's dtype, and whether the cache in front of them answered."""

    vectors: NDArray[Any]
    cache_available: bool


class CandidateVectors(Protocol):
    """The vectors of one generation, by row."""

    are_here: bool  # whether they are read on this machine alone

    def gather(self, rows: NDArray[np.int64], budget: Budget) -> Gathered:
        """Return the vectors of rows, in the order asked, within the request's budget for Redis."""

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
        open_loader: Callable[[], RedisEmbeddings],
        encode: EncodeTexts,
        count: CountCache,
    ) -> None:
        self._generation, self._cache, self._encode, self._count = generation, cache, encode, count
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
                matrix[start:end], known = fetched.vectors, known_of(fetched, self._count, "redis")
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
                matrix[start + gaps] = rounded(vectors, self._generation.manifest.dtype)
                encoded += len(gaps)
        if encoded:
            log.warning("vectors that redis lacks were encoded", extra={"fields": {"count": encoded}})
        return matrix
