"""Vectors in memory before those in Redis: the same bytes, asked for once, and never another space's."""

import tracemalloc
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from polyrank.index_builder.vectors.redis import HIT, MISS, Fetched
from polyrank.service.caching.redis_server import Budget
from polyrank.service.caching.vector_cache import ENTRY_BYTES, Key, Lru, VectorCache

DIM = 4
VECTORS = {f"n{n}": np.full(DIM, n + 0.1, np.float16) for n in range(10)}


class Redis:
    """Knows some names, and remembers what it was asked."""

    def __init__(self, *known: str) -> None:
        self.known = set(known)
        self.asked: list[list[str]] = []
        self.written: list[str] = []
        self.available = True

    def read(self, names: Sequence[str], _budget: Budget) -> tuple[list[Fetched], bool]:
        self.asked.append(list(names))
        known = np.array([each in self.known for each in names])
        vectors = np.stack([VECTORS[each] if each in self.known else np.zeros(DIM, np.float16) for each in names])
        return [Fetched(vectors, np.where(known, HIT, MISS).astype(np.uint8))], self.available

    def write(self, names: Sequence[str], _vectors: NDArray[Any]) -> None:
        self.written += names


class Fixture:
    def __init__(self, redis: Redis | None = None, memory: Lru | None = None, space: str = "s") -> None:
        self.told: Counter[str] = Counter()
        self.memory = memory
        self.cache = VectorCache(space, DIM, "float16", self._count, memory, redis)  # type: ignore[arg-type]

    def _count(self, tier: str, result: str, number: int) -> None:
        assert tier == "lru"
        self.told[result] += number

    def known(self, *names: str) -> list[str]:
        found = self.cache.read(names, Budget())
        for name, vector, known in zip(names, found.vectors, found.known, strict=True):
            np.testing.assert_array_equal(vector, VECTORS[name] if known else np.zeros(DIM))
        return [name for name, known in zip(names, found.known, strict=True) if known]

    def write(self, *names: str) -> None:
        self.cache.write(names, np.stack([VECTORS[each] for each in names]))


def test_memory_alone() -> None:
    fixture = Fixture(memory=Lru(10_000))
    assert fixture.known("n0", "n1") == []
    fixture.write("n1")
    assert fixture.known("n0", "n1", "n1") == ["n1", "n1"]
    assert fixture.told == {"hit": 2, "miss": 3}


def test_redis_is_asked_for_what_is_not_in_memory_and_once() -> None:
    redis = Redis("n1", "n2")
    fixture = Fixture(redis, Lru(10_000))
    fixture.write("n0")
    for _ in range(2):
        assert fixture.known("n2", "n0", "n3", "n1") == ["n2", "n0", "n1"]
    assert fixture.known("n0", "n1", "n2") == ["n0", "n1", "n2"]
    assert redis.asked == [["n2", "n3", "n1"], ["n3"]]
    assert redis.written == ["n0"]


def test_an_outage_is_told_where_redis_was_asked() -> None:
    redis = Redis()
    redis.available = False
    fixture = Fixture(redis, Lru(10_000))
    fixture.write("n0")
    assert fixture.cache.read(["n0"], Budget()).available
    assert not fixture.cache.read(["n0", "n1"], Budget()).available


def test_without_memory_redis_answers_every_time() -> None:
    redis = Redis("n1")
    fixture = Fixture(redis)
    assert [fixture.known("n1"), fixture.known("n1")] == [["n1"], ["n1"]]
    assert len(redis.asked) == 2
    assert fixture.told == {}


def test_spaces_and_dtypes_do_not_meet() -> None:
    memory = Lru(10_000)
    Fixture(memory=memory).write("n1")
    assert Fixture(memory=memory, space="another").known("n1") == []
    wide = VectorCache("s", DIM, "float32", lambda *_: None, memory, None)
    assert not wide.read(["n1"], Budget()).known.any()
    assert Fixture(memory=memory).known("n1") == ["n1"]


def test_what_was_read_may_be_written_to() -> None:
    fixture = Fixture(memory=Lru(10_000))
    fixture.write("n1")
    fixture.cache.read(["n1"], Budget()).vectors[:] = 7
    assert fixture.known("n1") == ["n1"]


# --- bytes in memory: the least recently used go, and the bound is on what is really held


def key(n: int) -> Key:
    return "space", f"{n:04}"


EACH = ENTRY_BYTES + 4 + 10  # of a value of 10 bytes


def filled(count: int, room_for: int) -> Lru:
    lru = Lru(room_for * EACH)
    for n in range(count):
        lru.put_many([(key(n), b"%010d" % n)])
    return lru


def test_what_was_put_is_found_in_the_order_asked() -> None:
    lru = filled(3, room_for=3)
    assert lru.get_many([key(2), key(9), key(0)]) == [b"0000000002", None, b"0000000000"]
    assert lru.get_many([("another", "0000")]) == [None]


def test_the_least_recently_used_goes() -> None:
    lru = filled(3, room_for=3)
    lru.get_many([key(0)])
    lru.put_many([(key(3), b"x" * 10)])
    assert [value is not None for value in lru.get_many([key(n) for n in range(4)])] == [True, False, True, True]


def test_a_value_that_is_put_again_replaces_the_first_and_is_the_newest() -> None:
    lru = filled(2, room_for=2)
    lru.put_many([(key(0), b"y" * 10)])
    assert lru.bytes == 2 * EACH
    lru.put_many([(key(2), b"z" * 10)])
    assert lru.get_many([key(0), key(1)]) == [b"y" * 10, None]


def test_a_value_that_is_too_large_is_not_kept() -> None:
    lru = filled(1, room_for=1)
    lru.put_many([(key(1), b"x" * 11)])
    assert lru.get_many([key(0), key(1)]) == [None, None]
    assert lru.bytes == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=300)), max_size=60), st.integers(0, 3000))
def test_it_never_holds_more_than_it_may(puts: list[tuple[int, bytes]], most: int) -> None:
    lru, held = Lru(most), dict[Key, bytes]()
    for n, value in puts:
        lru.put_many([(key(n), value)])
        held[key(n)] = value
        found = {each: value for each in held if (value := lru.get_many([each])[0]) is not None}
        assert all(held[each] == value for each, value in found.items())
        assert lru.bytes == sum(ENTRY_BYTES + 4 + len(value) for value in found.values()) <= most


def test_the_bound_is_on_memory_as_it_is() -> None:
    random = Random(1)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        lru = Lru(2**20)
        for n in range(3000):
            lru.put_many([(("space", f"{n:064x}"), random.randbytes(768))])
        assert tracemalloc.get_traced_memory()[0] - before == pytest.approx(2**20, rel=0.1)
    finally:
        tracemalloc.stop()


def test_threads_do_not_lose_count() -> None:
    lru = Lru(50 * EACH)

    def use(seed: int) -> None:
        random = Random(seed)
        for _ in range(2000):
            n = random.randrange(100)
            lru.put_many([(key(n), b"%010d" % n)])
            [found] = lru.get_many([key(random.randrange(100))])
            assert found is None or len(found) == 10

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(4)))
    assert (
        lru.bytes == 50 * EACH == sum(value is not None for value in lru.get_many([key(n) for n in range(100)])) * EACH
    )
