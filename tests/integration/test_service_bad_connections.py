"""Handled at the connection: bodies that lie about their length or have no end, and heads that are none."""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx2
import pytest
from bad_inputs import BOUND, HEAD, is_problem, resident_bytes, serve_words
from served import Served

from polyrank.service.http.plumbing.middleware import DRAIN_SECONDS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_words(tmp_path_factory.mktemp("store")) as served:
        yield served


def test_a_body_of_50_mb_is_not_held(server: Served) -> None:
    def chunks() -> Iterator[bytes]:
        yield b'{"context": "'
        for _ in range(800):
            yield b"x" * 65536

    before = resident_bytes()
    # The server may close before a client that never stops has sent everything.
    with suppress(httpx2.TransportError):
        is_problem(server.client.post("/rank", content=chunks(), headers={"Content-Type": "application/json"}), 413)
    assert resident_bytes() - before < 100 << 20
    assert server.rank(context="a").status_code == 200


def test_a_chunked_body_over_the_bound(server: Served) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * 65536

    before = server.metric("rejected_total", reason="too_large")
    response = server.client.post("/rank", content=chunks(), headers={"Content-Type": "application/json"})
    body = is_problem(response, 413)
    assert body["type"].endswith("payload-too-large")
    assert response.headers["connection"] == "close"
    assert server.metric("rejected_total", reason="too_large") == before + 1


def test_a_chunked_body_over_the_bound_that_has_ended_is_not_waited_for(server: Served) -> None:
    chunk = b"%x\r\n%s\r\n" % (BOUND + 1, b"x" * (BOUND + 1))
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n")
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()
    assert time.monotonic() - began < DRAIN_SECONDS / 2


def test_a_chunked_body_within_the_bound(server: Served) -> None:
    content = iter([b'{"context":', b' "a"}'])
    response = server.client.post("/rank", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 200


def test_a_client_that_sends_first_and_reads_later_gets_the_refusal(server: Served) -> None:
    body = b"x" * 7 * BOUND
    for _ in range(5):
        answer = server.raw(HEAD + b"Content-Length: %d\r\n\r\n" % len(body), body)
        assert answer.startswith(b"HTTP/1.1 413 ")


def test_the_bound_is_refused_before_the_body_is_sent(server: Served) -> None:
    answer = server.raw(HEAD + b"Content-Length: 999999999\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("length", [b"-1", b"abc", b"1e3", b"99999999999999999999999999", b"\xb2"])
def test_a_content_length_that_is_no_length(server: Served, length: bytes) -> None:
    answer = server.raw(HEAD + b"Content-Length: " + length + b'\r\n\r\n{"context": "a"}')
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 "))
    assert b"application/problem+json" in answer


def test_a_content_length_above_what_comes(server: Served) -> None:
    answer = server.raw(HEAD + b'Content-Length: 100\r\n\r\n{"context": "a"}', wait=0.3)
    assert answer == b"", "the rest may still come"
    assert server.rank(context="a").status_code == 200


def test_a_content_length_below_what_comes(server: Served) -> None:
    answer = server.raw(HEAD + b'Content-Length: 16\r\n\r\n{"context": "a"}"a"}}}')
    assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 400 "))
    assert server.rank(context="a").status_code == 200


def test_slow_headers_hold_nobody_else_up(server: Served) -> None:
    assert server.raw(b"POST /rank HTTP/1.1\r\nHost:", wait=0.2) == b""
    assert server.rank(context="a").status_code == 200


def test_header_bombs(server: Served) -> None:
    bomb = b"".join(b"X-%d: %s\r\n" % (n, b"y" * 1000) for n in range(500))
    answer = server.raw(HEAD + bomb + b'Content-Length: 16\r\n\r\n{"context": "a"}')
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"application/problem+json" in answer
    assert server.rank(context="a").status_code == 200
