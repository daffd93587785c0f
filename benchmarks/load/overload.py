"""Twice the load that a server can bear: how much it still answers, and how soon it recovers.

    python -m benchmarks.load.overload [--seconds 60]

Finds the capacity C in a closed loop, then sends independent requests at 0.5 C, C, 2 C and again 0.5 C without a pause.
Prints a table, and one JSON object as the last line.
"""

import argparse
import json
import sys
from typing import Any

from benchmarks.load.drive import add_options, capacity, drive, mix_of, serving, store_of, table, warm
from benchmarks.load.figures import seconds_until_normal, summary
from benchmarks.load.generator import Phase
from benchmarks.timing import machine

LOADS = (0.5, 1.0, 2.0, 0.5)
DEADLINE = 1.0  # seconds of a request
SENT, FRESH = 0.3, 0.1  # share of the requests that bring candidates, and of those candidates that were never seen
# A p99 up to so many times that before the overload is normal: of some hundred requests it is a single one.
ROOM = 1.5
COLUMNS = (
    "load", "sent_per_s", "goodput_per_s", "of_capacity", "p50_ms", "p99_ms", "refused", "refused_p99_ms",
    "refused_with_retry_after", "statuses",
)  # fmt: skip


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything; returns the object that is printed."""
    mix = mix_of(options)
    requests = mix.realistic(SENT, FRESH, timeout_ms=int(DEADLINE * 1000))
    with store_of(options) as store, serving(store) as server:
        warm(server, mix)
        most, tried = capacity(server, requests, DEADLINE, options.seconds / 3)
        phases = [Phase(options.seconds, most * load, options.seed + at) for at, load in enumerate(LOADS)]
        answers = drive(server, requests, phases)
    rows = []
    for load, found in zip(LOADS, answers, strict=True):
        figures = summary(found, options.seconds, DEADLINE)
        rows.append({"load": load, "of_capacity": round(figures["goodput_per_s"] / most, 2), **figures})
    normal = max((rows[0]["p99_ms"] or 0.0) / 1000 * ROOM, 0.001)
    return {
        "machine": machine(),
        "capacity_per_s": most,
        "closed": tried,
        "open": rows,
        "seconds_until_normal": seconds_until_normal(answers[-1], normal),
        "other_5xx": sum(each.status in (0, 500, 502, 504) for found in answers for each in found),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    found = measure(parser.parse_args())
    print(table(found["open"], COLUMNS))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
