"""Turns of pipelined requests, and of all requests to begin."""

import asyncio
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import h11
import pytest

from polyrank.service.process import connections
from polyrank.service.process.connections import BEGINNINGS, Beginnings, Connection, Incoming, Turns


class Named:
    """Notes its name when it begins."""

    def __init__(self, name: str, begun: list[str]) -> None:
        self._name, self._begun = name, begun

    def begin_next(self) -> None:
        self._begun.append(self._name)


class Last:
    """Tells when it begins."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()

    def begin_next(self) -> None:
        self.has_begun.set()


def waiters(names: str, begun: list[str]) -> Sequence[Named]:
    return [Named(name, begun) for name in names]


async def begun_after(seconds: float, begun: Sequence[str]) -> str:
    await asyncio.sleep(seconds)
    return "".join(begun)


async def test_one_after_the_other_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TURN_SECONDS", 60)
    begun: list[str] = []
    turns = Turns()
    a, b, c = waiters("abc", begun)
    for each in (a, b, b, c):
        turns.ask(each)
    assert begun == [], "what is in progress goes on first"
    assert await begun_after(0.01, begun) == "a"
    turns.end(b)
    assert await begun_after(0.01, begun) == "a", "it was not b's turn"
    turns.end(a)
    turns.ask(a)
    assert await begun_after(0.01, begun) == "ab"
    for present in (b, c, a):
        turns.end(present)
        await asyncio.sleep(0)
    assert await begun_after(0.01, begun) == "abca"
    turns.ask(b)
    assert await begun_after(0.01, begun) == "abcab"


async def test_who_leaves_hands_the_turn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TURN_SECONDS", 60)
    begun: list[str] = []
    turns = Turns()
    a, b, c = waiters("abc", begun)
    for each in (a, b, c):
        turns.ask(each)
    await asyncio.sleep(0.01)
    turns.leave(b)
    turns.leave(a)
    assert await begun_after(0.01, begun) == "ac"


async def test_a_turn_that_nobody_ends_is_over_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TURN_SECONDS", 0.01)
    begun: list[str] = []
    turns = Turns()
    for each in waiters("ab", begun):
        turns.ask(each)
    last = Last()
    turns.ask(last)
    async with asyncio.timeout(5):
        await last.has_begun.wait()
    assert begun == ["a", "b"]


async def _begins(
    beginnings: Beginnings, number: int, begun: list[int], do: Callable[[], object] = list, is_known: bool = False
) -> None:
    await beginnings.turn(is_known)
    begun.append(number)
    do()


async def test_a_few_requests_begin_in_a_turn_of_the_loop_in_order() -> None:
    beginnings, begun = Beginnings(), list[int]()
    tasks = [asyncio.create_task(_begins(beginnings, number, begun)) for number in range(20)]
    await asyncio.sleep(0)  # all ask
    tasks[3].cancel()
    turns = 0
    while not all(task.done() for task in tasks):
        before = len(begun)
        await asyncio.sleep(0)
        turns += 1
        assert len(begun) - before <= BEGINNINGS
    assert begun == [number for number in range(20) if number != 3]
    assert turns >= 20 // BEGINNINGS


async def test_connections_that_have_had_an_answer_do_not_wait_for_a_burst_of_new_ones() -> None:
    beginnings, begun = Beginnings(), list[int]()
    asked = [(number, False) for number in range(10)] + [(number, True) for number in range(100, 103)]
    await asyncio.gather(*(_begins(beginnings, number, begun, is_known=is_known) for number, is_known in asked))
    assert begun[:6] == [100, 0, 101, 1, 102, 2], "one of each line"
    assert begun[6:] == [*range(3, 10)]


async def test_who_would_wait_long_comes_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BEGIN_SECONDS", 0.1)
    beginnings, begun, found, known = Beginnings(), list[int](), list[bool](), list[bool]()

    def work() -> None:
        time.sleep(0.002)
        found.append(beginnings.is_late(False))
        known.append(beginnings.is_late(True))

    assert not beginnings.is_late(False)
    await asyncio.gather(*(_begins(beginnings, number, begun, work) for number in range(100)))
    assert found[40], "60 wait, each for two milliseconds at least"
    assert not any(known), "none of these is on a connection that has had an answer"
    assert not beginnings.is_late(False), "nobody waits"


def test_a_client_that_takes_as_much_as_is_written_has_not_stalled() -> None:
    conn, seconds = Incoming(), [0.0]
    conn.receive_data(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    conn.next_event()
    held = len(conn.send(h11.Response(status_code=200, headers=[("Content-Length", "1000")])) or b"")
    client = SimpleNamespace(
        loop=SimpleNamespace(time=lambda: seconds[0]),
        transport=SimpleNamespace(get_write_buffer_size=lambda: held),
        conn=conn, unread_bytes=0, _taken_bytes=0, _read_at=0.0,
    )  # fmt: skip
    for second in (1.0, 2.0, 3.0):
        seconds[0] = second
        conn.send(h11.Data(data=b"x" * 10))
        Connection.look_at_unread(client)  # type: ignore[arg-type]
        assert (client.unread_bytes, client._read_at) == (held, second)
    seconds[0] = 4.0
    Connection.look_at_unread(client)  # type: ignore[arg-type]
    assert client._read_at == 3.0
