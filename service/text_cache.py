"""Vectors of candidates that were sent as text before, shared by all servers of one Redis.

Keys are `pe:t:{<model fingerprint>}:<sha256 of the text>`; a value tells its dtype and dimension and is checked as
every other (index_builder.codec). Redis may lose, damage or refuse anything: what it does not give is encoded.
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from threading import BoundedSemaphore
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from index_builder.codec import DTYPES
from index_builder.errors import StoreUnavailable
from index_builder.redis_client import SERVING_TIMEOUT_SECONDS
from index_builder.redis_store import MGET_KEYS, StoredVectors
from index_builder.store import CORRUPT, HIT, MISS, Fetched
from service.backoff import BackOff
from service.vectors import CountCache

TIER = "text"
MAX_PENDING_WRITES = 8

log = logging.getLogger(__name__)


class Cached(NamedTuple):
    """What the cache knew of N texts: vectors (N, D), which of them are known (N,), and whether it answered."""

    vectors: NDArray[Any]
    known: NDArray[np.bool_]
    available: bool


class TextCache:
    """The vectors of texts under one model; for one reading thread.

    Reading waits no longer than the serving timeout, whatever Redis does; writing does not wait at all.

    Args:
        url: of the Redis.
        lifetime_seconds: of what is written.
        count: told of each text asked for: tier, result, how many.
        fingerprint: the model's.
        dim: D.
        dtype: "float16" or "float32", as vectors are scored.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        url: str,
        lifetime_seconds: int,
        count: CountCache,
        fingerprint: str,
        dim: int,
        dtype: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        beginning = f"pe:t:{{{fingerprint}}}:"
        self._store = StoredVectors(url, beginning, dim, dtype, SERVING_TIMEOUT_SECONDS, lifetime_seconds)
        self._count = count
        self._dim, self._dtype = dim, DTYPES[dtype]
        # A timeout of the client bounds each answer, not the sum of many slow ones: the reader waits for a thread.
        self._reader = ThreadPoolExecutor(1, "text-cache-read")
        self._writer = ThreadPoolExecutor(1, "text-cache-write")
        self._pending = BoundedSemaphore(MAX_PENDING_WRITES)
        # A full Redis refuses writes and still answers reads.
        self._no_reads, self._no_writes = BackOff(clock), BackOff(clock)

    def read(self, texts: Sequence[str]) -> Cached:
        """Look texts up, as many as come in time; a dead Redis is left alone for a while after each failure."""
        found = Cached(np.zeros((len(texts), self._dim), self._dtype), np.zeros(len(texts), bool), True)
        if not texts:
            return found
        if not self._no_reads.is_over():
            return found._replace(available=False)
        parts: list[Fetched] = []
        asked = self._reader.submit(self._fetch, _names(texts), parts)
        why: Exception | None = None
        try:
            asked.result(SERVING_TIMEOUT_SECONDS)
        except StoreUnavailable as error:
            why = error
        except TimeoutError:
            asked.cancel()
            why = None if parts else StoreUnavailable(f"no answer within {SERVING_TIMEOUT_SECONDS} s")
        self._take(found, list(parts))
        if why is None:
            return found
        self._no_reads.begin()
        log.warning("redis is unavailable; encoding what was sent", extra={"fields": {"why": why}})
        return found._replace(available=False)

    def _fetch(self, names: list[str], parts: list[Fetched]) -> None:
        """Fetch chunk by chunk, until the time is over that the reader waits."""
        until = time.monotonic() + SERVING_TIMEOUT_SECONDS
        for start in range(0, len(names), MGET_KEYS):
            parts.append(self._store.get_many(names[start : start + MGET_KEYS]))
            if time.monotonic() > until:
                return

    def _take(self, found: Cached, parts: list[Fetched]) -> None:
        """Enter and count what came of the texts, the first of them in `parts`."""
        came = 0
        for vectors, status in ((each.vectors, each.status) for each in parts):
            rows = slice(came, came + len(status))
            found.vectors[rows], found.known[rows] = vectors, status == HIT
            for result, code in (("hit", HIT), ("miss", MISS), ("corrupt", CORRUPT)):
                self._count(TIER, result, int((status == code).sum()))
            came += len(status)
        self._count(TIER, "error", len(found.known) - came)

    def write(self, texts: Sequence[str], vectors: NDArray[Any]) -> None:
        """Remember vectors (N, D) in the background; those of a Redis that cannot keep up are dropped."""
        if not texts or not self._no_writes.is_over() or not self._pending.acquire(blocking=False):
            return
        self._writer.submit(self._put, texts, vectors)

    def _put(self, texts: Sequence[str], vectors: NDArray[Any]) -> None:
        try:
            self._store.put_many(_names(texts), vectors)
        except StoreUnavailable as error:
            self._no_writes.begin()
            self._count(TIER, "write_error", len(texts))
            log.warning("redis takes no vectors of texts", extra={"fields": {"why": error}})
        finally:
            self._pending.release()

    def close(self) -> None:
        """Write what waits, then close the connections; returns at once."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        self._writer.submit(self._store.close)
        self._writer.shutdown(wait=False)


def _names(texts: Sequence[str]) -> list[str]:
    return [sha256(text.encode()).hexdigest() for text in texts]
