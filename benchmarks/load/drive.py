"""Run a server on one core and the load generator on another."""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
from benchmarks.load.figures import Answer, poisson, summary
from benchmarks.load.generator import Phase, Plan
from benchmarks.load.mix import SAMPLE, Mix
from benchmarks.serving import url_when_ready

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.pool.rows import Candidate, read_pool
from polyrank.model.rankers.load import load_retriever

REPOSITORY = SAMPLE.parents[1]
OURS = (sys.executable, "-m", "polyrank.service.cli")
CONCURRENCIES = (1, 2, 4, 8, 16, 32)
FAILED_SHARE = 0.01  # of the requests may fail at a load that counts as within capacity
WARM_SECONDS = 5.0
MOST_PER_SECOND, MOST_BODIES = 1500, 30_000  # of a closed phase, which repeats its bodies if it sends more


def cores() -> tuple[int, int | None]:
    """Return the core of the server and of the generator; None for the latter if there is only one core."""
    first, *others = sorted(os.sched_getaffinity(0))
    return first, (others[0] if others else None)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all scripts in this folder."""
    parser.add_argument("--pool", type=Path, default=SAMPLE / "pool.jsonl", help="default: the bundled sample")
    parser.add_argument("--data", type=Path, default=SAMPLE / "conversations.jsonl", help="contexts are drawn from it")
    parser.add_argument("--model", default=str(REPOSITORY / "checkpoints" / "chat-poly"))
    parser.add_argument("--seconds", type=float, default=30.0, help="of each stretch; default: 30")
    parser.add_argument("--seed", type=int, default=1)


def mix_of(options: argparse.Namespace) -> Mix:
    """Return the source of requests that the options ask for."""
    return Mix(options.data, options.pool, options.seed)


@contextmanager
def store_of(options: argparse.Namespace) -> Iterator[Path]:
    """Build the pool into a temporary store for the `with` block."""
    rows = [row for row in read_pool([options.pool]) if isinstance(row, Candidate)]
    with tempfile.TemporaryDirectory() as store:
        build(load_retriever(options.model), rows, Path(store))
        yield Path(store)


@dataclass(frozen=True, slots=True)
class Running:
    """A server process."""

    url: str
    pid: int

    def resident_bytes(self) -> int:
        """Return its memory, that of its children included."""
        return sum(each.memory_info().rss for each in self._family())

    def spent(self) -> float:
        """Return its processor seconds, those of its children included."""
        return sum(sum(each.cpu_times()[:2]) for each in self._family())

    def spent_by_thread(self) -> dict[int, float]:
        """Return the processor seconds of each of its own threads, by the thread's number."""
        return {each.id: each.user_time + each.system_time for each in psutil.Process(self.pid).threads()}

    def _family(self) -> list[psutil.Process]:
        own = psutil.Process(self.pid)
        return [own, *own.children()]


@contextmanager
def serving(
    store: Path, settings: Mapping[str, object] | None = None, polyrank: Sequence[str | Path] = OURS
) -> Iterator[Running]:
    """Run `polyrank serve` on one core and with one thread for the `with` block.

    Args:
        store: the store to serve.
        settings: settings by name, without the prefix POLYRANK_.
        polyrank: the command, by default that of this checkout.
    """
    fields = {"threads": 1, "log_level": "error", **(settings or {})}
    variables = {f"POLYRANK_{name.upper()}": str(value) for name, value in fields.items()}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [*map(str, polyrank), "serve", "--store", str(store), "--port", "0"]
    command = ["taskset", "--cpu-list", str(cores()[0]), *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=REPOSITORY) as process:
        try:
            yield Running(url_when_ready(process, "the server did not start"), process.pid)
        finally:
            process.terminate()


def drive(
    server: Running,
    requests: Iterator[dict[str, Any]],
    phases: Sequence[Phase],
    timings: bool = False,
    path: str = "/rank",
) -> list[list[Answer]]:
    """Send requests from a process on the other core; returns the answers of each phase."""
    with tempfile.TemporaryDirectory() as directory:
        asked, bodies, answered = (Path(directory, name) for name in ("plan.json", "bodies.jsonl", "answers.jsonl"))
        with bodies.open("w") as out:
            out.writelines(json.dumps(each) + "\n" for each in islice(requests, sum(map(_most, phases))))
        asked.write_text(json.dumps(asdict(Plan(server.url, path, str(bodies), cores()[1], tuple(phases), timings))))
        command = [sys.executable, "-m", "benchmarks.load.generator", str(asked), str(answered)]
        subprocess.run(command, check=True, cwd=REPOSITORY)
        found = [Answer(**json.loads(line)) for line in answered.read_text().splitlines()]
    return [[each for each in found if each.phase == number] for number in range(len(phases))]


def resident_while(server: Running, seconds: float) -> Iterator[tuple[float, int]]:
    """Read a server's memory once a second; yields the seconds since the beginning, and bytes."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        yield passed, server.resident_bytes()
        time.sleep(1.0)


def warm(server: Running, mix: Mix) -> None:
    """Warm up the server with texts of the pool and some contexts."""
    drive(server, mix.realistic(sent=0.5, fresh=0.0, timeout_ms=10_000), [Phase(WARM_SECONDS, concurrency=2)])


def capacity(
    server: Running, requests: Iterator[dict[str, Any]], deadline: float, seconds: float
) -> tuple[float, list[dict[str, Any]]]:
    """Find the highest load that a server can bear, with more and more callers who wait for each answer.

    Returns:
        The highest rate of answers in time, over those numbers of callers where hardly a request failed (over all of
        them, if there is none such); and the figures for each number of callers.
    """
    tried = []
    for concurrency in CONCURRENCIES:
        [answers] = drive(server, requests, [Phase(seconds, concurrency=concurrency)])
        figures = summary(answers, seconds, deadline)
        without = sum(count for status, count in figures["statuses"].items() if status != "200")
        well = without <= FAILED_SHARE * len(answers) and (figures["p99_ms"] or math.inf) <= deadline * 1000
        tried.append({"concurrency": concurrency, "well": well, **figures})
    kept = [each for each in tried if each["well"]] or tried
    return max(each["goodput_per_s"] for each in kept), tried


def _most(phase: Phase) -> int:
    """Return how many bodies a phase can need: a closed one sends as many as are answered."""
    if phase.rate:
        return len(poisson(phase.rate, phase.seconds, phase.seed))
    return min(int(phase.seconds * MOST_PER_SECOND), MOST_BODIES)


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """Format rows in Markdown."""
    lines = [columns, ["---"] * len(columns), *([str(row.get(column, "")) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
