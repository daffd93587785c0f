"""Whole answers of /rank, for requests that come again: in memory, and in Redis for all servers.

Keys in Redis are `pe:r:<key>`, values

    version u8 | crc32 u32 over the key and the answer, little-endian | the answer, JSON

with a digest behind it where the URL of Redis names a secret (polyrank.index_builder.redis_client.Seal).

A key is made of everything that the answer depends on, so no change needs to remove anything. Degraded answers are not
kept.
"""

import asyncio
import struct
import time
from collections.abc import Callable
from functools import partial
from zlib import crc32

from polyrank.index_builder.errors import StoreUnavailable
from polyrank.index_builder.redis_client import translated
from polyrank.service.caching.redis_server import Budget, RedisServer
from polyrank.service.caching.vector_cache import CountCache, Lru

TIER = "result"
VERSION = 1
_HEAD = struct.Struct("<BI")
_EXPIRY = struct.Struct("<d")


class ResultCache:
    """Answers by key, in memory and, where there is a Redis, behind it. Used from one event loop."""

    def __init__(self, memory: Lru, lifetime_seconds: int, count: CountCache, redis: RedisServer | None = None) -> None:
        self._memory, self._lifetime, self._count, self._redis = memory, lifetime_seconds, count, redis

    async def get(self, key: str, budget: Budget, is_answer: Callable[[bytes], bool]) -> bytes | None:
        """Return the answer, without what belonged to the request that it was made for; None: it is not known.

        `is_answer` tells whether what Redis gave is one; it is called on another thread.
        """
        answer: bytes | None = None
        result = "miss"
        [value] = self._memory.get_many([(TIER, key)])
        if value is not None and time.monotonic() < _EXPIRY.unpack_from(value)[0]:
            answer = value[_EXPIRY.size :]
        elif self._redis is not None:
            asked = time.monotonic()  # what Redis says of its time is older when it has come
            answer, result, seconds = await asyncio.to_thread(self._fetched, self._redis, key, budget, is_answer)
            if answer is not None:
                self._remember(key, answer, asked + seconds)
        self._count(TIER, result if answer is None else "hit", 1)
        return answer

    def put(self, key: str, answer: bytes) -> None:
        """Keep an answer, a JSON object without anything that belongs to one request."""
        self._remember(key, answer, time.monotonic() + self._lifetime)
        if self._redis is not None:
            write = partial(self._write, self._redis, key, answer)
            self._redis.write("put_result", write, partial(self._count, TIER, "write_error", 1))

    def _remember(self, key: str, answer: bytes, until: float) -> None:
        self._memory.put_many([((TIER, key), _EXPIRY.pack(until) + answer)])

    def _fetched(
        self, redis: RedisServer, key: str, budget: Budget, is_answer: Callable[[bytes], bool]
    ) -> tuple[bytes | None, str, float]:
        """Return the answer in Redis, the result to count if there is none, and for how many more seconds it holds."""
        name = _name(key)
        response = redis.read("get_result", [partial(_value, redis, name)], budget)
        if not response.parts:
            return None, "error" if response.was_asked else "miss", 0.0
        [(value, left_ms)] = response.parts
        if value is None:
            return None, "miss", 0.0
        opened = redis.seal.opened(name, value)
        answer = opened[_HEAD.size :]
        is_right = answer and opened == _encoded(name, answer) and is_answer(answer)  # else damaged, or misplaced
        return answer if is_right else None, "corrupt", min(left_ms / 1000, self._lifetime)

    def _write(self, redis: RedisServer, key: str, answer: bytes) -> None:
        name = _name(key)
        with translated():
            redis.client.set(name, redis.seal.sealed(name, _encoded(name, answer)), ex=self._lifetime)


def _name(key: str) -> bytes:
    return f"pe:r:{key}".encode()


def _value(redis: RedisServer, name: bytes) -> tuple[bytes | None, int]:
    """Return the value, and the milliseconds that it has left; negative: there is none, or it has no end."""
    with translated():
        both = redis.client.pipeline(transaction=False)
        both.get(name)
        both.pttl(name)
        value, left_ms = both.execute()
    if isinstance(value, bytes | None) and isinstance(left_ms, int):
        return value, left_ms
    raise StoreUnavailable("Redis failed: its answer belongs to another question")


def _encoded(name: bytes, answer: bytes) -> bytes:
    return _HEAD.pack(VERSION, crc32(answer, crc32(name))) + answer
