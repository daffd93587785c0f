"""Vectors in memory: the same bytes, never another space's, and no more of them than may be."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrank.service.caching.redis_server import Budget
from polyrank.service.caching.vector_cache import ENTRY_BYTES, Key, Lru, RowsCache

DIM = 4


def cache(memory: Lru, space: str = "s", dtype: str = "float16") -> RowsCache:
    return RowsCache(space, DIM, dtype, lambda *_: None, memory, None)


def test_spaces_and_dtypes_do_not_meet_and_what_was_read_may_be_written_to() -> None:
    memory, vector = Lru(10_000), np.full((1, DIM), 1.1, np.float16)
    cache(memory).write(["n1"], vector)
    for other in (cache(memory, "another"), cache(memory, dtype="float32")):
        assert not other.read(["n1"], Budget()).known.any()
    cache(memory).read(["n1"], Budget()).rows[:] = 7
    found = cache(memory).read(["n0", "n1"], Budget())
    assert found.known.tolist() == [False, True]
    np.testing.assert_array_equal(found.rows, vector)


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
