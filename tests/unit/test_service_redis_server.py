"""When a server is asked, and when it is left alone."""

import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from polyrank.service.caching.redis_server import (
    FAILURES_IN_A_ROW,
    JITTER,
    LONGEST_OPEN_SECONDS,
    OPEN_SECONDS,
    WINDOW_CALLS,
    Breaker,
    RedisServer,
    State,
)


class Fixture:
    """A breaker whose clock and chance the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.drawn = 0.5
        self.states: list[State] = []
        self.breaker = Breaker(self.states.append, lambda: self.now, lambda: self.drawn)

    def call(self, ok: bool) -> bool:
        """Whether it was admitted."""
        ticket = self.breaker.admit()
        if ticket is not None:
            self.breaker.report(ticket, ok=ok)
        return ticket is not None

    def trip(self) -> None:
        for _ in range(FAILURES_IN_A_ROW):
            assert self.call(ok=False)
        assert self.breaker.state is State.OPEN

    def probe(self) -> tuple[float, int]:
        """How long it refuses from now on, to a millisecond, and the ticket of the call that it then admits."""
        began = self.now
        while (ticket := self.breaker.admit()) is None:
            self.now += 0.001
        return self.now - began, ticket


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


def test_it_opens_after_failures_in_a_row_and_not_before(fixture: Fixture) -> None:
    for ok in [False] * (FAILURES_IN_A_ROW - 1) + [True] * FAILURES_IN_A_ROW:
        assert fixture.call(ok)
    assert fixture.states == []
    fixture.trip()
    assert not fixture.call(ok=True)
    assert fixture.states == [State.OPEN]


def test_it_opens_when_more_than_half_of_the_last_calls_failed(fixture: Fixture) -> None:
    for ok in [False, True] * (WINDOW_CALLS // 2) * 2:
        assert fixture.call(ok)
    assert fixture.states == [], "half is not more than half"
    for ok in [False, False]:
        assert fixture.call(ok)
    assert fixture.states == [State.OPEN]


def test_a_few_calls_are_no_window(fixture: Fixture) -> None:
    for ok in [False, False, True] * 4:
        assert fixture.call(ok)
    assert fixture.states == []


def test_one_call_goes_through_when_its_time_is_over(fixture: Fixture) -> None:
    fixture.trip()
    fixture.now += OPEN_SECONDS - 0.001
    assert fixture.breaker.admit() is None
    fixture.now += 0.001
    probe = fixture.breaker.admit()
    assert probe is not None
    assert [fixture.breaker.admit() for _ in range(3)] == [None] * 3
    assert fixture.breaker.state is State.HALF_OPEN
    fixture.breaker.report(probe, ok=True)
    assert fixture.states == [State.OPEN, State.HALF_OPEN, State.CLOSED]
    assert fixture.call(ok=True)


def test_one_probe_among_many_threads(fixture: Fixture) -> None:
    fixture.trip()
    fixture.now += OPEN_SECONDS
    together = Barrier(8)

    def admit(_: int) -> int | None:
        together.wait()
        return fixture.breaker.admit()

    with ThreadPoolExecutor(8) as threads:
        tickets = list(threads.map(admit, range(8)))
    assert len([each for each in tickets if each is not None]) == 1


def test_it_stays_open_twice_as_long_after_each_failed_probe(fixture: Fixture) -> None:
    fixture.trip()
    waited = []
    for _ in range(7):
        seconds, ticket = fixture.probe()
        waited.append(seconds)
        fixture.breaker.report(ticket, ok=False)
    assert waited == pytest.approx([1, 2, 4, 8, 16, LONGEST_OPEN_SECONDS, LONGEST_OPEN_SECONDS], abs=0.01)


def test_a_probe_that_succeeds_forgets_everything(fixture: Fixture) -> None:
    fixture.trip()
    for ok in (False, False, True):
        fixture.breaker.report(fixture.probe()[1], ok=ok)
    fixture.trip()
    assert fixture.probe()[0] == pytest.approx(OPEN_SECONDS, abs=0.01)


@pytest.mark.parametrize(("drawn", "factor"), [(0.0, 1 - JITTER), (1.0, 1 + JITTER)])
def test_processes_do_not_come_back_at_one_moment(fixture: Fixture, drawn: float, factor: float) -> None:
    fixture.drawn = drawn
    fixture.trip()
    assert fixture.probe()[0] == pytest.approx(OPEN_SECONDS * factor, abs=0.01)


def test_calls_of_before_have_no_say(fixture: Fixture) -> None:
    slow = [fixture.breaker.admit() for _ in range(2)]
    fixture.trip()
    fixture.now += OPEN_SECONDS
    probe = fixture.breaker.admit()
    assert probe is not None
    for ticket in slow:
        assert ticket is not None
        fixture.breaker.report(ticket, ok=True)
    assert fixture.breaker.state is State.HALF_OPEN
    fixture.breaker.report(probe, ok=False)
    assert fixture.breaker.state is State.OPEN


def test_a_redis_that_does_not_answer_at_the_start_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with caplog.at_level(logging.WARNING):
        server = RedisServer(f"redis://:secret@127.0.0.1:{port}")
        server.close()
        server._writer.shutdown()
    [told] = caplog.records
    assert told.message.startswith("redis does not answer; the server does without")
    assert "secret" not in str(vars(told))
