"""Where a server's milliseconds go: the processor time of its threads, and what a caller waits for.

    pip install py-spy
    python -m benchmarks.load.overhead [--callers 1 16] [--seconds 30] [--pool POOL --data DIALOGUES | --store STORE]
        [--settings NAME=VALUE ...] [--polyrank OTHER_CHECKOUT/.venv/bin/polyrank]

The server has one core. For each number of callers a table is printed whose two columns add up: the processor time of
an answer by thread, which with the time in which the core idles (or is taken by other processes) is one second by the
answers a second; and the mean wait of a caller. `--polyrank` is the command that serves, which may be that of
another commit. Overhead is a caller's wait without model and search (WORK): the median over requests, also of its share
that passes within the server. Prints one JSON object as the last line.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.load.drive import OURS, Running, add_options, drive, mix_of, serving, store_of, table, warm
from benchmarks.load.figures import Answer
from benchmarks.load.generator import Phase
from benchmarks.load.threads import names, spent, spy
from benchmarks.timing import machine

# Part -> the names of its threads begin like this; the stages of a request that are this part.
PARTS = {
    "model": ("model", ("encode", "rerank")),
    "search": ("search", ("retrieve", "fetch", "score")),
    "tokenizer": ("tokenizer", ("tokenize",)),
}
WORK = ("encode", "retrieve", "score", "rerank")  # all else is overhead
LOOP, OTHERS = "event loop: HTTP, checks, JSON", "other threads"
TURNS, WAY, IDLE, WHOLE = "waiting for a turn", "between client and server", "the core idles", "whole"
COLUMNS = ("part", "processor, ms", "wait, ms")


def processor_ms(used: Mapping[int, float], called: Mapping[int, str], seconds: float, count: int) -> dict[str, float]:
    """Return the milliseconds of the core that an answer took, by part; they add up to those between two answers.

    Args:
        used: processor seconds by thread.
        called: names of the threads that have one.
        seconds: how long was measured.
        count: number of answers.
    """
    parts = {**dict.fromkeys(PARTS, 0.0), LOOP: 0.0, OTHERS: 0.0}
    for thread, each in used.items():
        parts[_part(called.get(thread, ""))] += 1000 * each / count
    return {**parts, IDLE: 1000 * seconds / count - sum(parts.values())}


def wait_ms(answers: Sequence[Answer]) -> dict[str, float]:
    """Return the mean milliseconds that a caller waits for each part; they add up to the mean of its whole wait."""
    stages = [each.timings_ms or {} for each in answers]
    mean = {stage: fmean(each[stage] for each in stages) for stage in stages[0]}
    parts = {part: sum(mean[stage] for stage in own) for part, (_, own) in PARTS.items()}
    parts[TURNS] = mean["queue"]
    parts[LOOP] = mean["total"] - sum(parts.values())
    return {**parts, WAY: 1000 * fmean(each.seconds for each in answers) - mean["total"]}


def overhead_ms(answers: Sequence[Answer]) -> dict[str, float]:
    """Return medians: a caller's wait, what of it is not model or search, and what of that is within the server."""
    work = [sum((each.timings_ms or {})[stage] for stage in WORK) for each in answers]
    both = list(zip(answers, work, strict=True))
    return {
        "caller_p50_ms": median(1000 * each.seconds for each in answers),
        "overhead_p50_ms": median(1000 * each.seconds - own for each, own in both),
        "of_it_within_the_server_ms": median((each.timings_ms or {})["total"] - own for each, own in both),
    }


def rows(processor: Mapping[str, float], wait: Mapping[str, float]) -> list[dict[str, str]]:
    """Make the rows of the table, the whole last."""
    told = []
    for part in [*PARTS, LOOP, OTHERS, TURNS, WAY, IDLE]:
        told.append({"part": part, **{name: _short(of.get(part)) for name, of in _columns(processor, wait)}})
    whole = {name: _short(sum(of.values())) for name, of in _columns(processor, wait)}
    return [*told, {"part": WHOLE, **whole}]


def measured(server: Running, requests: Iterator[dict[str, Any]], callers: int, seconds: float) -> dict[str, Any]:
    """Let so many callers ask for so long; returns the figures, and prints the table."""
    before = spent(server.pid)
    [answers] = drive(server, requests, [Phase(seconds, concurrency=callers)], timings=True)
    used = {thread: each - before.get(thread, 0.0) for thread, each in spent(server.pid).items()}
    if failed := [each.status for each in answers if each.timings_ms is None]:
        raise SystemExit(f"{len(failed)} of {len(answers)} requests failed, the first with status {failed[0]}")
    took = max(each.scheduled + each.seconds for each in answers)
    processor = processor_ms(used, names(server.pid), took, len(answers))
    wait = wait_ms(answers)
    overhead = overhead_ms(answers)
    told = {"answers a second": len(answers) / took, **overhead}
    print(f"{callers} at a time: {', '.join(f'{name} {value:.2f}' for name, value in told.items())}\n")
    print(table(rows(processor, wait), COLUMNS), end="\n\n")
    figures = {"callers": callers, "requests": len(answers), "per_second": len(answers) / took}
    return {**figures, **overhead, "processor_ms": processor, "wait_ms": wait}


def _part(thread: str) -> str:
    if thread == "MainThread":
        return LOOP
    return next((part for part, (start, _) in PARTS.items() if thread.startswith(start)), OTHERS)


def _columns(processor: Mapping[str, float], wait: Mapping[str, float]) -> Iterator[tuple[str, Mapping[str, float]]]:
    return zip(COLUMNS[1:], (processor, wait), strict=True)


def _short(ms: float | None) -> str:
    return "" if ms is None else f"{ms:.2f}"


@contextmanager
def _store(options: argparse.Namespace) -> Iterator[Path]:
    if options.store is not None:
        yield options.store
    else:
        with store_of(options) as built:
            yield built


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 16], help="at a time; default: 1 16")
    parser.add_argument("--store", type=Path, help="a store that was built before; default: --pool is built")
    parser.add_argument("--settings", nargs="*", default=[], metavar="NAME=VALUE", help="of the server")
    parser.add_argument("--polyrank", type=Path, nargs=1, default=OURS, help="the command; default: this checkout's")
    options = parser.parse_args()
    spy()  # before anything is built
    mix = mix_of(options)
    settings = dict(each.split("=", 1) for each in options.settings)
    with _store(options) as store, serving(store, settings, options.polyrank) as server:
        warm(server, mix)
        requests = mix.realistic(sent=0.0, fresh=0.0, timeout_ms=10_000)
        found = [measured(server, requests, callers, options.seconds) for callers in options.callers]
    print(json.dumps({"machine": machine(), "loads": found}, default=float))
    return 0


if __name__ == "__main__":
    sys.exit(main())
