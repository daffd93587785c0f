"""Compressed requests and answers, and the bounds that hold for them."""

import asyncio
import gzip
import json
import random
import threading
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process import TestClient
from service_fakes import build_store, words_app
from starlette.types import Message

from polyrank.model.errors import RankingError
from polyrank.service.errors import BodyMalformed, BodyTooLarge
from polyrank.service.http.plumbing import middleware
from polyrank.service.http.plumbing.compression import FEW_BYTES, LEAST_BYTES, PIECE_BYTES, Unzipped, accepts

BOUND = 400_000
RANK = {"context": "w1 w2", "top_k": 2}
SENT_ZIPPED = {"Content-Type": "application/json", "Content-Encoding": "gzip"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    root: Path = tmp_path_factory.mktemp("store")
    build_store(root)
    with TestClient(words_app(root, max_body_bytes=BOUND)) as made:
        made.headers["accept-encoding"] = "identity"
        yield made


def unzipped(body: bytes, chunk: int, limit: int = 10**9) -> list[bytes]:
    """The pieces that come out of a body that arrives in chunks; at the end the caller hangs up."""
    chunks = [body[at : at + chunk] for at in range(0, len(body), chunk)] or [b""]

    async def arriving() -> AsyncIterator[Message]:
        for at, each in enumerate(chunks):
            yield {"type": "http.request", "body": each, "more_body": at < len(chunks) - 1}
        yield {"type": "http.disconnect"}

    async def receive_all() -> list[bytes]:
        messages = arriving()
        receive, pieces = Unzipped(lambda: anext(messages), limit), []
        while (message := await receive())["type"] == "http.request":
            pieces.append(message["body"])
            if not message["more_body"]:
                assert (await receive())["type"] == "http.disconnect"
                break
        return pieces

    return asyncio.run(receive_all())


@given(st.binary(max_size=300), st.integers(1, 900), st.integers(1, 60))
def test_it_comes_out_as_it_went_in_however_it_arrives(unit: bytes, times: int, chunk: int) -> None:
    body = unit * times
    pieces = unzipped(gzip.compress(body), chunk)
    assert b"".join(pieces) == body
    assert max(map(len, pieces)) <= PIECE_BYTES


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES])
def test_pieces_are_bounded_at_every_size(size: int) -> None:
    pieces = unzipped(gzip.compress(bytes(size)), 10**6)
    assert (sum(map(len, pieces)), max(map(len, pieces)) <= PIECE_BYTES) == (size, True)


@pytest.mark.parametrize(("body", "error"), [
    (b"", BodyMalformed),
    (b"{}", BodyMalformed),
    (gzip.compress(b"{}" * 100)[:-1], BodyMalformed),
    (gzip.compress(b"{}") + b"more", BodyMalformed),
    (gzip.compress(b"{}") * 2, BodyMalformed),
    (gzip.compress(b"{}")[:10] + b"\x00\x00\x00\xff\xff" * 200, BodyTooLarge),
], ids=["nothing", "plain", "cut off", "text after it", "two streams", "blocks of nothing"])  # fmt: skip
@pytest.mark.parametrize("chunk", [1, 7, 10**6])
def test_what_is_not_one_stream_is_refused(body: bytes, error: type[RankingError], chunk: int) -> None:
    with pytest.raises(error):
        unzipped(body, chunk, limit=900)


def test_a_compressed_request(client: TestClient) -> None:
    plain = client.post("/rank", json=RANK).json()["results"]
    sent = client.post("/rank", content=gzip.compress(json.dumps(RANK).encode()), headers=SENT_ZIPPED)
    assert (sent.status_code, sent.json()["results"]) == (200, plain)
    bad = client.post("/rank", content=b"{}", headers=SENT_ZIPPED)
    assert (bad.status_code, bad.json()["detail"]) == (400, "the body is no gzip, as Content-Encoding says")


@pytest.mark.parametrize("size", [BOUND + 1, 200 * BOUND])
def test_a_bomb_is_refused_after_the_bound(client: TestClient, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given_out = []
    decompressed = Unzipped._decompressed
    monkeypatch.setattr(
        Unzipped, "_decompressed", lambda self: given_out.append(len(piece := decompressed(self))) or piece
    )
    bomb = gzip.compress(b" " * size)
    assert len(bomb) < BOUND
    answer = client.post("/rank", content=bomb, headers=SENT_ZIPPED)
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:polyrank:problem:payload-too-large")
    assert sum(given_out) <= BOUND + PIECE_BYTES


def test_no_more_is_decompressed_at_once_than_may_come_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop waits for little input and little output; where it is not little, beside it."""
    read: list[tuple[int, bool]] = []
    made = zlib.decompressobj

    class Decoder:
        def __init__(self, window: int) -> None:
            self._decoder = made(window)

        def decompress(self, data: bytes, most: int) -> bytes:
            read.append((len(data), threading.current_thread() is threading.main_thread()))
            return self._decoder.decompress(data, most)

        def __getattr__(self, name: str) -> object:
            return getattr(self._decoder, name)

    monkeypatch.setattr(zlib, "decompressobj", Decoder)
    body = random.Random(1).randbytes(20 * PIECE_BYTES)  # cannot be made smaller
    assert b"".join(unzipped(gzip.compress(body), 10**7)) == body
    assert max(size for size, _ in read) <= PIECE_BYTES
    assert not any(is_on_loop for _, is_on_loop in read)
    read.clear()
    assert b"".join(unzipped(gzip.compress(b"{}"), 5)) == b"{}"
    assert all(is_on_loop for _, is_on_loop in read)
    read.clear()
    blank = b" " * 60 * PIECE_BYTES
    assert b"".join(unzipped(gzip.compress(blank), FEW_BYTES)) == blank
    assert sum(is_on_loop for _, is_on_loop in read) == 1


@pytest.mark.parametrize("chunk", [1000, PIECE_BYTES, 10**7])
def test_what_holds_nothing_is_given_up_soon(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    take = Unzipped._take
    monkeypatch.setattr(
        Unzipped, "_take", lambda self, message: taken.append(len(message["body"])) or take(self, message)
    )
    nothing = gzip.compress(b"{}")[:10] + b"\x00\x00\x00\xff\xff" * 3_000_000
    with pytest.raises(BodyMalformed, match="longer than what comes out of it"):
        unzipped(nothing, chunk)
    assert sum(taken) <= 2 * PIECE_BYTES + chunk


@pytest.mark.parametrize("flushed", [zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH])
def test_a_body_that_is_flushed_line_by_line_is_no_such_thing(flushed: int) -> None:
    encoder = zlib.compressobj(9, zlib.DEFLATED, 31)
    lines = [b'{"id": %d}\n' % number for number in range(30_000)]
    sent = b"".join(encoder.compress(line) + encoder.flush(flushed) for line in lines) + encoder.flush()
    assert b"".join(unzipped(sent, 5000)) == b"".join(lines)


def test_a_large_answer_is_handed_on_in_pieces(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_headers, plain = large(client, "identity")
    monkeypatch.setattr(middleware, "ANSWER_BYTES", 100)
    for accepted in ("identity", "gzip"):
        headers, sent = large(client, accepted)
        body = sent if accepted == "identity" else zlib.decompress(sent, 31)
        assert int(headers["content-length"]) == len(sent) > 100
        assert json.loads(body)["data"] == json.loads(plain)["data"]
    assert int(plain_headers["content-length"]) == len(plain)


def large(client: TestClient, accepted: str) -> tuple[dict[str, str], bytes]:
    """A large answer as it was sent."""
    texts = ["w1 w2 w3"] * 200
    with client.stream("POST", "/v1/embeddings", json={"input": texts}, headers={"accept-encoding": accepted}) as told:
        return dict(told.headers), b"".join(told.iter_raw())


def test_a_large_answer_is_compressed_where_that_is_accepted(client: TestClient) -> None:
    plain_headers, plain = large(client, "identity")
    headers, small = large(client, "br, gzip")
    assert (headers["content-encoding"], headers["vary"]) == ("gzip", "Accept-Encoding")
    assert int(headers["content-length"]) == len(small) < len(plain) / 2
    assert json.loads(zlib.decompress(small, 31))["data"] == json.loads(plain)["data"]
    assert ("content-encoding" in plain_headers, plain_headers["vary"]) == (False, "Accept-Encoding")
    assert int(plain_headers["content-length"]) == len(plain)


def test_a_small_answer_is_not_compressed(client: TestClient) -> None:
    answer = client.post("/rank", json=RANK, headers={"accept-encoding": "gzip"})
    assert len(answer.content) < LEAST_BYTES
    assert not {"content-encoding", "vary"} & set(answer.headers)


def test_head_and_get_say_the_same(client: TestClient) -> None:
    accepted = {"accept-encoding": "gzip"}
    head, get = client.head("/openapi.json", headers=accepted), client.get("/openapi.json", headers=accepted)
    assert get.headers["content-encoding"] == "gzip"
    for name in ("content-encoding", "content-length", "vary"):
        assert head.headers[name] == get.headers[name]
    assert get.json() == client.get("/openapi.json").json()


@pytest.mark.parametrize(("values", "accepted"), [
    ([], False), (["gzip"], True), (["GZIP ; q=0.1"], True), (["br", "gzip"], True), (["*"], True),
    (["gzip;q=0"], False), (["gzip; q=0.000, *"], False), (["*;q=0"], False), (["identity"], False),
])  # fmt: skip
def test_what_a_caller_accepts(values: list[str], accepted: bool) -> None:
    assert accepts(values) is accepted
