"""Connections that send little, much, or nothing, as bytes on a socket."""

import asyncio
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from served import Served, serve
from service_fakes import build_store, words_app
from starlette.middleware.base import RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from polyrank.service.process import connections

READYZ = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
ASKED = b'{"context": "w1"}'
RANK = b"POST /rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(ASKED),
    ASKED,
)
MOST = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("store")
    build_store(root)
    with serve(words_app(root, max_connections=MOST)) as served:
        yield served
        assert served.rank(context="w1").status_code == 200


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(connections, "LINGER_SECONDS", 0.5)


@pytest.fixture
def connection(server: Served) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as opened:
        yield opened


def rest(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    return received


def problem(answer: bytes) -> tuple[int, str]:
    """Status and kind of one answer that ends its connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert b"connection: close" in lines
    assert b"content-type: application/problem+json" in lines
    assert b"content-length: %d" % len(body) in lines
    content = json.loads(body)
    assert content["request_id"]
    assert content["status"] == int(lines[0].split()[1])
    return content["status"], content["type"].rsplit(":", 1)[1]


def drip(connection: socket.socket, piece: bytes) -> None:
    """Send a piece every now and then, until the server has closed."""

    def send() -> None:
        try:
            while True:
                connection.sendall(piece)
                time.sleep(0.05)
        except OSError:
            pass

    threading.Thread(target=send, daemon=True).start()


def test_a_connection_on_which_nothing_comes_is_closed(server: Served) -> None:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        assert rest(connection) == b""
    assert 0.4 < time.monotonic() - began < 15


@pytest.mark.parametrize("piece", [b"X-Slow: a\r\n", b"x"])
def test_a_head_that_comes_too_slowly_is_refused(server: Served, connection: socket.socket, piece: bytes) -> None:
    before = server.metric("rejected_total", reason="slow_head")
    connection.sendall(READYZ[:-2])
    began = time.monotonic()
    drip(connection, piece)
    assert problem(rest(connection)) == (408, "head-timeout")
    assert time.monotonic() - began < 15
    assert server.metric("rejected_total", reason="slow_head") == before + 1


def test_a_head_behind_another_request_may_not_come_too_slowly(connection: socket.socket) -> None:
    connection.sendall(READYZ + READYZ[:-2])
    answer, between, refusal = rest(connection).rpartition(b"HTTP/1.1 ")
    assert answer.startswith(b"HTTP/1.1 200")
    assert problem(between + refusal) == (408, "head-timeout")


def test_empty_lines_do_not_keep_a_connection_open(connection: socket.socket) -> None:
    connection.sendall(READYZ)
    assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    began = time.monotonic()
    drip(connection, b"\r\n")
    rest(connection)
    assert time.monotonic() - began < 15


def test_between_requests_a_connection_may_be_silent(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 2.0)  # a busy machine may stand still for one
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        for _ in range(2):
            connection.sendall(READYZ[:20])
            time.sleep(0.2)
            connection.sendall(READYZ[20:])
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            time.sleep(2.2)
        connection.sendall(READYZ)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_request_takes_longer_than_a_head_may(connection: socket.socket) -> None:
    body = b'{"context": "w1"}'
    head = b"POST /rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    connection.sendall(head % len(body))
    for at in range(len(body)):
        connection.sendall(body[at : at + 1])
        time.sleep(0.05)
    assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_pipelined_requests_begin_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TURN_SECONDS", 60)  # so whoever hangs up must hand it on
    build_store(tmp_path)
    app = words_app(tmp_path)
    seen: Counter[object] = Counter()
    present = [0]
    gone: list[object] = []

    @app.middleware("http")
    async def watch(request: Request, call_next: RequestResponseEndpoint) -> Response:
        seen[request.client] += 1
        behind = seen[request.client] > 1 and request.client not in gone  # nobody waits for the end of those
        present.append(present[-1] + behind)
        await asyncio.sleep(0.01)
        answer = await call_next(request)
        present.append(present[-1] - behind)
        return answer

    with serve(app) as served, ExitStack() as stack:
        opened = [socket.create_connection(("127.0.0.1", served.port), timeout=30) for _ in range(6)]
        gone += [each.getsockname() for each in opened[:3]]
        for each in opened:
            stack.enter_context(each)
            each.sendall(READYZ * 6)
        time.sleep(0.03)
        for each in opened[:3]:
            each.close()
        for each in opened[3:]:
            answers = b""
            while answers.count(b"HTTP/1.1 200") < 6:
                answers += (piece := each.recv(65536))
                assert piece, "closed"
    assert max(present) == 1


def test_no_more_connections_than_may_be(server: Served) -> None:
    before = server.metric("rejected_total", reason="connections")
    opened: list[socket.socket] = []
    try:
        for _ in range(MOST):
            opened.append(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as one_more:
            answer = rest(one_more)
        assert problem(answer) == (503, "too-many-connections")
        assert b"\r\nretry-after: 1\r\n" in answer.lower()
    finally:
        for each in opened:
            each.close()
    assert server.metric("rejected_total", reason="connections") >= before + 1


def test_a_probe_is_answered_on_one_connection_too_many(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MORE", 1)
    opened = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(MOST)]
    try:
        for sent, expected in ((READYZ, 200), (RANK, 503), (READYZ, 200)):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as one_more:
                one_more.sendall(sent)
                head = rest(one_more).partition(b"\r\n\r\n")[0].lower()
            assert head.startswith(b"http/1.1 %d " % expected)
            assert b"\r\nconnection: close" in head
    finally:
        for each in opened:
            each.close()


def test_probes_overtake_requests_that_wait_to_begin(tmp_path: Path) -> None:
    """While the event loop stands still, many connections bring a request each, and the last one a probe."""
    build_store(tmp_path)
    app = words_app(tmp_path)
    begun: list[str] = []
    goes_on = threading.Event()

    @app.middleware("http")
    async def watch(request: Request, call_next: RequestResponseEndpoint) -> Response:
        begun.append(request.url.path)
        if len(begun) == 1:
            goes_on.wait(60)  # in the event loop
        return await call_next(request)

    with serve(app) as served, ExitStack() as stack:
        opened = []
        for sent in (*[RANK] * 150, READYZ):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=60))
            connection.sendall(sent)
            opened.append(connection)
        goes_on.set()
        for each in opened:
            assert each.recv(65536).startswith(b"HTTP/1.1 200"), "all are answered"
    assert len(begun) == len(opened)
    assert begun.index("/readyz") < 30, "it would be the last"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each request that waits to begin, whether its connection is known."""
    turn, noted = connections.Beginnings.turn, list[bool]()

    async def note(self: connections.Beginnings, is_known: bool) -> None:
        noted.append(is_known)
        await turn(self, is_known)

    monkeypatch.setattr(connections.Beginnings, "turn", note)
    return noted


def exchange(port: int, *requests: bytes) -> None:
    """Send requests on one connection, each after the answer to the one before."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        for sent in requests:
            connection.sendall(sent)
            answer = b""
            while b"}" not in answer:
                answer += (piece := connection.recv(65536))
                assert piece, "closed"
            time.sleep(0.05)


def test_an_answer_to_a_probe_makes_no_connection_known(server: Served, known: list[bool]) -> None:
    exchange(server.port, READYZ, RANK, RANK)
    assert known == [False, True]


def test_an_answer_makes_a_connection_known_while_its_request_is_still_worked_on(tmp_path, known: list[bool]) -> None:
    build_store(tmp_path)
    app, goes_on = words_app(tmp_path), threading.Event()

    class Lingering:
        def __init__(self, app: ASGIApp) -> None:
            self.app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await self.app(scope, receive, send)
            if scope["type"] == "http":
                await asyncio.to_thread(goes_on.wait, 30)

    app.add_middleware(Lingering)
    with serve(app) as served:
        exchange(served.port, RANK, RANK)
        is_over = goes_on.is_set()
        goes_on.set()
    assert (known, is_over) == ([False, True], False)


@pytest.mark.parametrize("parts", [[RANK], [RANK[:7], RANK[7:]]], ids=["whole", "in parts"])
def test_who_would_begin_too_late_is_told_at_once(server: Served, monkeypatch, parts: list[bytes]) -> None:
    monkeypatch.setattr(connections.Beginnings, "is_late", lambda *_: True)
    before = server.metric("rejected_total", reason="busy")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(0.05)
        answer = rest(connection)
    assert problem(answer) == (503, "busy")
    assert b"\r\nretry-after: 1\r\n" in answer.lower()
    assert server.metric("rejected_total", reason="busy") == before + 1
    for path in ("/readyz", "/livez?full", "/metrics"):
        assert server.client.get(path).status_code == 200


def test_a_request_that_has_half_arrived_when_the_server_stops_is_answered(tmp_path: Path) -> None:
    build_store(tmp_path)
    sent = [b"", READYZ[:9], READYZ]
    with serve(words_app(tmp_path)) as served:
        opened = [socket.create_connection(("127.0.0.1", served.port), timeout=30) for _ in sent]
        for each, begun in zip(opened, sent, strict=True):
            each.sendall(begun)
        served.stop()
        time.sleep(0.3)
        for each, begun in zip(opened, sent, strict=True):
            each.sendall(READYZ.removeprefix(begun))
            answer = rest(each)
            assert answer.startswith(b"HTTP/1.1 "), answer
            assert begun == READYZ or b"\r\nconnection: close\r\n" in answer.lower()
            each.close()
