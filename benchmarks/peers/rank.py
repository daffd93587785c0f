"""`POST /rank` compared with other servers: throughput by number of callers, latency by size of the pool.

    python -m benchmarks.peers.rank [--data F] [--pool F [F...]] [--rounds 5]

polyrank has the shipped chat-poly, the other servers its base (all-MiniLM-L6-v2). All get the same contexts, which are
all different. A server has one core and one thread, the load generator the other core. They take turns, and waiting
servers are stopped. infinity only embeds the context (`/embeddings`, torch and ONNX Runtime). The FastAPI app
(fastapi_app.py) embeds it and searches a flat FAISS index. `/rank` encodes it into 64 vectors and scans the pool
exactly. Measures 1, 4, 16 and 64 callers over 31,000 candidates, and one caller over pools of 1,000 to 100,000.
Prints a table, and one JSON object as the last line.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from functools import partial
from itertools import count
from typing import Any

from benchmarks.load.drive import drive
from benchmarks.load.figures import Answer, percentile_ms
from benchmarks.load.generator import Phase
from benchmarks.load.overhead import overhead_ms
from benchmarks.peers import inputs, servers
from benchmarks.peers.compare import SERVER_COLUMNS, finish, parser_of
from benchmarks.peers.pools import Pools, pools_of
from benchmarks.peers.ratios import OURS, Figure, ratios

CONTEXTS = 2000
CALLERS, CALLERS_SIZE = (1, 4, 16, 64), 31_000
SIZES = (1_000, 10_000, 100_000)  # for one caller
WARM_SECONDS, SECONDS = 1.0, 4.0  # of each round

Begin = Callable[[int], AbstractContextManager[servers.Server]]


def requests(server: servers.Server, contexts: Sequence[str], numbers: Iterator[int]) -> Iterator[dict[str, Any]]:
    """Yield bodies with the contexts in turn, each with its own number, so that no cache can answer."""
    return (server.body(f"{contexts[number % len(contexts)]} {number}") for number in numbers)


def measured(answers: Sequence[Answer]) -> dict[str, float]:
    """Compute the figures of a phase, whose last answers come after its end; raises SystemExit if a request failed.

    The overhead is among them where the answers tell the time of each stage.
    """
    failed = Counter(each.status for each in answers if each.status != 200)
    took = [each.seconds for each in answers]
    p50, p99 = percentile_ms(took, 50), percentile_ms(took, 99)
    if failed or p50 is None or p99 is None:
        raise SystemExit(f"{sum(failed.values())} of {len(answers)} requests failed: {dict(failed)}")
    rate = len(answers) / max(each.scheduled + each.seconds for each in answers)
    overhead = {"overhead_ms": overhead_ms(answers)["overhead_p50_ms"]} if answers[0].timings_ms else {}
    return {"per_second": rate, "p50_ms": p50, "p99_ms": p99, **overhead}


def compared(
    running: list[servers.Server], contexts: Sequence[str], numbers: Iterator[int], callers: int, options: Any
) -> list[dict[str, Any]]:
    """Measure all servers in turns with so many callers at a time; returns a row for each."""
    found: dict[str, list[dict[str, float]]] = {server.name: [] for server in running}
    for number in range(options.rounds):
        for server in running[:: -1 if number % 2 else 1]:
            phases = [Phase(seconds, concurrency=callers) for seconds in (WARM_SECONDS, SECONDS)]
            with server.alone(running):
                bodies, tells = requests(server, contexts, numbers), callers == 1 and server.tells_stages
                answers = drive(server.running, bodies, phases, timings=tells, path=server.path)
            found[server.name].append(measured(answers[1]))
    values = {name: {of: [each[of] for each in rounds] for of in rounds[0]} for name, rounds in found.items()}
    slower = {of: ratios({name: each[of] for name, each in values.items()}) for of in ("p50_ms", "p99_ms")}
    faster = ratios({name: [1 / rate for rate in each["per_second"]] for name, each in values.items()})
    rows, abouts = [], {server.name: server.about for server in running}
    for name, each in values.items():
        row: dict[str, Any] = {"callers": callers, "who": name, **abouts[name]}
        row |= {of: asdict(Figure.of(rounds)) for of, rounds in each.items()}
        if name != OURS:
            row["per_second_times"] = asdict(faster[name])
            row |= {f"{of.removesuffix('_ms')}_times": asdict(figures[name]) for of, figures in slower.items()}
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
    return rows


def contest(begins: Sequence[Begin], size: int, callers: Sequence[int], options: Any) -> list[dict[str, Any]]:
    """Measure all servers over a pool for each number of callers."""
    contexts = inputs.contexts(options.data, CONTEXTS, options.seed)
    with ExitStack() as stack:
        running = [stack.enter_context(begin(size)) for begin in begins]
        numbers = count()
        rows = [row for each in callers for row in compared(running, contexts, numbers, each, options)]
    return [{"candidates": size, **row} for row in rows]


def sides(pools: Pools, options: argparse.Namespace) -> tuple[list[Begin], list[Begin]]:
    """Return the servers that rank a pool of a given size, and those that only embed."""
    models = options.cache / "models"

    def app(size: int) -> AbstractContextManager[servers.Server]:
        return servers.fastapi_app(*pools.files(size), models, options.cache)

    def infinity(engine: str, _size: int) -> AbstractContextManager[servers.Server]:
        return servers.infinity(engine, models, options.cache)

    ranking: list[Begin] = [lambda size: servers.polyrank(pools.store(size)), app]
    return ranking, [partial(infinity, engine) for engine in ("torch", "optimum")]


def main() -> int:
    options = parser_of(__doc__).parse_args()
    _, pools = pools_of(options)
    ranking, embedding = sides(pools, options)
    most = min(CALLERS_SIZE, pools.most)
    rows = contest([*ranking, *embedding], most, CALLERS, options)
    for size in sorted({min(size, pools.most) for size in SIZES} - {most}):
        rows += contest(ranking, size, [1], options)
    return finish("rank", rows, SERVER_COLUMNS, options)


if __name__ == "__main__":
    sys.exit(main())
