"""Five honest callers beside a mixed hostile load: their answers must be right, in time, and memory may not grow.

    python -m benchmarks.load.hostile [--minutes 60] [--attackers 3]

The honest callers send requests whose answers are known from a calm server. The attackers, in a process of their own,
send at random what `ATTACKS` names. Prints one JSON object: the honest callers' figures in calm before, under attack
and in calm after, the server's memory, and what each attack was answered.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import random
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.synchronize import Event
from typing import Any
from urllib.parse import urlsplit

from benchmarks.load.drive import add_options, mix_of, resident_while, serving, store_of, warm
from benchmarks.load.figures import percentile_ms

from polyrank.service.cli.measuring.timing import machine

CALLERS = 5
EACH_PER_S = 4.0  # requests of an honest caller
REQUESTS = 500  # distinct ones
CALM_SECONDS = 60.0
TIMEOUT_MS = 10_000
APART = 1e-3  # scores may differ so much: texts are read in other batches
HOSTILE_IDS = [f"hostile-{number}" for number in range(50)]
PATIENCE_SECONDS = 20.0  # of an attacker with one connection
JSON = {"Content-Type": "application/json"}
HEAD = b"POST /rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ASK = b'{"context": "hello", "candidates": ["a", "b"]}'
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


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
        """Send one request with a body of JSON; returns the status."""
        with closing(http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_SECONDS)) as connection:
            connection.request(method, path, json.dumps(body, ensure_ascii=False).encode(), dict(headers))
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


ATTACKS: Sequence[Callable[[Target, random.Random], str]] = (
    upgrade, trailers, pipelining, small_chunks, never_reading, unfinished, half_heads, no_http, slow_candidates,
    slow_updates, wide_filter, bad_body, foreign_page, too_many,
)  # fmt: skip


def attack(target: Target, attackers: int, seed: int, over: Event, told: "multiprocessing.Queue[Any]") -> None:
    """Attack until `over`; puts a count of (attack, answer) pairs into `told`."""
    os.nice(5)  # the honest callers measure on the same core
    counts: Counter[tuple[str, str]] = Counter()

    def one(draw: random.Random) -> None:
        while not over.wait(draw.uniform(0, 0.5)):
            chosen = draw.choice(ATTACKS)
            try:
                answer = chosen(target, draw)
            except (OSError, http.client.HTTPException) as error:
                answer = type(error).__name__
            counts[chosen.__name__, answer] += 1

    threads = [threading.Thread(target=one, args=(random.Random(seed + number),)) for number in range(attackers)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    told.put(sorted(counts.items()))


@dataclass(frozen=True, slots=True)
class Seen:
    """What an honest caller got: `wrong` says why an answer was not as it should be."""

    seconds: float
    status: int
    wrong: str | None


def difference(expected: Sequence[Mapping[str, Any]], got: Sequence[Mapping[str, Any]]) -> str | None:
    """Say how an answer differs from the expected one; None: not at all.

    Candidates that attackers added may stand between the others.
    """
    scores = {each["id"] or each["index"]: each["score"] for each in expected}
    kept = [each for each in got if each["id"] not in HOSTILE_IDS]
    for before, now in zip(expected, kept, strict=False):
        known = scores.get(now["id"] or now["index"], before["score"])
        if max(abs(before["score"] - now["score"]), abs(known - now["score"])) > APART:
            return f"{now} in place of {before}"
    return None if len(got) == len(expected) else f"{len(got)} results in place of {len(expected)}"


class Honest:
    """Callers who send known requests at a steady pace."""

    def __init__(self, target: Target, requests: Sequence[Mapping[str, Any]]) -> None:
        self._target = target
        self._bodies = [json.dumps(each).encode() for each in requests]
        with closing(self._connect()) as connection:
            self._expected = [self._ask(connection, body) for body in self._bodies]

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._target.host, self._target.port, timeout=TIMEOUT_MS / 1000 + 5)

    def _ask(self, connection: http.client.HTTPConnection, body: bytes) -> tuple[int, Any]:
        connection.request("POST", "/rank", body, dict(JSON))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()).get("results")

    def _one(self, number: int, until: float, seen: list[Seen]) -> None:
        draw, due = random.Random(number), time.monotonic()
        connection = self._connect()
        while (due := max(due + draw.expovariate(EACH_PER_S), time.monotonic())) < until:
            time.sleep(max(due - time.monotonic(), 0))
            at = draw.randrange(len(self._bodies))
            began = time.monotonic()
            try:
                status, results = self._ask(connection, self._bodies[at])
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                seen.append(Seen(time.monotonic() - began, 0, repr(error)))
                continue
            seconds = time.monotonic() - began
            wrong = f"status {status}" if status != 200 else difference(self._expected[at][1], results)
            seen.append(Seen(seconds, status, wrong))
        connection.close()

    def run(self, seconds: float) -> list[Seen]:
        """Send requests for so long."""
        seen: list[Seen] = []
        until = time.monotonic() + seconds
        callers = [threading.Thread(target=self._one, args=(number, until, seen)) for number in range(CALLERS)]
        for each in callers:
            each.start()
        for each in callers:
            each.join()
        return seen


def figures(seen: Sequence[Seen]) -> dict[str, Any]:
    """Return the honest callers' figures."""
    seconds = [each.seconds for each in seen]
    return {
        "sent": len(seen),
        "right": sum(each.wrong is None for each in seen),
        "p50_ms": percentile_ms(seconds, 50),
        "p99_ms": percentile_ms(seconds, 99),
        "longest_ms": percentile_ms(seconds, 100),
        "wrong": Counter(each.wrong[:200] for each in seen if each.wrong).most_common(5),
    }


def requests_of(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield requests of which a third bring their candidates."""
    return mix_of(options).realistic(sent=0.33, fresh=0.1, top_k=10, timeout_ms=TIMEOUT_MS)


def hostile(options: argparse.Namespace) -> dict[str, Any]:
    """Run the load; returns the object that is printed."""
    seconds = options.minutes * 60
    spawn = multiprocessing.get_context("spawn")
    over, told = spawn.Event(), spawn.Queue()
    with store_of(options) as store, serving(store, {"max_timeout_ms": TIMEOUT_MS}) as server:
        parts = urlsplit(server.url)
        target = Target(parts.hostname or "", parts.port or 80)
        warm(server, mix_of(options))
        requests = requests_of(options)
        honest = Honest(target, [next(requests) for _ in range(REQUESTS)])
        before, calm_bytes = honest.run(CALM_SECONDS), server.resident_bytes()
        attackers = spawn.Process(target=attack, args=(target, options.attackers, options.seed, over, told))
        attackers.start()
        held: list[tuple[float, int]] = []
        watch = threading.Thread(target=lambda: held.extend(resident_while(server, seconds)))
        watch.start()
        under_attack = honest.run(seconds)
        watch.join()
        over.set()
        answers = told.get(timeout=120)
        attackers.join()
        after, last_bytes = honest.run(CALM_SECONDS), server.resident_bytes()
    calm, attacked = figures(before), figures(under_attack)
    sizes = [size for _, size in held]
    ends = [len(sizes) * at // 10 for at in range(11)]
    tenths = [sizes[start:end] for start, end in pairwise(ends)]
    return {
        "machine": machine(),
        "minutes": options.minutes,
        "calm": calm,
        "attacked": attacked,
        "p99_ratio": round(attacked["p99_ms"] / calm["p99_ms"], 2),
        "after": figures(after),
        "resident_mib": {
            "calm": calm_bytes >> 20,
            "attacked_tenths": [round(statistics.median(part)) >> 20 for part in tenths],
            "attacked_most": max(sizes) >> 20,
            "after": last_bytes >> 20,
        },
        "attacks": {f"{name}: {answer}": count for (name, answer), count in answers},
    }


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(made)
    made.add_argument("--minutes", type=float, default=60.0)
    made.add_argument("--attackers", type=int, default=3, help="each makes one attack after another; default: 3")
    return made


def main() -> int:
    print(json.dumps(hostile(parser().parse_args())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
