"""Vectors under names in Redis: what comes in time is checked and counted, and what does not is nobody's error."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.vectors.codec import CORRUPT, DTYPES, HIT, MISS, Fetched
from polyrank.index_builder.vectors.redis import MGET_KEYS, StoredVectors
from polyrank.service.caching.budget import Budget
from polyrank.service.caching.redis_server import RedisServer

# Told of vectors asked for: tier, result, how many.
CountCache = Callable[[str, str, int], None]


class Cached(NamedTuple):
    """What a cache knew of N names: vectors (N, D), which of them are known (N,), and whether it answered."""

    vectors: NDArray[Any]
    known: NDArray[np.bool_]
    available: bool


class RedisTier:
    """The vectors under one beginning of the key. Safe to use from several threads.

    Args:
        server: where they are.
        tier: what they are counted as.
        count: told of each vector asked for.
        beginning: of every key.
        dim: D.
        dtype: "float16" or "float32".
        lifetime_seconds: of what is written; None: for ever.
    """

    def __init__(
        self,
        server: RedisServer,
        tier: str,
        count: CountCache,
        beginning: str,
        dim: int,
        dtype: str,
        lifetime_seconds: int | None = None,
    ) -> None:
        self._server, self._tier, self._count = server, tier, count
        self._store = StoredVectors(server.client, beginning, dim, dtype, lifetime_seconds)
        self._dim, self._dtype = dim, DTYPES[dtype]

    def read(self, names: Sequence[str], budget: Budget) -> Cached:
        """Look names up, as many as come in time."""
        found = Cached(np.zeros((len(names), self._dim), self._dtype), np.zeros(len(names), bool), True)
        if not names:
            return found
        chunks = [names[start : start + MGET_KEYS] for start in range(0, len(names), MGET_KEYS)]
        steps = [partial(self._store.get_many, chunk) for chunk in chunks]
        answer = self._server.read(f"get_{self._tier}", steps, budget)
        if answer.asked:
            self._enter(found, answer.parts)
        return found._replace(available=answer.available)

    def _enter(self, found: Cached, parts: Sequence[Fetched]) -> None:
        """Enter and count what came of the names, the first of them in `parts`."""
        came = 0
        for vectors, status in ((each.vectors, each.status) for each in parts):
            rows = slice(came, came + len(status))
            found.vectors[rows], found.known[rows] = vectors, status == HIT
            for result, code in (("hit", HIT), ("miss", MISS), ("corrupt", CORRUPT)):
                self._count(self._tier, result, int((status == code).sum()))
            came += len(status)
        self._count(self._tier, "error", len(found.known) - came)

    def write(self, names: Sequence[str], vectors: NDArray[Any]) -> None:
        """Remember vectors (N, D) in the background, if Redis can keep up."""
        if names:
            self._server.write(
                f"put_{self._tier}",
                partial(self._store.put_many, names, vectors),
                partial(self._count, self._tier, "write_error", len(names)),
            )
