"""What batching across requests gains, and what it costs a single caller.

    python -m benchmarks.load.batching [--seconds 20] [--compare deterministic=true] [--compare NAME=VALUE ...]

For the default settings and for each `--compare`: short contexts from 1, 8, 32 and 64 callers at a time, then at random
times with a quarter of the default's throughput. Prints a table, and one JSON object as the last line.
"""

import argparse
import json
import sys
from typing import Any

from benchmarks.load.drive import add_options, drive, mix_of, serving, store_of, table, warm
from benchmarks.load.figures import summary
from benchmarks.load.generator import Phase
from benchmarks.timing import machine

CONCURRENCIES = (1, 8, 32, 64)
COLUMNS = ("settings", "load", "goodput_per_s", "p50_ms", "p99_ms", "statuses")
PATIENCE = 10.0


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every combination of settings and load; returns a row for each."""
    rows: list[dict[str, Any]] = []
    mix = mix_of(options)
    requests = mix.short(timeout_ms=int(PATIENCE * 1000))
    quarter = 0.0
    with store_of(options) as store:
        for settings in ("", *options.compare):
            given = dict(each.split("=", 1) for each in settings.split(",") if each)
            with serving(store, given) as server:
                warm(server, mix)
                phases = [Phase(options.seconds, concurrency=each) for each in CONCURRENCIES]
                found = drive(server, requests, phases)
                figures = [summary(each, options.seconds, PATIENCE) for each in found]
                quarter = quarter or max(each["goodput_per_s"] for each in figures) / 4
                [calm] = drive(server, requests, [Phase(options.seconds, quarter, options.seed)])
            loads = [*(f"{each} at a time" for each in CONCURRENCIES), f"{quarter:.0f} a second"]
            figures.append(summary(calm, options.seconds, PATIENCE))
            rows += [
                {"settings": settings or "default", "load": load, **each}
                for load, each in zip(loads, figures, strict=True)
            ]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--compare", action="append", default=[], metavar="NAME=VALUE[,NAME=VALUE]")
    rows = measure(parser.parse_args())
    print(table(rows, COLUMNS))
    print(json.dumps({"machine": machine(), "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
