"""What serving costs: time to ready, memory, and latency of `/rank` in a closed loop."""

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil
from benchmarks.timing import percentiles

from polyrank.model.text.dialogues import Dialogue

_READY = "polyrank is ready on "
_CONCURRENCIES = (1, 16)


class BenchmarkFailed(Exception):
    """The server under measurement did not start, or answered with an error."""


class ServedStore(NamedTuple):
    """A server that runs."""

    url: str
    pid: int
    seconds_to_ready: float


@contextmanager
def served(store: Path) -> Iterator[ServedStore]:
    """Run `polyrank serve` on a free port for the `with` block."""
    command = [sys.executable, "-m", "polyrank.service.cli", "serve", "--store", str(store), "--port", "0"]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            url = url_when_ready(process, f"the server did not start; try: polyrank serve --store {store}")
            yield ServedStore(url, process.pid, time.perf_counter() - began)
        finally:
            process.terminate()


def url_when_ready(process: subprocess.Popen[str], failure: str) -> str:
    """Wait for the line of standard output that tells the server's URL; raises BenchmarkFailed if it never comes."""
    assert process.stdout is not None, "piped"
    for line in process.stdout:
        if line.startswith(_READY):
            return line.removeprefix(_READY).strip()
    raise BenchmarkFailed(failure)


def measure(store: Path, dialogues: Sequence[Dialogue], requests: int) -> dict[str, Any]:
    """Serve a store and rank the contexts of dialogues, at concurrency 1 and 16."""
    bodies = [
        json.dumps({"context": [turn.text for turn in dialogue.conversation.turns], "timeout_ms": 10_000}).encode()
        for dialogue in dialogues[:requests]
    ]
    with served(store) as (url, pid, seconds_to_ready):
        result: dict[str, Any] = {"ready_seconds": round(seconds_to_ready, 2), "rss_mib_after_start": _rss_mib(pid)}
        _loop(url, bodies[:50], 1)  # warms up
        rows = []
        for concurrency in _CONCURRENCIES:
            began = time.perf_counter()
            took = _loop(url, bodies, concurrency)
            rate = len(took) / (time.perf_counter() - began)
            rows.append({"concurrency": concurrency, "requests": len(took), **percentiles(took), "per_second": rate})
        result |= {"rows": rows, "rss_mib_after_load": _rss_mib(pid)}
    return result


def _loop(url: str, bodies: Sequence[bytes], concurrency: int) -> list[float]:
    """Send all bodies, so many at a time; returns the seconds of each. Raises BenchmarkFailed if a request fails."""
    took: list[float] = []
    failed: list[str] = []
    with ThreadPoolExecutor(concurrency) as threads:
        clients = [threads.submit(_client, url, bodies[at::concurrency], took, failed) for at in range(concurrency)]
    for client in clients:
        client.result()
    if failed:
        raise BenchmarkFailed(f"{len(failed)} requests failed, the first with {failed[0]}")
    return took


def _client(url: str, bodies: Sequence[bytes], took: list[float], failed: list[str]) -> None:
    """Send bodies one after another; appends to the seconds of each and to the messages of failures."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        for body in bodies:
            began = time.perf_counter()
            connection.request("POST", "/rank", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
            took.append(time.perf_counter() - began)
            if response.status != 200:
                failed.append(answer.decode(errors="replace")[:300])
    except (OSError, http.client.HTTPException) as error:  # the server is gone: the remaining requests are not sent
        failed.append(f"{error!r}")
    finally:
        connection.close()


def _rss_mib(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss) >> 20
