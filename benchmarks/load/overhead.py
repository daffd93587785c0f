"""Where the milliseconds of a `/rank` request go: a caller's wait, part by part, and the processor time of threads.

    python -m benchmarks.load.overhead [--callers 1 16] [--seconds 30] [--pool POOL --data DIALOGUES]

The server has one core, the callers have another. Its requests are stamped on their way (stamped.py). A table has the
mean of each part, which add up to the mean of a caller's whole wait, and p50 and p99 of each. What no stamp names is
the way between client and server, and the client itself. Processor time is of an answer, by thread. Overhead is a
caller's wait without model and search (WORK), as the answers tell them: the median over requests, also of its share
that passes within the server. Prints one JSON object as the last line.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.load.drive import add_options, drive, mix_of, serving, store_of, table, warm
from benchmarks.load.figures import Answer, percentile_ms
from benchmarks.load.generator import Phase
from benchmarks.load.stamped import PARTS
from benchmarks.timing import machine

THREADS = {"MainThread": "event loop", "model": "model", "search": "search", "tokenizer": "tokenizer"}
WORK = ("encode", "retrieve", "score", "rerank")  # all else is overhead
WAY, WHOLE, OTHERS = "network and client", "whole", "other threads"


def processor_ms(used: Mapping[int, float], called: Mapping[int, str], count: int) -> dict[str, float]:
    """Return the milliseconds of the core that an answer took, by thread.

    Args:
        used: processor seconds by thread.
        called: names of the threads that have one.
        count: number of answers.
    """
    parts = dict.fromkeys([*THREADS.values(), OTHERS], 0.0)
    for thread, seconds in used.items():
        name = called.get(thread, "")
        part = next((part for start, part in THREADS.items() if name.startswith(start)), OTHERS)
        parts[part] += 1000 * seconds / count
    return parts


def waits(answers: Sequence[Answer], ways: Mapping[str, Mapping[str, float]]) -> list[dict[str, float]]:
    """Return the seconds of each answer by part, given those in the server by request id; they add up to its wait."""
    parts = [{part: ways[each.request_id].get(part, 0.0) for part in PARTS} for each in answers]
    return [{WAY: each.seconds - sum(own.values()), **own} for each, own in zip(answers, parts, strict=True)]


def overhead_ms(answers: Sequence[Answer]) -> dict[str, float]:
    """Return medians: a caller's wait, what of it is not model or search, and what of that is within the server."""
    work = [sum((each.timings_ms or {})[stage] for stage in WORK) for each in answers]
    both = list(zip(answers, work, strict=True))
    return {
        "caller_p50_ms": median(1000 * each.seconds for each in answers),
        "overhead_p50_ms": median(1000 * each.seconds - own for each, own in both),
        "of_it_within_the_server_ms": median((each.timings_ms or {})["total"] - own for each, own in both),
    }


def rows(found: Sequence[Mapping[str, float]]) -> list[dict[str, str]]:
    """Make the rows of the table from seconds by part of each answer; the whole is last."""
    told = []
    for part in [*found[0], WHOLE]:
        seconds = [sum(each.values()) if part == WHOLE else each[part] for each in found]
        p50, p99 = (percentile_ms(seconds, percent) for percent in (50, 99))
        told.append(
            {"part": part, "mean, ms": f"{1000 * fmean(seconds):.2f}", "p50": f"{p50:.2f}", "p99": f"{p99:.2f}"}
        )
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 16], help="at a time; default: 1 16")
    options = parser.parse_args()
    mix = mix_of(options)
    phases: list[tuple[list[Answer], dict[int, float]]] = []
    with store_of(options) as store, tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "stamps.json")
        with serving(store, polyrank=(sys.executable, "-m", "benchmarks.load.stamped", file)) as server:
            warm(server, mix)
            requests = mix.realistic(sent=0.0, fresh=0.0, timeout_ms=10_000)
            for callers in options.callers:
                before = server.spent_by_thread()
                [answers] = drive(server, requests, [Phase(options.seconds, concurrency=callers)], timings=True)
                if failed := [each.status for each in answers if each.timings_ms is None]:
                    raise SystemExit(f"{len(failed)} of {len(answers)} requests failed, the first by {failed[0]}")
                used = {thread: each - before.get(thread, 0.0) for thread, each in server.spent_by_thread().items()}
                phases.append((answers, used))
        told = json.loads(file.read_text(encoding="utf-8"))
    called = {int(thread): name for thread, name in told["threads"].items()}
    loads = [
        measured(callers, answers, waits(answers, told["ways"]), processor_ms(used, called, len(answers)))
        for callers, (answers, used) in zip(options.callers, phases, strict=True)
    ]
    print(json.dumps({"machine": machine(), "loads": loads}))
    return 0


def measured(
    callers: int, answers: Sequence[Answer], found: Sequence[Mapping[str, float]], processor: Mapping[str, float]
) -> dict[str, Any]:
    """Print the table of a load; returns its figures."""
    rate = len(answers) / max(each.scheduled + each.seconds for each in answers)
    figures, overhead = rows(found), overhead_ms(answers)
    print(f"{callers} at a time: {rate:.1f} answers a second, {_said(overhead)}")
    print(f"processor, ms an answer: {_said(processor)}, whole {sum(processor.values()):.2f}\n")
    print(table(figures, list(figures[0])), end="\n\n", flush=True)
    load = {"callers": callers, "requests": len(answers), "per_second": rate}
    return {**load, **overhead, "processor_ms": processor, "wait": figures}


def _said(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in figures.items())


if __name__ == "__main__":
    sys.exit(main())
