"""Sources of the candidates' vectors: the generation's own matrix, or its copy in Redis.

Both hold the same bytes, so scores do not depend on the source. Vectors that Redis lacks, or that are damaged there,
are read from the matrix. A replica without the matrix's file holds a copy in memory.
"""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import StoreUnavailable
from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.redis_client import BUILDING_TIMEOUT_SECONDS
from polyrank.index_builder.vectors.encoder import Encode
from polyrank.index_builder.vectors.local import rounded, rounded_all
from polyrank.index_builder.vectors.redis import (
    ROWS_VERSION,
    RedisEmbeddings,
    StoredRows,
    beginning_of,
    rows_beginning_of,
)
from polyrank.model.representations import LateRows, Representations, each_of
from polyrank.model.text.chat import CONVERSATIONS
from polyrank.service.caching.redis_server import Budget, RedisServer
from polyrank.service.caching.vector_cache import CountCache, Lru, RedisTier, RowsCache, TextCache, known_of
from polyrank.service.observe.metrics import Metrics
from polyrank.service.settings import Settings

# Texts to what the model makes of them.
EncodeTexts = Callable[[list[str]], Representations]
Gathered = tuple[Representations, bool]  # what is stored of candidates, and whether the caches answered

# So many candidates' rows the model makes in passing, on a thread that others wait for; each next request makes more.
MOST_MADE = 32

# Words, sentences, a text beyond most models' lengths, and what is no chat.
_TEXTS = [turn for turns in CONVERSATIONS[::4] for turn in turns]
_TEXTS += ["hi", "?", "7", "A" * 40, "def f(x): return x[0]", "привет, как дела", "你好", "🙂", "hello there " * 200]
# Other texts may differ so many times as much as these do.
_TIMES = 4.0
# Numbers are rounded, to as few as eight bits.
_ROUNDING = 0.02

log = logging.getLogger(__name__)


class Largest(NamedTuple):
    """What no candidate exceeds."""

    rows: int  # how many it has for the second stage, where their numbers differ
    vector: float = math.inf  # the length of its vector; infinite where none is known
    row: float = math.inf  # the length of a row; infinite where none is known


def largest_of(encode: Encode, rows: int) -> Largest:
    """Find bounds on lengths from what a model makes of some texts; `rows` is told.

    A model that scales vectors to unit length gets a bound just above 1. Others get room for texts that differ more.
    """
    made = encode(_TEXTS)
    return Largest(rows, _longest(made.first), math.inf if made.late is None else _longest(made.late))


def _longest(rows: NDArray[np.floating]) -> float:
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    shortest, longest = float(lengths.min()), float(lengths.max())
    return (longest + _TIMES * (longest - shortest)) * (1 + _ROUNDING)


class CandidateVectors(Protocol):
    """What is stored of the candidates of one generation, by row, in the store's dtype."""

    are_here: bool  # whether it is read on this machine alone

    def gather(self, rows: NDArray[np.int64], budget: Budget, *, first_only: bool = False) -> Gathered:
        """Return it for rows (N,), in the order asked, within the request's budget for Redis.

        `first_only`: the vectors alone, without what a second stage reads. Also returns whether the caches answered.
        """

    def matrix(self) -> NDArray[Any]:
        """Return all vectors, (N, D), for a scan."""


class MatrixVectors:
    """Vectors from the generation's memory-mapped matrix."""

    are_here = True

    def __init__(self, generation: Generation, count: CountCache) -> None:
        self._generation, self._count = generation, count

    def gather(self, rows: NDArray[np.int64], budget: Budget, *, first_only: bool = False) -> Gathered:
        own = self._generation.embeddings
        made = Representations(own.gather(rows)) if first_only else own.representations(rows)
        self._count("matrix", "hit", len(rows) if made.late is None else 2 * len(rows))
        return made, True

    def matrix(self) -> NDArray[Any]:
        return self._generation.embeddings.matrix


class RedisVectors:
    """Vectors from the copy in Redis; those that it lacks come from the matrix on disk, or from a copy in memory.

    That copy is made here, once, if the generation has no index (then every request scans), or the matrix's file is
    missing.

    Args:
        rows: that of the rows for a second stage; None: there is none.
        open_loader: opens the same copy, with timeouts fit for reading everything once.
        encode: the generation's model, for vectors that neither Redis nor the matrix holds.
    """

    are_here = False

    def __init__(
        self,
        generation: Generation,
        cache: RowsCache,
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

    def gather(self, rows: NDArray[np.int64], budget: Budget, *, first_only: bool = False) -> Gathered:
        """Do what `CandidateVectors.gather` does; rows of a second stage that nobody stores come from the model.

        Raises:
            StoreUnavailable: nobody has these: Redis does not answer, or has lost more than the model makes in passing.
        """
        own, candidates = self._generation.embeddings, self._generation.candidates.rows(rows)
        ids = [candidate.id for candidate in candidates]
        known, found, _, available = self._cache.read(ids, budget)
        vectors, gaps = np.empty((len(ids), own.dim), own.dtype), np.flatnonzero(~known)
        vectors[known] = found
        if len(gaps):
            vectors[gaps] = np.take(self.matrix(), rows[gaps], axis=0)
            self._count("matrix", "hit", len(gaps))
        if first_only or own.late is None:
            return Representations(vectors), available
        assert self._rows is not None, "a second stage has rows"
        late = self._rows.read(ids, budget)
        lacking = np.flatnonzero(~late.known)
        if not len(lacking):
            return Representations(vectors, late.rows, late.counts), available and late.available
        if own.late.has_rows:
            more, counts = own.late.gather(rows[lacking])
            self._count("matrix", "hit", len(lacking))
        else:
            if late.available:
                more, counts = self._made(self._rows, [candidates[at] for at in lacking[:MOST_MADE].tolist()])
            if not late.available or len(lacking) > MOST_MADE:
                raise StoreUnavailable("rows of the second stage are neither in Redis nor on the disk")
        places = np.concatenate([np.flatnonzero(late.known), lacking])
        every = np.concatenate([late.rows, more]), np.concatenate([late.counts, counts])
        return Representations(vectors[places], *every).take(np.argsort(places)), available and late.available

    def _made(self, cache: RowsCache, candidates: Sequence[Candidate]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        made = rounded_all(self._encode([each.text for each in candidates]), self._generation.manifest.dtype)
        _, (rows, counts) = made.blocks()
        cache.write([each.id for each in candidates], each_of(rows, counts))
        return rows, counts

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
                known = known_of(fetched.status, self._count, "redis")
                matrix[start:end][known] = fetched.rows
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


class Caches:
    """The memory and the Redis that the settings name: made once in a process, and asked for each generation served."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._count: CountCache = metrics.count_cache
        self._url = settings.redis()
        self._memory = Lru(settings.vector_cache_mb * 2**20) if settings.vector_cache_mb else None
        self.server: RedisServer | None = None
        if self._url is not None:
            self.server = RedisServer(
                self._url, lambda op, seconds: metrics.redis.labels(op).observe(seconds), metrics.breaker.set
            )

    def texts(self, manifest: Manifest, backend: str, rounding: str, largest: Largest) -> TextCache | None:
        """Return the cache of texts under a generation's model, as it is run here; None: there is none."""
        lifetime, model = self._settings.text_cache_ttl_s, manifest.model.fingerprint
        server = self.server if lifetime else None
        if server is None and self._memory is None:
            return None
        beginning = f"pe:t:{{{model}}}:{backend}:{rounding}:{manifest.dtype}:"
        keys = beginning, f"{beginning}r:"
        vectors, rows = self._of(f"{model} {backend} {rounding}", manifest, server, "text", keys, largest, lifetime)
        return TextCache(vectors, rows)

    def vectors(self, generation: Generation, encode: EncodeTexts, largest: Largest) -> CandidateVectors:
        """Return the vectors of a generation's candidates; `encode` is its model, which makes the `largest`."""
        if self.server is None or self._settings.vectors != "redis":
            return MatrixVectors(generation, self._count)
        of = generation.manifest
        where = self._url or "", of.id, of.dim, of.dtype, BUILDING_TIMEOUT_SECONDS
        loader = partial(RedisEmbeddings, *where, longest=largest.vector)
        keys = beginning_of(of.id), rows_beginning_of(of.id)
        cache, rows = self._of(of.id, of, self.server, "redis", keys, largest, None)
        return RedisVectors(generation, cache, rows, loader, encode, self._count)

    def _of(
        self,
        space: str,
        manifest: Manifest,
        server: RedisServer | None,
        tier: str,
        keys: tuple[str, str],
        largest: Largest,
        lifetime: int | None,
    ) -> tuple[RowsCache, RowsCache | None]:
        """Return the caches of a space: of vectors and, for a second stage, of rows; `keys` are their beginnings."""
        dim, dtype, late, count = manifest.dim, manifest.dtype, manifest.late, self._count
        redis = rows_redis = None
        if server is not None:
            stored = partial(StoredRows, server.client, server.seal, dtype=dtype, lifetime_seconds=lifetime)
            of_vectors = stored(keys[0], LateRows(dim, 1), longest=largest.vector)
            redis = RedisTier(server, tier, count, of_vectors)
            if late is not None:
                of_rows = stored(keys[1], late, version=ROWS_VERSION, longest=largest.row, most=largest.rows)
                rows_redis = RedisTier(server, tier, count, of_rows)
        rows = None if late is None else RowsCache(f"{space} rows", late.dim, dtype, count, self._memory, rows_redis)
        return RowsCache(space, dim, dtype, count, self._memory, redis), rows

    def close(self) -> None:
        """Write what waits for Redis, then close the connections."""
        if self.server is not None:
            self.server.close()
