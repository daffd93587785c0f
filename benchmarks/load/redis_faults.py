"""What a failing Redis costs /rank: latency without a fault, until the breaker opens, and after that.

    python -m benchmarks.load.redis_faults [--rounds 10] [--seconds 4]

Serves one store with `--vectors redis` over a real redis-server behind a proxy, and sends ten short contexts a second,
at random times. Every round of a fault starts with a closed breaker; after it Redis is healed until the breaker is
closed again. "Until the breaker opened" means the first requests of each round, as many as the breaker takes to open.
Prints a table, and one JSON object as the last line.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.load.drive import Running, add_options, drive, mix_of, serving, table, warm
from benchmarks.load.figures import Answer, percentile_ms
from benchmarks.load.generator import Phase
from benchmarks.redis_proxy import LOADING, RedisProxy
from benchmarks.redis_server import running_redis
from benchmarks.timing import machine

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.pool.rows import read_pool
from polyrank.model.rankers.load import load_vector_ranker
from polyrank.service.caching.redis_server import FAILURES_IN_A_ROW, State

RATE = 10.0  # requests a second
COLUMNS = ("fault", "requests", "failed", "p50_ms", "p99_ms", "max_ms")

Fault = Callable[[subprocess.Popen[bytes], RedisProxy], None]


def _nothing(_process: subprocess.Popen[bytes], _proxy: RedisProxy) -> None:
    pass


def _stop(process: subprocess.Popen[bytes], _proxy: RedisProxy) -> None:
    process.send_signal(signal.SIGSTOP)


def _delay(_process: subprocess.Popen[bytes], proxy: RedisProxy) -> None:
    proxy.delay = 0.2


def _load(_process: subprocess.Popen[bytes], proxy: RedisProxy) -> None:
    proxy.says = LOADING


def _refuse(_process: subprocess.Popen[bytes], proxy: RedisProxy) -> None:
    proxy.refuse()


FAULTS: dict[str, Fault] = {
    "stopped (SIGSTOP)": _stop,
    "slow (200 ms)": _delay,
    "loading": _load,
    "refused": _refuse,
}


def heal(process: subprocess.Popen[bytes], proxy: RedisProxy) -> None:
    """End any fault."""
    process.send_signal(signal.SIGCONT)
    proxy.delay, proxy.says = 0.0, None
    proxy.close()
    proxy.listen()


def state(server: Running) -> float:
    """Read the state of the breaker."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as response:
        found = re.search(r"^polyrank_redis_breaker_state (\S+)$", response.read().decode(), re.MULTILINE)
    assert found is not None, "every server has this metric"
    return float(found[1])


def wait_until_closed(server: Running, requests: Iterator[dict[str, Any]]) -> None:
    """Send requests until the breaker is closed."""
    while state(server) != State.CLOSED:
        drive(server, requests, [Phase(0.5, concurrency=1)])


def row(fault: str, answers: list[Answer]) -> dict[str, Any]:
    """Compute the figures of some answers."""
    seconds = [each.seconds for each in answers if each.status == 200]
    return {
        "fault": fault,
        "requests": len(answers),
        "failed": len(answers) - len(seconds),
        "p50_ms": percentile_ms(seconds, 50),
        "p99_ms": percentile_ms(seconds, 99),
        "max_ms": percentile_ms(seconds, 100),
    }


@contextmanager
def served(options: argparse.Namespace) -> Iterator[tuple[Running, subprocess.Popen[bytes], RedisProxy]]:
    """Run a Redis with the vectors of a store, a proxy before it, and a server that reads vectors only from there."""
    with tempfile.TemporaryDirectory() as store, running_redis() as (url, process):
        build(load_vector_ranker(options.model), read_pool([options.pool]), Path(store), BuildOptions(redis_url=url))
        proxy = RedisProxy(url)
        settings = {"redis_url": proxy.url, "vectors": "redis", "vector_cache_mb": 0}
        try:
            with serving(Path(store), settings) as server:
                yield server, process, proxy
        finally:
            proxy.close()


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all faults; returns a row without a fault, then two rows for each."""
    mix = mix_of(options)
    requests = mix.short(timeout_ms=10_000)
    rows = []
    with served(options) as (server, process, proxy):
        warm(server, mix)
        for name, fault in {"none": _nothing, **FAULTS}.items():
            first: list[Answer] = []
            rest: list[Answer] = []
            for number in range(options.rounds):
                wait_until_closed(server, requests)
                fault(process, proxy)
                [answers] = drive(server, requests, [Phase(options.seconds, RATE, number)])
                heal(process, proxy)
                answers.sort(key=lambda each: each.scheduled)
                first += answers[:FAILURES_IN_A_ROW]
                rest += answers[FAILURES_IN_A_ROW:]
            if fault is _nothing:
                rows.append(row(name, first + rest))
            else:
                rows += [row(f"{name}, until the breaker opened", first), row(f"{name}, after that", rest)]
            print(rows[-1], file=sys.stderr)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--rounds", type=int, default=10, help="of each fault; default: 10")
    parser.set_defaults(seconds=4.0)
    rows = measure(parser.parse_args())
    print(table(rows, COLUMNS))
    print(json.dumps({"machine": machine(), "rows": rows}))
    return 0 if not any(each["failed"] for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
