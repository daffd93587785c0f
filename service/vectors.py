"""Where the candidates' vectors come from: the generation's own matrix, or its copy in Redis with the matrix behind it.

Scores do not depend on the source: both hold the same bytes, and what Redis lacks or damaged is read from the matrix.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from index_builder.errors import StoreUnavailable
from index_builder.generation import Generation
from index_builder.store import CORRUPT, HIT, MISS, EmbeddingStore
from service.backoff import BackOff

CountCache = Callable[[str, str, int], None]

log = logging.getLogger(__name__)


class Gathered(NamedTuple):
    """Vectors (N, D) in the store's dtype, and whether the cache answered for them."""

    vectors: NDArray[Any]
    cache_available: bool


class Vectors(Protocol):
    """The vectors of one generation, by row."""

    def gather(self, rows: NDArray[np.int64]) -> Gathered:
        """Fetch the vectors of rows, in the order asked."""

    def matrix(self) -> NDArray[Any]:
        """All vectors, (N, D), for a scan."""

    def close(self) -> None:
        """Let go of connections."""


class MatrixVectors:
    """Vectors from the generation's memory-mapped matrix."""

    def __init__(self, generation: Generation, count: CountCache) -> None:
        self._generation = generation
        self._count = count

    def gather(self, rows: NDArray[np.int64]) -> Gathered:
        """Fetch the vectors of rows, in the order asked."""
        self._count("matrix", "hit", len(rows))
        return Gathered(self._generation.store.gather(rows), True)

    def matrix(self) -> NDArray[Any]:
        """All vectors, memory-mapped."""
        return self._generation.store.matrix

    def close(self) -> None:
        """Nothing to let go of: the generation owns the map."""


class RedisVectors:
    """Vectors from the copy in Redis; the matrix on disk stands in for what Redis lacks.

    Args:
        generation: whose vectors.
        redis: its copy, with timeouts fit for serving.
        loader: the same copy, with timeouts fit for reading everything once.
        count: told of each vector asked for: tier, result, how many.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        generation: Generation,
        redis: EmbeddingStore,
        loader: EmbeddingStore,
        count: CountCache,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._generation = generation
        self._redis = redis
        self._count = count
        self._back_off = BackOff(clock)
        # A generation without an index is scanned: what a scan reads is fetched here, once.
        self._matrix = self._load(loader) if generation.index is None else None

    def gather(self, rows: NDArray[np.int64]) -> Gathered:
        """Fetch the vectors of rows, in the order asked; a dead Redis is left alone for a while after each failure."""
        if not len(rows):
            return Gathered(self._generation.store.gather(rows), True)
        if self._back_off.is_over():
            ids = [candidate.id for candidate in self._generation.candidates.rows(rows)]
            try:
                return Gathered(self._completed(self._redis, ids, rows), True)
            except StoreUnavailable as error:
                self._count("redis", "error", len(rows))
                self._back_off.begin()
                log.warning("redis is unavailable; using the generation's own matrix", extra={"fields": {"why": error}})
        self._count("matrix", "hit", len(rows))
        return Gathered(self._generation.store.gather(rows), False)

    def matrix(self) -> NDArray[Any]:
        """All vectors: as read from Redis where the generation is scanned, else memory-mapped."""
        return self._generation.store.matrix if self._matrix is None else self._matrix

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def _completed(self, redis: EmbeddingStore, ids: list[str], rows: NDArray[np.int64]) -> NDArray[Any]:
        """Fetch from Redis and fill the gaps from the matrix."""
        vectors, status = (fetched := redis.get_many(ids)).vectors, fetched.status
        for result, code in (("hit", HIT), ("miss", MISS), ("corrupt", CORRUPT)):
            self._count("redis", result, int((status == code).sum()))
        gaps = np.flatnonzero(status != HIT)
        if len(gaps):
            vectors[gaps] = self._generation.store.gather(rows[gaps])
            self._count("matrix", "hit", len(gaps))
        return vectors

    def _load(self, loader: EmbeddingStore) -> NDArray[Any] | None:
        """Read every vector once; None when Redis does not answer."""
        table = self._generation.candidates
        try:
            parts: list[NDArray[Any]] = []
            start = 0
            for ids, _ in table.batches():
                parts.append(self._completed(loader, ids, np.arange(start, start + len(ids))))
                start += len(ids)
            return np.concatenate(parts)
        except StoreUnavailable as error:
            self._count("redis", "error", len(table))
            log.warning("redis is unavailable; scanning the generation's own matrix", extra={"fields": {"why": error}})
            return None
        finally:
            loader.close()
