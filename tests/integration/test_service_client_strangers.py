"""The Python clients at sockets where a stranger answers: without end, too much, too deep, in a circle, elsewhere."""

import asyncio
import json
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from strangers import HEAD, Answering, circle, dripping, folded, stranger, whole

import polyrank

SECONDS = 0.5
AT_MOST = 5.0  # on a busy machine; a stranger would go on for a minute


def waiting(url: str, call: Callable[[Any], Any], **options: Any) -> Any:
    with polyrank.Client(url, "secret", **options) as client:
        return call(client)


def awaiting(url: str, call: Callable[[Any], Any], **options: Any) -> Any:
    async def made() -> Any:
        async with polyrank.AsyncClient(url, "secret", **options) as client:
            return await call(client)

    return asyncio.run(made())


both = pytest.mark.parametrize("does", [waiting, awaiting])


@both
@pytest.mark.parametrize("answering", [
    dripping(HEAD + b"Content-Length: 1000000\r\n\r\n", b" "),
    dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    dripping(b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    dripping(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5;x=", b"x"),
    dripping(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
], ids=["body", "continue", "header", "chunk's head", "chunks"])  # fmt: skip
def test_a_call_ends_in_its_time_whatever_drips(does: Callable[..., Any], answering: Answering) -> None:
    with stranger(answering) as server:
        began = time.monotonic()
        with pytest.raises(polyrank.NoAnswer, match="may have been made"):
            does(server.url, lambda client: client.upsert([{"text": "a"}]), timeout_s=SECONDS)
        assert SECONDS * 0.9 < time.monotonic() - began < AT_MOST


@both
def test_a_body_that_is_not_read_does_not_hold_a_call(does: Callable[..., Any]) -> None:
    def sips(connection: socket.socket, request: bytes, over: threading.Event) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(1200):
            if over.wait(0.05) or not connection.recv(4096):
                return

    rows = [{"text": "a" * 60_000}] * 500
    with stranger(sips) as server:
        began = time.monotonic()
        with pytest.raises(polyrank.NoAnswer):
            does(server.url, lambda client: client.upsert(rows), timeout_s=SECONDS)
        assert time.monotonic() - began < AT_MOST


@both
def test_what_is_folded_is_not_unfolded_without_end(does: Callable[..., Any]) -> None:
    with stranger(whole(folded(), HEAD + b"Content-Encoding: gzip\r\n")) as server:
        before = _peak_bytes()
        with pytest.raises(polyrank.NotAnAnswer, match="larger than 64 MiB; ask for less at once"):
            does(server.url, lambda client: client.index())
        assert _peak_bytes() - before < 300 << 20


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@both
@pytest.mark.parametrize("head", [HEAD, HEAD.replace(b"200 OK", b"500 No")], ids=["answer", "refusal"])
@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"active":' * 50_000, b"[" * 500 + b"]" * 500])
def test_what_is_nested_too_deep_is_no_answer(does: Callable[..., Any], head: bytes, body: bytes) -> None:
    with stranger(whole(body, head)) as server, pytest.raises(polyrank.CallFailed):
        does(server.url, lambda client: client.index(), max_retries=0)


SHAPES: list[tuple[Callable[[Any], Any], Any]] = [
    (lambda client: client.pools(), {"pools": {}}),
    (lambda client: client.jobs(), {"jobs": ""}),
    (lambda client: client.rerank("q", ["a"]), {"results": {}}),
    (lambda client: client.rerank("q", ["a"]), {"results": [{"index": 1, "relevance_score": 0.5}]}),
    (lambda client: client.rank_batch([{"context": "a"}]), {"answers": []}),
    (lambda client: client.rank_batch([{"context": "a"}]), {"answers": [{"status": [], "problem": 1}]}),
    (lambda client: client.embed(["a", "b"]), {"data": [{"embedding": "AACAPw=="}]}),
    (lambda client: client.embed(["a"]), {"data": [{"embedding": [0.5]}]}),
    (lambda client: client.index(), [1]),
    (lambda client: client.rank("a"), {"results": {}}),
]


@both
@pytest.mark.parametrize(("call", "answer"), SHAPES, ids=range(len(SHAPES)))
def test_results_of_another_shape_are_no_answer(
    does: Callable[..., Any], call: Callable[[Any], Any], answer: Any
) -> None:
    with stranger(whole(json.dumps(answer).encode())) as server, pytest.raises(polyrank.NotAnAnswer):
        does(server.url, call)


@both
def test_pages_that_go_round_in_a_circle_end(does: Callable[..., Any]) -> None:
    def listed(client: Any) -> Any:
        if isinstance(client, polyrank.Client):
            return list(client.candidates())

        async def every() -> None:
            async for _ in client.candidates():
                pass

        return every()

    with stranger(circle) as server:
        with pytest.raises(polyrank.NotAnAnswer, match="circle"):
            does(server.url, listed, timeout_s=10)
        assert len(server.asked) == 3


@both
def test_no_key_goes_where_another_server_redirects_to(does: Callable[..., Any]) -> None:
    with stranger(whole(b"{}")) as thief:
        moved = b"HTTP/1.1 302 Found\r\nLocation: %s/index\r\n" % thief.url.encode()
        with stranger(whole(b"", moved)) as server:
            with pytest.raises(polyrank.RequestWrong, match=f"status 302, moved to {thief.url}/index"):
                does(server.url, lambda client: client.index())
            assert b"secret" in server.asked[0]
        assert thief.asked == []


@both
def test_redirects_on_one_server_end(does: Callable[..., Any]) -> None:
    with stranger(whole(bytes(1000), b"HTTP/1.1 302 Found\r\nLocation: /index\r\n")) as server:
        with pytest.raises(polyrank.RequestWrong, match="status 302"):
            does(server.url, lambda client: client.index())
        assert len(server.asked) == 6
