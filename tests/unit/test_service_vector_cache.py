"""Vectors in memory before those in Redis: the same bytes, asked for once, and never another space's."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polyrank.model.representations import LateRows, Representations
from polyrank.service.caching.lru import Lru
from polyrank.service.caching.redis_server import Budget
from polyrank.service.caching.vector_cache import Cached, RowsCache, TextCache, VectorCache

DIM = 4
VECTORS = {f"n{n}": np.full(DIM, n + 0.1, np.float16) for n in range(10)}


class Redis:
    """Knows some names, and remembers what it was asked."""

    def __init__(self, *known: str) -> None:
        self.known = set(known)
        self.asked: list[list[str]] = []
        self.written: list[str] = []
        self.available = True

    def read(self, names: Sequence[str], _budget: Budget) -> Cached:
        self.asked.append(list(names))
        known = np.array([each in self.known for each in names])
        vectors = np.stack([VECTORS[each] if each in self.known else np.zeros(DIM, np.float16) for each in names])
        return Cached(vectors, known, self.available)

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


def made_of(texts: list[str], late: LateRows | None, most_rows: int) -> Representations:
    """Vectors and, of a second stage, as many rows as a text can have."""
    first = np.ones((len(texts), DIM), np.float16)
    if late is None:
        return Representations(first)
    counts = np.array([late.count or min(most_rows, len(text) + 3) for text in texts])
    return Representations(first, np.ones((counts.sum(), late.dim), np.float16), counts)


@pytest.mark.parametrize("late", [None, LateRows(8, 3), LateRows(8, None)], ids=["none", "fixed", "ragged"])
@pytest.mark.parametrize("letters", [10, 100])
def test_memory_holds_the_texts_of_a_request_that_leaves_room_for_others(late: LateRows | None, letters: int) -> None:
    lru, most_rows = Lru(100_000), 70
    rows = None if late is None else RowsCache("s", late, "float16", lambda *_: None, lru, None)
    texts = TextCache(Fixture(memory=lru).cache, rows, most_rows)
    many = [f"{n:{letters}}" for n in range(1000)]
    most = next(count for count in range(1, 1000) if not texts.holds(many[:count])) - 1
    sent = many[:most]
    texts.write(sent, made_of(sent, late, most_rows))
    assert texts.read(sent, Budget())[0].known.all()
    assert 20_000 < lru.bytes <= 50_000
    assert not TextCache(Fixture(Redis()).cache).holds(many[:1]), "Redis may be too slow for the next attempt"
