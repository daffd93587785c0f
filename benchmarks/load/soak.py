"""A server under load for minutes: no request may fail, and its memory may not grow.

    python -m benchmarks.load.soak [--minutes 5] [--callers 16]

Each caller sends its next request when the last one is answered, so the load follows the speed of the machine. Prints
one JSON object. The test with the marker `soak` runs the same (docs/testing.md).
"""

import argparse
import json
import statistics
import sys
import threading
from typing import Any

from benchmarks.load.drive import add_options, drive, mix_of, resident_while, serving, store_of, warm
from benchmarks.load.figures import summary
from benchmarks.load.generator import Phase
from benchmarks.timing import machine

TIMEOUT_MS = 10_000
WARM = 0.2  # share of the time in which caches fill and the allocator finds its size; not measured


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Run the load; returns the object that is printed."""
    seconds = options.minutes * 60
    mix = mix_of(options)
    requests = mix.realistic(sent=0.3, fresh=0.1, timeout_ms=TIMEOUT_MS)
    with store_of(options) as store, serving(store) as server:
        warm(server, mix)
        held: list[tuple[float, int]] = []
        watch = threading.Thread(target=lambda: held.extend(resident_while(server, seconds)))
        watch.start()
        [answers] = drive(server, requests, [Phase(seconds, concurrency=options.callers)])
        watch.join()
    sizes = [size for at, size in held if at >= WARM * seconds]
    tenth = max(len(sizes) // 10, 1)
    first, last = statistics.median(sizes[:tenth]), statistics.median(sizes[-tenth:])
    return {
        "machine": machine(),
        "minutes": options.minutes,
        "callers": options.callers,
        **summary(answers, seconds, TIMEOUT_MS / 1000),
        "resident_mib": [round(first / 2**20, 1), round(last / 2**20, 1)],
        "resident_drift": round(last / first - 1, 4),
    }


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(made)
    made.add_argument("--minutes", type=float, default=5.0)
    made.add_argument("--callers", type=int, default=16, help="at a time; default: 16")
    return made


def main() -> int:
    print(json.dumps(soak(parser().parse_args())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
