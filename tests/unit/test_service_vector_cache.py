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
        assert not other.read(["n1"], Budget()).is_known.any()
    cache(memory).read(["n1"], Budget()).rows[:] = 7
    found = cache(memory).read(["n0", "n1"], Budget())
    assert found.is_known.tolist() == [False, True]
    np.testing.assert_array_equal(found.rows, vector)


# --- bytes in memory: the least recently used go, and the bound is on what is really held


def key(n: int) -> Key:
    return "space", f"{n:04}"


def size(value: bytes) -> int:
    return ENTRY_BYTES + 4 + len(value)


VALUES = st.none() | st.binary(max_size=300)  # what is put under a key; None: the key is read


@given(st.lists(st.tuples(st.integers(0, 9), VALUES), max_size=60), st.integers(0, 3000))
def test_what_was_used_last_is_held_as_far_as_there_is_room(calls: list[tuple[int, bytes | None]], most: int) -> None:
    lru, held = Lru(most), dict[Key, bytes]()  # the latter in the order of use
    for n, value in calls:
        before = held.pop(key(n), None)
        if value is None:
            assert lru.get_many([key(n), ("another", key(n)[1])]) == [before, None]
        else:
            lru.put_many([(key(n), value)])
        kept = before if value is None else value
        if kept is not None:
            held[key(n)] = kept
        while sum(map(size, held.values())) > most:
            del held[next(iter(held))]
        assert lru.bytes == sum(map(size, held.values()))
    assert lru.get_many([key(n) for n in range(10)]) == [held.get(key(n)) for n in range(10)]


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
    lru = Lru(50 * size(b"0" * 10))

    def use(seed: int) -> None:
        random = Random(seed)
        for _ in range(2000):
            n = random.randrange(100)
            lru.put_many([(key(n), b"%010d" % n)])
            [found] = lru.get_many([key(random.randrange(100))])
            assert found is None or len(found) == 10

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(4)))
    held = [value for value in lru.get_many([key(n) for n in range(100)]) if value is not None]
    assert len(held) == 50
    assert lru.bytes == sum(map(size, held))
