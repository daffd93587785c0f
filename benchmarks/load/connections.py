"""Probes and honest callers beside bursts of new connections, each of which brings one request.

    python -m benchmarks.load.connections --pool POOL [--model lexical] [--bursts 300 900] [--rate 1000] [--seconds 10]

First comes a calm, then each burst, all of whose connections begin at once, and last a stream of `--rate` new
connections a second. Each of them sends one `POST /rank` for 300 candidates. Meanwhile another process opens a
connection for each probe of /livez, and five honest callers send requests over kept connections whose answers are known
from the calm server. Prints a line of JSON for each.
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import selectors
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop
from benchmarks.load.attacks import LIVEZ, Target
from benchmarks.load.drive import Running, add_options, mix_of, serving, store_of, warm
from benchmarks.load.figures import percentile_ms
from benchmarks.load.hostile import Honest, honest_figures, pin, settle
from benchmarks.timing import machine

TOP_K = 300
PROBE_SECONDS = 0.05  # between two probes
PATIENCE_SECONDS = 20.0  # of a caller, and of a probe
DISTINCT = 200  # honest requests
REQUEST = b"POST /rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"

Answers = list[tuple[str, float]]  # status, or how it ended; seconds since it was due


async def _one(target: Target, due: float, sent: bytes, answers: Answers) -> None:
    """Send a request over a connection of its own, and read its answer to the end."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(due - loop.time())
    status = "none"
    try:
        async with asyncio.timeout_at(due + PATIENCE_SECONDS):
            reader, writer = await asyncio.open_connection(target.host, target.port)
            try:
                writer.write(sent)
                head = await reader.readuntil(b"\r\n\r\n")
                status = head[9:12].decode()
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length))
            finally:
                writer.close()
    except (OSError, EOFError, TimeoutError) as error:
        status = type(error).__name__
    answers.append((status, loop.time() - due))


def connect(target: Target, contexts: Sequence[Any], count: int, rate: float) -> Answers:
    """Open so many connections, all at once or so many a second; returns what each was answered.

    Plain sockets: asyncio would take longer for a connection than the server.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    bodies = [json.dumps({"context": each, "top_k": TOP_K}).encode() for each in contexts]
    sent = [REQUEST % (len(body), body) for body in bodies]
    answers, selector, began = Answers(), selectors.DefaultSelector(), time.monotonic() + 0.2
    opened: dict[socket.socket, tuple[float, bytearray]] = {}
    number = 0

    def end(connection: socket.socket, status: str) -> None:
        due, _ = opened.pop(connection)
        selector.unregister(connection)
        connection.close()
        answers.append((status, time.monotonic() - due))

    while number < count or opened:
        now = time.monotonic()
        while number < count and (due := began + (number / rate if rate else 0.0)) <= now:
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex((target.host, target.port))
            opened[connection] = due, bytearray()
            selector.register(connection, selectors.EVENT_WRITE, sent[number % len(sent)])
            number += 1
        for key, event in selector.select(0.001):
            connection = cast(socket.socket, key.fileobj)
            try:
                if event & selectors.EVENT_WRITE:
                    connection.send(key.data)
                    selector.modify(connection, selectors.EVENT_READ)
                    continue
                piece, got = connection.recv(1 << 18), opened[connection][1]
            except OSError as error:
                end(connection, type(error).__name__)
                continue
            got += piece
            head, _, body = got.partition(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            if not piece or (length and len(body) >= int(length)):
                end(connection, head[9:12].decode() or "ended")
        while opened and next(iter(opened.values()))[0] < now - PATIENCE_SECONDS:
            end(next(iter(opened)), "none")
    return answers


async def _probe(target: Target, until: float) -> Answers:
    answers, loop = Answers(), asyncio.get_running_loop()
    async with asyncio.TaskGroup() as probes:
        due = loop.time()
        while due < until:
            probes.create_task(_one(target, due, LIVEZ, answers))
            due += PROBE_SECONDS
    return answers


def probe(target: Target, until: float) -> Answers:
    """Ask for /livez over a new connection every `PROBE_SECONDS` until a time of the monotonic clock."""
    return uvloop.run(_probe(target, until))


def _figures(answers: Answers, prefix: str) -> dict[str, Any]:
    seconds = [took for _, took in answers]
    return {
        f"{prefix}answers": dict(Counter(status for status, _ in answers).most_common()),
        **{f"{prefix}p{share}_ms": percentile_ms(seconds, share) for share in (50, 99, 100)},
    }


def stretch(
    server: Running, target: Target, honest: Honest, processes: Executor, kind: str, seconds: float, *burst: Any
) -> dict[str, Any]:
    """Probe and ask for so long beside new connections if there are any; returns the figures."""
    settle(server)
    until = time.monotonic() + seconds
    connecting = processes.submit(connect, target, *burst) if burst else None
    probing, asking = processes.submit(probe, target, until), processes.submit(honest.run, until)
    answers = connecting.result() if connecting else []
    return {
        "kind": kind,
        **_figures(answers, ""),
        **_figures(probing.result(), "livez_"),
        "honest": honest_figures(asking.result()),
    }


def connections(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run the load; yields what is printed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "benchmarks.load.drive"])
    with (
        store_of(options) as store,
        serving(store, {"workers": options.workers}) as server,
        ProcessPoolExecutor(3, context, initializer=pin) as processes,
    ):
        mix, parts = mix_of(options), urlsplit(server.url)
        warm(server, mix)
        requests = mix.realistic(sent=0.33, fresh=0.1, top_k=10)
        target = Target(parts.hostname or "", parts.port or 80)
        honest = Honest(target, 5, [next(requests) for _ in range(DISTINCT)])
        contexts = [next(requests)["context"] for _ in range(DISTINCT)]
        list(processes.map(time.sleep, [1.0] * 3))  # each process has started
        yield machine() | stretch(server, target, honest, processes, "calm", options.seconds)
        for count in options.bursts:
            kind = f"{count} at once"
            yield stretch(server, target, honest, processes, kind, options.seconds, contexts, count, 0.0)
        count = int(options.rate * options.seconds)
        kind = f"{options.rate:g} a second"
        yield stretch(server, target, honest, processes, kind, options.seconds, contexts, count, options.rate)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(made)
    made.set_defaults(seconds=10.0, model="lexical")
    made.add_argument("--bursts", type=int, nargs="*", default=[300, 900], help="connections at once; default: 300 900")
    made.add_argument("--rate", type=float, default=1000.0, help="new connections a second; default: 1000")
    made.add_argument("--workers", type=int, default=1)
    return made


def main() -> int:
    for found in connections(parser().parse_args()):
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
