"""The overhead of a ranking: the caller's time minus the stages of the model and the search.

    python -m benchmarks.load.overhead [--seconds 30]

One caller, one request at a time. Prints one JSON object; milliseconds are medians over requests.
"""

import argparse
import json
import statistics
import sys

from benchmarks.load.drive import add_options, drive, mix_of, serving, store_of, warm
from benchmarks.load.generator import Phase

from polyrank.service.cli.measuring.timing import machine

WORK = ("tokenize", "encode", "retrieve", "fetch", "score", "rerank")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    options = parser.parse_args()
    mix = mix_of(options)
    with store_of(options) as store, serving(store) as server:
        warm(server, mix)
        requests = mix.realistic(sent=0.0, fresh=0.0)
        [answers] = drive(server, requests, [Phase(options.seconds, concurrency=1)], timings=True)
    answers = [each for each in answers if each.timings_ms]
    caller = [each.seconds * 1000 for each in answers]
    stages = [each.timings_ms or {} for each in answers]
    work = [sum(each[name] for name in WORK) for each in stages]
    found = {
        "machine": machine(),
        "requests": len(answers),
        "caller_p50_ms": statistics.median(caller),
        "overhead_p50_ms": statistics.median(a - b for a, b in zip(caller, work, strict=True)),
        "of_it_within_the_server_ms": statistics.median(a["total"] - b for a, b in zip(stages, work, strict=True)),
        "stages_p50_ms": {name: statistics.median(each[name] for each in stages) for name in stages[0]},
    }
    print(json.dumps(found, default=float))
    return 0


if __name__ == "__main__":
    sys.exit(main())
