"""What hostile callers do that is more than one request of `worst.py`: slow senders, raw bytes, bursts, feedback.

Each attack is one function, which returns the status of the answer or how it ended, of a burst those of all requests.
"""

import http.client
import json
import random
import selectors
import socket
import string
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from benchmarks.load.worst import HOSTILE, JSON, Call, worst

PATIENCE_SECONDS = 20.0  # of an attacker with one connection
COUNTING_ANEW = {
    *("POST /index/compact: nothing", "POST /index: many candidates"),
    *("PUT /index/candidates: many candidates", "PUT /index/candidates: equal candidates"),
}
HEAD = b"POST /rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ASK = b'{"context": "hello", "candidates": ["a", "b"]}'
WORDS = ("where", "is", "my", "order", "please", "cancel", "it", "send", "the", "money", "back", "to", "me", "why")
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Target:
    """Where the server listens."""

    host: str
    port: int

    def connect(self) -> socket.socket:
        """Return a connection whose waits end."""
        return socket.create_connection((self.host, self.port), timeout=PATIENCE_SECONDS)

    def used(self) -> socket.socket:
        """Return a connection that has had an answer to a ranking."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_SECONDS)
        connection.request("POST", "/rank", ASK, dict(JSON))
        connection.getresponse().read()
        return cast(socket.socket, connection.sock)

    def send(self, *parts: bytes) -> str:
        """Send bytes, a moment apart; returns the status of the first answer, or how the connection ended."""
        with closing(self.connect()) as connection:
            for part in parts:
                connection.sendall(part)
                time.sleep(0.02)
            head = connection.recv(64)
        return head[9:12].decode(errors="replace") or "ended"

    def answer(self, call: Call) -> tuple[str, bytes]:
        """Send one request; returns the status and the body of its answer."""
        with closing(http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_SECONDS)) as connection:
            connection.request(call.method, call.path, call.body, dict(call.headers))
            answer = connection.getresponse()
            return str(answer.status), answer.read()

    def call(self, call: Call) -> str:
        """Send one request and read all of its answer; returns the status."""
        return self.answer(call)[0]

    def ask(self, method: str, path: str, body: Any, **headers: str) -> str:
        """Send a body of JSON; returns the status."""
        return self.call(Call("", method, path, json.dumps(body).encode(), {**JSON, **headers}))

    def hold(self, count: int, sent: bytes, seconds: float, drop: bytes = b"") -> str:
        """Open so many connections that send bytes, and then a drop at a time for so long, and read nothing."""
        with ExitStack() as stack:
            connections = [stack.enter_context(closing(self.connect())) for _ in range(count)]
            for each in connections:
                with suppress(OSError):
                    each.sendall(sent)
            for _ in range(int(seconds / 0.2)):
                time.sleep(0.2)
                for each in connections:
                    with suppress(OSError):
                        each.sendall(drop)
        return "left"


Attack = Callable[[Target, random.Random], str | Sequence[str]]


def slow_text(draw: random.Random, letters: int = 19_000) -> str:
    """Return a text that a tokenizer of word pieces reads slowly: long words that it knows no part of."""
    words: tuple[Callable[[], str], ...] = (
        lambda: "".join(draw.choices("абвгдежзийклмно", k=100)) + " ",
        lambda: "".join(draw.choices("qzxjvkw", k=99)) + "\U0001f9ff\n",
        lambda: "e" + "".join(draw.choices("\u0301\u0316\u0345\u05b0", k=200)),
        lambda: "".join(draw.choices(".,;!?", k=50)),
    )
    word = draw.choice(words)
    some = "".join(word() for _ in range(20))
    return (some * (letters // len(some) + 1))[:letters]


def upgrade(target: Target, draw: random.Random) -> str:
    """Offer HTTP/2, and send a request as the body in a second packet."""
    body = draw.choice((LIVEZ, ASK))
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(body)
    return target.send(HEAD + offer, body)


def trailers(target: Target, draw: random.Random) -> str:
    """Send megabytes of trailers after the last chunk."""
    chunk = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(ASK), ASK)
    return target.send(HEAD + chunk, b"X-Trailer: hello\r\n" * draw.choice((10, 50_000, 400_000)))


def small_chunks(target: Target, draw: random.Random) -> str:
    """Send a body in chunks of one byte, or malformed ones."""
    chunks = b"1\r\n{\r\n" * 50_000 if draw.random() < 0.5 else b"zz\r\nhello\r\n"
    return target.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", chunks)


def no_http(target: Target, draw: random.Random) -> str:
    """Send what is no request, or has a head of as many headers as are read, or more."""
    return target.send(
        draw.choice((
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"hello\r\n\r\n",
            draw.randbytes(1000) + b"\r\n\r\n", LIVEZ[:-2] + b"X-A: " + b"a" * 300_000,
            LIVEZ[:-2] + b"a:\r\n" * 8_000 + b"\r\n", HEAD + b"Content-Length: 1, 2\r\n\r\n{}",
            HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
            LIVEZ[:-2] + b"X-%d: a\r\n" * 250 % (*range(250),) + b"\r\n",
            LIVEZ[:-2] + b"Cookie: %06d=a\r\n" * 1600 % (*range(1600),) + b"\r\n",
        ))
    )  # fmt: skip


def pipelining(target: Target, draw: random.Random) -> str:
    """Send a megabyte of small requests at once, over several connections, and read no answer."""
    return target.hold(draw.choice((1, 10)), LIVEZ * 20_000, draw.uniform(0, 2))


def never_reading(target: Target, draw: random.Random) -> str:
    """Ask for the description again and again over connections that never read."""
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 300
    return target.hold(draw.choice((10, 100)), asked, draw.uniform(1, 15))


def unfinished(target: Target, draw: random.Random) -> str:
    """Begin large bodies and do not end them."""
    body = HEAD + b"Content-Length: 15000000\r\n\r\n" + b" " * 14_000_000
    return target.hold(draw.choice((2, 10)), body, draw.uniform(0, 5))


def half_heads(target: Target, draw: random.Random) -> str:
    """Open connections that send half a head."""
    return target.hold(draw.choice((10, 300)), LIVEZ[:30], draw.uniform(0, 12))


def slow_bodies(target: Target, draw: random.Random) -> str:
    """Send bodies over many connections, a byte at a time."""
    return target.hold(draw.choice((10, 100)), HEAD + b"Content-Length: 5000\r\n\r\n", 4.0, b" ")


def cut_off(target: Target, draw: random.Random) -> str:
    """Send half of a request over each of some connections, and reset them."""
    body = json.dumps({"context": "hello", "candidates": ["a"] * 5000}).encode()
    for _ in range(10):
        with closing(target.connect()) as connection:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body[: draw.randrange(len(body))])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return "left"


def slow_texts(target: Target, draw: random.Random) -> str:
    """Rank 0.4 to 4 million letters that are slow to read, or send them in another field."""
    text = slow_text(draw)
    texts = [f"{number} {text}" for number in range(draw.choice((20, 50, 200)))]
    path, body = draw.choice((
        ("/rank", {"context": "hello", "candidates": texts}), ("/rank", {"context": texts[:50]}),
        ("/rank", {"context": "hello", "persona": texts[:50]}), ("/rerank", {"query": "hello", "texts": texts}),
        ("/rerank", {"query": texts[0], "texts": ["hello"] * 100}), ("/embed", {"inputs": texts}),
        ("/v1/embeddings", {"input": texts}), ("/tokenize", {"inputs": texts[:19]}),
    ))  # fmt: skip
    return target.ask("POST", path, body, **{"X-Request-Timeout-Ms": str(draw.choice((300, 1000, 10_000)))})


def slow_updates(target: Target, draw: random.Random) -> str:
    """Add a few slow texts to the pool, or remove them."""
    ids = [f"{HOSTILE}{number}" for number in range(50)]
    if draw.random() < 0.3:
        return target.ask("POST", "/index/candidates/delete", {"ids": ids})
    chosen = draw.sample(ids, k=draw.choice((1, 20)))
    return target.ask("PUT", "/index/candidates", [{"id": each, "text": slow_text(draw)} for each in chosen])


def new_texts(target: Target, draw: random.Random) -> str:
    """Rank thousands of new texts in no time."""
    texts = [f"{draw.random()} and some more words to read" for _ in range(draw.choice((200, 5000)))]
    return target.ask("POST", "/rank", {"context": "hello", "candidates": texts, "timeout_ms": draw.choice((1, 500))})


def feedback(target: Target, draw: random.Random) -> str:
    """Say of a ranking as much as may be said, and more: texts that nothing compresses, again, of others, of nobody."""
    status, told = target.answer(Call("", "POST", "/rank", json.dumps({"context": "hello", "top_k": 3}).encode()))
    if status != "200":
        return status
    ranking = json.loads(told).get("ranking_id", "")
    if draw.random() < 0.2:
        ranking = ranking[:-1] + draw.choice("0123456789abcdef")
    letters = draw.choice((390, 390, 4_000))
    text = "".join(draw.choices(string.ascii_letters, k=letters))
    for turn in range(draw.choice((1, 5))):
        written = {"ranking_id": ranking, "kind": "written"}
        events = [{**written, "event_id": f"{turn % 2} {at}", "text": text[at:] + text[:at]} for at in range(100)]
        wrong = {"ranking_id": ranking, "event_id": f"{turn}", "kind": "chosen", "id": "never shown"}
        status = target.ask("POST", "/feedback", {"events": [wrong, *events[1:]]})
    return status


def burst(
    target: Target, draw: random.Random, count: int, a_second: float = 0.0, are_old: bool = False
) -> Sequence[str]:
    """Send a ranking over each of so many connections, at once or so many a second; returns all their statuses.

    `are_old`: each connection has had an answer before. Plain sockets: asyncio would take longer for a connection than
    the server.
    """
    old = [target.used() for _ in range(count if are_old else 0)]
    answers, selector, began = list[str](), selectors.DefaultSelector(), time.monotonic()
    opened: dict[socket.socket, tuple[float, bytearray]] = {}
    number = 0

    def end(connection: socket.socket, status: str) -> None:
        del opened[connection]
        selector.unregister(connection)
        connection.close()
        answers.append(status)

    while number < count or opened:
        now = time.monotonic()
        while number < count and (due := began + (number / a_second if a_second else 0.0)) <= now:
            connection = old[number] if are_old else socket.socket()
            connection.setblocking(False)
            if not are_old:
                connection.connect_ex((target.host, target.port))
            opened[connection] = due, bytearray()
            selector.register(connection, selectors.EVENT_WRITE)
            number += 1
        for key, event in selector.select(0.001):
            connection = cast(socket.socket, key.fileobj)
            try:
                if event & selectors.EVENT_WRITE:
                    body = json.dumps({"context": " ".join(draw.sample(WORDS, k=6)), "top_k": 300}).encode()
                    connection.send(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
                    selector.modify(connection, selectors.EVENT_READ)
                    continue
                piece, got = connection.recv(1 << 18), opened[connection][1]
            except OSError as error:
                end(connection, type(error).__name__)
                continue
            got += piece
            head, _, content = got.partition(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            if not piece or (length and len(content) >= int(length)):
                end(connection, head[9:12].decode() or "ended")
        while opened and next(iter(opened.values()))[0] < now - PATIENCE_SECONDS:
            end(next(iter(opened)), "none")
    return answers


ATTACKS: Mapping[str, Attack] = {
    **{
        each.__name__: each
        for each in (
            upgrade, trailers, small_chunks, no_http, pipelining, never_reading, unfinished, half_heads, slow_bodies,
            cut_off, slow_texts, slow_updates, new_texts, feedback,
        )
    },
    **{
        f"{count} {'old' if are_old else 'new'} connections": partial(burst, count=count, are_old=are_old)
        for are_old in (False, True) for count in (300, 900)
    },
    "1000 connections a second": partial(burst, count=3_000, a_second=1000.0),
}  # fmt: skip


def request(call: Call, target: Target, _draw: random.Random) -> str:
    """Send a request of `worst.py`."""
    return target.call(call)


def kinds(words: Sequence[str] = ()) -> list[Mapping[str, Attack]]:
    """Return by name the requests of `worst.py` and the attacks of this module, or those whose name holds one of words.

    The name of a request is its method, the beginning of its path, and what is too much in it. Left out are those after
    which other answers are right: the pool has grown, and its words are counted anew.
    """
    named = {f"{call.method} {call.path[:40]}: {call.what}": partial(request, call) for call in worst()}
    requests = {name: each for name, each in named.items() if name not in COUNTING_ANEW}
    groups: list[Mapping[str, Attack]] = [requests, ATTACKS]
    found = [{name: group[name] for name in group if not words or any(w in name for w in words)} for group in groups]
    return [group for group in found if group]
