"""The caches of a process: made once, and asked for each generation that is served."""

from functools import partial

from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.redis_client import BUILDING_TIMEOUT_SECONDS
from polyrank.index_builder.vectors.redis import RedisEmbeddings, beginning_of, rows_beginning_of
from polyrank.service.caching.largest import Largest
from polyrank.service.caching.lru import Lru
from polyrank.service.caching.redis_server import RedisServer
from polyrank.service.caching.vector_cache import CountCache, RedisTier, RowsCache, RowsTier, TextCache, VectorCache
from polyrank.service.caching.vectors import CandidateVectors, EncodeTexts, MatrixVectors, RedisVectors
from polyrank.service.observe.metrics import Metrics
from polyrank.service.settings import Settings


class Caches:
    """The memory and the Redis that the settings name.

    Attributes:
        server: the Redis; None: there is none.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._count: CountCache = metrics.count_cache
        self._url = settings.redis()
        self._memory = Lru(settings.vector_cache_mb * 2**20) if settings.vector_cache_mb else None
        self.server: RedisServer | None = None
        if self._url is not None:
            self.server = RedisServer(self._url, metrics.observe_redis, metrics.show_breaker)

    def texts(self, manifest: Manifest, backend: str, precision: str, largest: Largest) -> TextCache | None:
        """Return the cache of texts under a generation's model, as it is run here; None: there is none."""
        lifetime, of, server = self._settings.text_cache_ttl_s, manifest, self.server
        redis = rows_redis = rows = None
        beginning = f"pe:t:{{{of.model.fingerprint}}}:{backend}:{precision}:"
        if server is not None and lifetime:
            redis = RedisTier(server, "text", self._count, beginning, of.dim, of.dtype, largest.vector, lifetime)
            if of.late is not None:
                rows_redis = RowsTier(
                    server, "text", self._count, f"{beginning}r:", of.late, of.dtype, largest, lifetime
                )
        if redis is None and self._memory is None:
            return None
        space = f"{of.model.fingerprint} {backend} {precision}"
        if of.late is not None:
            rows = RowsCache(space, of.late, of.dtype, self._count, self._memory, rows_redis)
        return TextCache(VectorCache(space, of.dim, of.dtype, self._count, self._memory, redis), rows, largest.rows)

    def vectors(self, generation: Generation, encode: EncodeTexts, largest: Largest) -> CandidateVectors:
        """Return the vectors of a generation's candidates; `encode` is its model, which makes the `largest`."""
        if self.server is None or self._settings.vectors != "redis":
            return MatrixVectors(generation, self._count)
        of = generation.manifest
        copy = RedisTier(self.server, "redis", self._count, beginning_of(of.id), of.dim, of.dtype, largest.vector)
        where = self._url or "", of.id, of.dim, of.dtype, BUILDING_TIMEOUT_SECONDS
        loader = partial(RedisEmbeddings, *where, longest=largest.vector)
        cache, rows = VectorCache(of.id, of.dim, of.dtype, self._count, self._memory, copy), None
        if of.late is not None:
            rows_copy = RowsTier(
                self.server, "redis", self._count, rows_beginning_of(of.id), of.late, of.dtype, largest
            )
            rows = RowsCache(of.id, of.late, of.dtype, self._count, self._memory, rows_copy)
        return RedisVectors(generation, cache, rows, loader, encode, self._count)

    def close(self) -> None:
        """Write what waits for Redis, then close the connections."""
        if self.server is not None:
            self.server.close()
