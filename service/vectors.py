"""Where the candidates' vectors come from: the generation's own matrix, or its copy in Redis with the matrix behind it.

Scores do not depend on the source: both hold the same bytes, and what Redis lacks or damaged is read from the matrix.
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from index_builder.errors import StoreUnavailable
from index_builder.generation import Generation
from index_builder.store import CORRUPT, HIT, MISS, EmbeddingStore
from service.budget import Budget
from service.redis_tier import CountCache
from service.vector_cache import VectorCache

log = logging.getLogger(__name__)


class Gathered(NamedTuple):
    """Vectors (N, D) in the store's dtype, and whether the cache answered for them."""

    vectors: NDArray[Any]
    cache_available: bool


class Vectors(Protocol):
    """The vectors of one generation, by row."""

    def gather(self, rows: NDArray[np.int64], budget: Budget) -> Gathered:
        """Fetch the vectors of rows, in the order asked, within the request's budget for Redis."""

    def matrix(self) -> NDArray[Any]:
        """All vectors, (N, D), for a scan."""


class MatrixVectors:
    """Vectors from the generation's memory-mapped matrix."""

    def __init__(self, generation: Generation, count: CountCache) -> None:
        self._generation = generation
        self._count = count

    def gather(self, rows: NDArray[np.int64], budget: Budget) -> Gathered:
        """Fetch the vectors of rows, in the order asked."""
        self._count("matrix", "hit", len(rows))
        return Gathered(self._generation.store.gather(rows), True)

    def matrix(self) -> NDArray[Any]:
        """All vectors, memory-mapped."""
        return self._generation.store.matrix


class RedisVectors:
    """Vectors from the copy in Redis; the matrix on disk stands in for what Redis lacks.

    Args:
        generation: whose vectors.
        cache: its copy, by id.
        open_loader: opens the same copy, with timeouts fit for reading everything once.
        count: told of each vector asked for: tier, result, how many.
    """

    def __init__(
        self, generation: Generation, cache: VectorCache, open_loader: Callable[[], EmbeddingStore], count: CountCache
    ) -> None:
        self._generation, self._cache, self._count = generation, cache, count
        # A generation without an index is scanned: what a scan reads is fetched here, once.
        self._matrix = self._load(open_loader()) if generation.index is None else None

    def gather(self, rows: NDArray[np.int64], budget: Budget) -> Gathered:
        """Fetch the vectors of rows, in the order asked."""
        ids = [candidate.id for candidate in self._generation.candidates.rows(rows)]
        vectors, known, available = self._cache.read(ids, budget)
        self._fill(vectors, np.flatnonzero(~known), rows)
        return Gathered(vectors, available)

    def matrix(self) -> NDArray[Any]:
        """All vectors: as read from Redis where the generation is scanned, else memory-mapped."""
        return self._generation.store.matrix if self._matrix is None else self._matrix

    def _fill(self, vectors: NDArray[Any], gaps: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Take from the matrix what Redis has not given: the vectors at these places of `rows`."""
        if len(gaps):
            vectors[gaps] = self._generation.store.gather(rows[gaps])
            self._count("matrix", "hit", len(gaps))

    def _load(self, loader: EmbeddingStore) -> NDArray[Any] | None:
        """Read every vector once; None when Redis does not answer."""
        table = self._generation.candidates
        try:
            parts: list[NDArray[Any]] = []
            start = 0
            for ids, _ in table.batches():
                parts.append(self._loaded(loader, ids, np.arange(start, start + len(ids))))
                start += len(ids)
            return np.concatenate(parts)
        except StoreUnavailable as error:
            self._count("redis", "error", len(table))
            log.warning("redis is unavailable; scanning the generation's own matrix", extra={"fields": {"why": error}})
            return None
        finally:
            loader.close()

    def _loaded(self, loader: EmbeddingStore, ids: list[str], rows: NDArray[np.int64]) -> NDArray[Any]:
        vectors, status = (fetched := loader.get_many(ids)).vectors, fetched.status
        for result, code in (("hit", HIT), ("miss", MISS), ("corrupt", CORRUPT)):
            self._count("redis", result, int((status == code).sum()))
        self._fill(vectors, np.flatnonzero(status != HIT), rows)
        return vectors
