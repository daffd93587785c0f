"""What hostile callers send: each attack is one function, which returns the status of the answer or how it ended."""

import gzip
import http.client
import json
import random
import socket
import struct
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

PATIENCE_SECONDS = 20.0  # of an attacker with one connection
HOSTILE_IDS = [f"hostile-{number}" for number in range(50)]
JSON = {"Content-Type": "application/json"}
GZIPPED = {**JSON, "Content-Encoding": "gzip"}
HEAD = b"POST /rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ASK = b'{"context": "hello", "candidates": ["a", "b"]}'
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
MOST_BYTES = 16 * 1024 * 1024  # of a body, by default
FIELDS = ("context", "persona", "candidates", "score_threshold", "group_by", "exclude_ids", "generation", "timeout_ms")


@dataclass(frozen=True, slots=True)
class Target:
    """Where the server listens."""

    host: str
    port: int

    def connect(self) -> socket.socket:
        """Return a connection whose waits end."""
        return socket.create_connection((self.host, self.port), timeout=PATIENCE_SECONDS)

    def send(self, *parts: bytes) -> str:
        """Send bytes, a moment apart; returns the status of the first answer, or how the connection ended."""
        with closing(self.connect()) as connection:
            for part in parts:
                connection.sendall(part)
                time.sleep(0.02)
            head = connection.recv(64)
        return head[9:12].decode(errors="replace") or "ended"

    def call(self, method: str, path: str, body: Any, headers: Mapping[str, str] = JSON) -> str:
        """Send one request with a body of bytes, or of JSON; returns the status."""
        sent = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        with closing(http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_SECONDS)) as connection:
            connection.request(method, path, sent, dict(headers))
            return str(connection.getresponse().status)


def slow_text(draw: random.Random, letters: int = 19_000) -> str:
    """Return a text that a tokenizer of word pieces reads slowly: long words that it knows no part of."""
    words = (
        lambda: "".join(draw.choices("абвгдежзийклмно", k=100)) + " ",
        lambda: "".join(draw.choices("qzxjvkw", k=99)) + "\U0001f9ff\n",
        lambda: "e" + "".join(draw.choices("\u0301\u0316\u0345\u05b0", k=200)),
        lambda: "".join(draw.choices(".,;!?", k=50)),
    )
    word = draw.choice(words)
    some = "".join(word() for _ in range(20))
    return (some * (letters // len(some) + 1))[:letters]


def slow_texts(draw: random.Random) -> list[str]:
    """Return different slow texts, of 0.4 to 4 million characters in all."""
    text = slow_text(draw)
    return [f"{number} {text}" for number in range(draw.choice((20, 50, 200)))]


def upgrade(target: Target, draw: random.Random) -> str:
    """Offer HTTP/2, and send a request as the body in a second packet."""
    body = draw.choice((LIVEZ, ASK))
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(body)
    return target.send(HEAD + offer, body)


def trailers(target: Target, draw: random.Random) -> str:
    """Send megabytes of trailers after the last chunk."""
    chunk = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(ASK), ASK)
    return target.send(HEAD + chunk, b"X-Trailer: hello\r\n" * draw.choice((10, 50_000, 400_000)))


def pipelining(target: Target, draw: random.Random) -> str:
    """Send a megabyte of small requests at once, over several connections."""
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(target.connect())) for _ in range(draw.choice((1, 10)))]
        for connection in connections:
            with suppress(OSError):
                connection.sendall(LIVEZ * 20_000)
        return connections[0].recv(64)[9:12].decode(errors="replace") or "ended"


def small_chunks(target: Target, draw: random.Random) -> str:
    """Send a body in chunks of one byte, or malformed ones."""
    chunks = b"1\r\n{\r\n" * 50_000 if draw.random() < 0.5 else b"zz\r\nhello\r\n"
    return target.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", chunks)


def never_reading(target: Target, draw: random.Random) -> str:
    """Ask for the description again and again over connections that never read."""
    request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 300
    with ExitStack() as stack:
        for _ in range(draw.choice((10, 100))):
            connection = stack.enter_context(closing(target.connect()))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            with suppress(OSError):
                connection.send(request)
        time.sleep(draw.uniform(1, 15))
    return "left"


def unfinished(target: Target, draw: random.Random) -> str:
    """Begin large bodies and do not end them."""
    with ExitStack() as stack:
        for _ in range(draw.choice((2, 10))):
            connection = stack.enter_context(closing(target.connect()))
            with suppress(OSError):
                connection.sendall(HEAD + b"Content-Length: 15000000\r\n\r\n" + b" " * 14_000_000)
        time.sleep(draw.uniform(0, 5))
    return "left"


def half_heads(target: Target, draw: random.Random) -> str:
    """Open connections that send half a head."""
    with ExitStack() as stack:
        for _ in range(draw.choice((10, 300))):
            stack.enter_context(closing(target.connect())).sendall(b"GET /livez HTTP/1.1\r\nHost: lo")
        time.sleep(draw.uniform(0, 12))
    return "left"


def no_http(target: Target, draw: random.Random) -> str:
    """Send what is no request."""
    return target.send(
        draw.choice((
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"hello\r\n\r\n",
            draw.randbytes(1000) + b"\r\n\r\n", LIVEZ[:-2] + b"X-A: " + b"a" * 200_000,
            LIVEZ[:-2] + b"a:\r\n" * 8_000 + b"\r\n", HEAD + b"Content-Length: 1, 2\r\n\r\n{}",
            HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        ))
    )  # fmt: skip


def slow_candidates(target: Target, draw: random.Random) -> str:
    """Rank slow texts, or read them in another field."""
    texts = slow_texts(draw)
    path, body = draw.choice((
        ("/rank", {"context": "hello", "candidates": texts}), ("/rank", {"context": texts[:50]}),
        ("/rank", {"context": "hello", "persona": texts[:50]}), ("/rerank", {"query": "hello", "texts": texts}),
        ("/rerank", {"query": texts[0], "texts": ["hello"] * 100}), ("/embed", {"inputs": texts}),
        ("/v1/embeddings", {"input": texts}), ("/tokenize", {"inputs": texts[:19]}),
    ))  # fmt: skip
    return target.call("POST", path, body, {**JSON, "X-Request-Timeout-Ms": str(draw.choice((300, 1000, 10_000)))})


def slow_updates(target: Target, draw: random.Random) -> str:
    """Add a few slow texts to the pool, or remove them."""
    if draw.random() < 0.3:
        return target.call("POST", "/index/candidates/delete", {"ids": HOSTILE_IDS})
    chosen = draw.sample(HOSTILE_IDS, k=draw.choice((1, 20)))
    return target.call("PUT", "/index/candidates", [{"id": each, "text": slow_text(draw)} for each in chosen])


def wide_filter(target: Target, draw: random.Random) -> str:
    """Filter by many fields that no candidate has."""
    conditions = {f"unknown{draw.random()}": [*range(50)] for _ in range(64)}
    return target.call("POST", "/rank", {"context": "hello", "filter": conditions, "timeout_ms": 500})


def bad_body(target: Target, draw: random.Random) -> str:
    """Send JSON that is deep, wide, cut, or means nothing."""
    deep = "[" * 100_000 + "]" * 100_000
    wide = "[" + "1," * 900_000 + "1]"
    texts = (
        deep,
        wide,
        '{"context": "a',
        "\ud83e".encode("utf-8", "surrogatepass").decode("latin-1"),
        "NaN",
        '{"context": 1e999}',
    )
    body = draw.choice(texts).encode()
    return target.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def foreign_page(target: Target, draw: random.Random) -> str:
    """Do as a page of another site does, or as one whose name leads here."""
    strange = draw.choice(({"Origin": "https://evil.example"}, {"Host": "evil.example"}))
    return target.call("POST", draw.choice(("/index/rollback", "/rank")), {"context": "hello"}, {**JSON, **strange})


def too_many(target: Target, draw: random.Random) -> str:
    """Rank thousands of new texts in no time."""
    texts = [f"{draw.random()} and some more words to read" for _ in range(draw.choice((200, 5000)))]
    return target.call("POST", "/rank", {"context": "hello", "candidates": texts, "timeout_ms": draw.choice((1, 500))})


def misspelt(count: int) -> dict[str, int]:
    """Return fields that no model has, in the letters of those that some have: looking for what was meant is slow."""
    return {f"{FIELDS[number % len(FIELDS)][::-1]}{number}": 1 for number in range(count)}


@cache
def with_mistakes(path: str) -> bytes:
    """Return a body of 990 unknown fields for a route, just below the 1,000 mistakes that are told one by one."""
    bodies: dict[str, Any] = {
        "/rank": {"context": "hello"},
        "/explain": {"context": "hello", "candidates": ["a"]},
        "/classify": {"context": "hello", "texts": ["a"]},
        "/index/candidates": {"id": "mistaken", "text": "a"},
    }
    mistaken = {**bodies[path], **misspelt(990)}
    return json.dumps([mistaken] if path == "/index/candidates" else mistaken).encode()


@cache
def mistaken_batch() -> bytes:
    """Return a hundred rankings of 990 mistakes each, compressed to a hundredth."""
    one = with_mistakes("/rank")
    return gzip.compress(b'{"requests": [' + b",".join([one] * 100) + b"]}")


@cache
def gzipped(kind: str) -> bytes:
    """Return a compressed body: much out of little, nothing out of much, or nothing out of many members."""
    if kind == "bomb":
        return gzip.compress(b'{"context": "' + bytes(16 * MOST_BYTES))
    if kind == "blanks":
        return gzip.compress(b" " * (MOST_BYTES - len(ASK)) + ASK)
    if kind == "members":
        return gzip.compress(b"") * 50_000
    empty = b"\0\0\0\xff\xff" * (MOST_BYTES // 5 - 10)  # stored blocks of no bytes
    return gzip.compress(b"")[:10] + empty + b"\1" + empty[1:5] + struct.pack("<II", zlib.crc32(b""), 0)


@cache
def token_ids(texts: int) -> bytes:
    """Return 990,000 token ids, in so many texts."""
    return json.dumps({"model": "any", "input": [[101] * (990_000 // texts)] * texts}).encode()


@cache
def wide_documents() -> bytes:
    """Return 10,000 documents of 60 fields to rerank."""
    document = {"text": "hello", **{f"f{number}": number for number in range(59)}}
    return json.dumps({"query": "hello", "documents": [document] * 10_000}).encode()


def unknown_fields(target: Target, _draw: random.Random) -> str:
    """Rank with 990 unknown fields."""
    return target.call("POST", "/rank", with_mistakes("/rank"))


def explain_mistakes(target: Target, _draw: random.Random) -> str:
    """Explain with 990 unknown fields."""
    return target.call("POST", "/explain", with_mistakes("/explain"))


def classify_mistakes(target: Target, _draw: random.Random) -> str:
    """Classify with 990 unknown fields."""
    return target.call("POST", "/classify", with_mistakes("/classify"))


def update_mistakes(target: Target, _draw: random.Random) -> str:
    """Put a candidate with 990 unknown fields."""
    return target.call("PUT", "/index/candidates", with_mistakes("/index/candidates"))


def batch_mistakes(target: Target, _draw: random.Random) -> str:
    """Rank a hundred times with 990 unknown fields each, compressed."""
    return target.call("POST", "/rank/batch", mistaken_batch(), GZIPPED)


def parameters(target: Target, _draw: random.Random) -> str:
    """List candidates by 5,200 parameters that are none."""
    query = "&".join(f"{number}=" for number in range(1000, 6200))
    return target.call("GET", f"/index/candidates?{query}", b"")


def unknown_paths(target: Target, draw: random.Random) -> str:
    """Ask for what is not there, close to what is."""
    return target.call("GET", f"/index/candidate{draw.randrange(10**9)}/rollback/jobs", b"")


def deep_nesting(target: Target, draw: random.Random) -> str:
    """Nest lists or objects in a field."""
    deep = draw.choice((60, 190, 5000, 400_000))
    lists = b"[" * deep + b"]" * deep
    objects = b'{"not":' * deep + b"1" + b"}" * deep
    candidate = b'[{"id": "%s", "text": "a", "metadata": {"a": %s}}]' % (HOSTILE_IDS[0].encode(), lists)
    method, path, body = draw.choice((
        ("POST", "/rank", b'{"context": %s}' % lists),
        ("POST", "/rank", b'{"context": "hello", "filter": %s}' % objects),
        ("PUT", "/index/candidates", candidate),
    ))  # fmt: skip
    return target.call(method, path, body)


def gzip_bomb(target: Target, draw: random.Random) -> str:
    """Send 256 MiB in 256 kB, 16 MiB of blanks, or 50,000 empty members."""
    return target.call("POST", "/rank", gzipped(draw.choice(("bomb", "blanks", "members"))), GZIPPED)


def gzip_empty(target: Target, _draw: random.Random) -> str:
    """Send 16 MB of compressed blocks that hold nothing."""
    return target.call("POST", "/rank", gzipped("empty"), GZIPPED)


def embed_token_ids(target: Target, draw: random.Random) -> str:
    """Embed 990,000 token ids, of one text or of 9,900."""
    return target.call("POST", "/v1/embeddings", token_ids(draw.choice((1, 9900))))


def rerank_documents(target: Target, _draw: random.Random) -> str:
    """Rerank 10,000 documents of 60 fields each."""
    return target.call("POST", "/rerank", wide_documents())


def slow_bodies(target: Target, draw: random.Random) -> str:
    """Send bodies over many connections, a byte at a time."""
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(target.connect())) for _ in range(draw.choice((10, 100)))]
        for connection in connections:
            connection.sendall(HEAD + b"Content-Length: 5000\r\n\r\n")
        for _ in range(20):
            time.sleep(0.2)
            for connection in connections:
                with suppress(OSError):
                    connection.sendall(b" ")
    return "left"


def wrong_types(target: Target, draw: random.Random) -> str:
    """Send a body as what it is not."""
    types = ("text/xml", "multipart/form-data; boundary=a", "application/json; charset=utf-16", "a" * 5000, "", "/")
    headers = draw.choice([*({"Content-Type": each} for each in types), {**JSON, "Content-Encoding": "br"}])
    return target.call("POST", draw.choice(("/rank", "/rerank", "/index")), ASK, headers)


def cut_off(target: Target, draw: random.Random) -> str:
    """Send half of a request over each of some connections, and reset them."""
    body = json.dumps({"context": "hello", "candidates": ["a"] * 5000}).encode()
    for _ in range(10):
        with closing(target.connect()) as connection:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body[: draw.randrange(len(body))])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return "left"


def huge_heads(target: Target, draw: random.Random) -> str:
    """Send as many headers as are read, or more."""
    lines = draw.choice((b"X-%d: a\r\n" * 250, b"Cookie: %06d=a\r\n" * 1600, b"X-%d: " + b"a" * 300_000 + b"\r\n"))
    count = lines.count(b"%")
    return target.send(LIVEZ[:-2] + lines % tuple(range(count)) + b"\r\n")


# By name: what `--only` of benchmarks.load.hostile takes.
ATTACKS: Mapping[str, Callable[[Target, random.Random], str]] = {
    each.__name__: each
    for each in (
        unknown_fields, batch_mistakes, parameters, explain_mistakes, classify_mistakes, update_mistakes, unknown_paths,
        deep_nesting, gzip_bomb, gzip_empty, embed_token_ids, rerank_documents, slow_bodies, wrong_types, cut_off,
        huge_heads, upgrade, trailers, pipelining, small_chunks, never_reading, unfinished, half_heads, no_http,
        slow_candidates, slow_updates, wide_filter, bad_body, foreign_page, too_many,
    )
}  # fmt: skip
