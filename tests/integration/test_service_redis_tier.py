"""Vectors read through a real Redis: in time whatever their number, checked, counted, and left alone when it fails."""

import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from threading import Barrier, Event
from typing import Any

import numpy as np
import pytest
from redis_process import RedisProcess
from waiting import until

from polyrank.index_builder.vectors.redis import MGET_KEYS, StoredRows
from polyrank.model.representations import LateRows
from polyrank.service.caching.redis_server import FAILURES_IN_A_ROW, READERS, Budget, RedisServer, State
from polyrank.service.caching.vector_cache import RedisTier, RowsCache

DIM = 16
NAMES = [f"n{n}" for n in range(2000)]  # four chunks
VECTORS = (np.arange(len(NAMES) * DIM).reshape(-1, DIM) % 2000).astype(np.float16)
IN_TIME = 3.5  # of one read, on a busy machine; by itself redis-py takes 4 s to a minute
A_WHILE = 2.0  # that a caller waits for chunks that do not come; the first one comes by then


class Fixture:
    def __init__(self, url: str) -> None:
        self.told: Counter[str] = Counter()
        self.timed: list[str] = []
        self.states: list[State] = []
        self.server = RedisServer(url, lambda op, _: self.timed.append(op), self.states.append)
        self.stored = StoredRows(self.server.client, self.server.seal, "pe:x:", LateRows(DIM, 1), "float16")
        redis = RedisTier(self.server, "t", self._count, self.stored)
        self.tier = RowsCache("x", DIM, "float16", self._count, None, redis)

    def _count(self, _tier: str, result: str, number: int) -> None:
        self.told[result] += number

    def seconds(self, names: list[str] = NAMES) -> float:
        """How long a read takes that finds nothing."""
        began = time.monotonic()
        found = self.tier.read(names, Budget())
        assert not found.available
        assert not found.is_known.any()
        return time.monotonic() - began


@pytest.fixture
def fixture(redis_process: RedisProcess) -> Iterator[Fixture]:
    made = Fixture(redis_process.url)
    yield made
    made.server.close()


@pytest.fixture
def filled(fixture: Fixture, redis_process: RedisProcess) -> Fixture:
    fixture.tier.write(NAMES, VECTORS)
    with redis_process.client() as client:
        until(lambda: client.dbsize() >= len(NAMES))
    return fixture


@contextmanager
def held_up(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the first chunk come, and the others after the block."""
    fetch, let_go, number = fixture.stored.get_many, Event(), count()

    def one_at_once(names: Any) -> Any:
        if next(number):
            let_go.wait(60)
        return fetch(names)

    monkeypatch.setattr(fixture.stored, "get_many", one_at_once)
    try:
        yield
    finally:
        let_go.set()


def test_what_is_written_is_read(filled: Fixture) -> None:
    found = filled.tier.read(NAMES, Budget(5))
    assert found.available
    assert found.is_known.all()
    np.testing.assert_array_equal(found.rows, VECTORS)
    assert +filled.told == {"hit": 2000}
    assert filled.timed == ["put_t", "get_t"]


def test_nothing_asked_for_is_no_call(fixture: Fixture) -> None:
    assert fixture.tier.read([], Budget()).available
    assert fixture.timed == []


def test_many_that_come_slowly_are_used_as_far_as_they_came(filled: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    with held_up(filled, monkeypatch):
        found = filled.tier.read(NAMES, Budget(A_WHILE))
    assert found.available
    assert found.is_known.sum() == MGET_KEYS
    np.testing.assert_array_equal(found.rows, VECTORS[found.is_known])
    assert filled.told["hit"] + filled.told["error"] == 2000
    assert filled.states == []


def test_all_reads_of_a_request_share_its_budget(filled: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(A_WHILE)
    with held_up(filled, monkeypatch):
        found = [filled.tier.read(NAMES, budget) for _ in range(5)]
    assert [each.available for each in found] == [True] + [False] * 4
    assert filled.timed.count("get_t") == 1, "without time nobody asks"


def test_readers_do_not_wait_for_each_other(filled: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, together = filled.stored.get_many, Barrier(READERS)

    def beside_the_others(names: Any) -> Any:
        together.wait(60)
        return fetch(names)

    monkeypatch.setattr(filled.stored, "get_many", beside_the_others)
    with ThreadPoolExecutor(READERS) as threads:
        found = list(threads.map(lambda n: filled.tier.read(NAMES[n : n + 1], Budget(90)), range(READERS)))
    assert [each.is_known.tolist() for each in found] == [[True]] * READERS


def test_a_read_that_no_thread_begins_counts_as_a_failure(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a breaker that lets one read through, to see, would wait for its outcome for ever."""

    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(ThreadPoolExecutor, "submit", refuse)
        for _ in range(FAILURES_IN_A_ROW):
            with pytest.raises(RuntimeError, match="new thread"):
                fixture.tier.read(["n0"], Budget())
    assert fixture.states == [State.OPEN]


@pytest.mark.usefixtures("usual_patience_with_redis")
def test_more_concurrent_readers_than_threads_all_end_in_time(filled: Fixture, redis_process: RedisProcess) -> None:
    redis_process.signal(signal.SIGSTOP)
    with ThreadPoolExecutor(40) as threads:
        took = list(threads.map(lambda _: filled.seconds(NAMES[:1]), range(40)))
    assert max(took) < IN_TIME
    redis_process.signal(signal.SIGCONT)


def test_writes_that_are_refused_do_not_end_reading(filled: Fixture, redis_process: RedisProcess) -> None:
    with redis_process.client() as client:
        client.config_set("maxmemory", "1kb")
    for n in range(FAILURES_IN_A_ROW + 3):
        filled.tier.write([f"new{n}"], VECTORS[:1])
        until(lambda n=n: filled.told["write_error"] >= min(n + 1, FAILURES_IN_A_ROW))
    assert filled.told["write_error"] == FAILURES_IN_A_ROW, "then writing is left alone"
    assert filled.states == []
    assert filled.tier.read(NAMES[:5], Budget()).is_known.all()
