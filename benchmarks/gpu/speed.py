"""Figures of speed on a GPU, a line of JSON each, the quickest to take first; exit status 1 if an answer is wrong.

    python -m benchmarks.gpu.speed [--only check scan serve batch training] [--seconds 3]
    python -m benchmarks.gpu.speed --device cpu --tiny --seconds 0.1          to see that it runs

`check` compares answers with the CPU's. `scan` times an exact top-10 and reading the matrix once. `serve` times
encoding in each precision, scanning, and the rate of a build, and tells memory. `batch` times batches of many sizes,
`training` a training step. Models have random weights.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from benchmarks.gpu import model_speed, scan_speed, training_speed

Stage = Callable[[argparse.Namespace], Iterator[dict[str, Any]]]

STAGES: dict[str, Stage] = {
    "check": lambda given: scan_speed.check(given.device, 100 if given.tiny else 20_000),
    "scan": lambda given: scan_speed.measure(
        given.device, (100, 200) if given.tiny else (100_000, 1_000_000), given.seconds
    ),
    "serve": lambda given: model_speed.measure(given.device, given.tiny, given.seconds),
    "batch": lambda given: model_speed.batches(given.device, given.tiny),
    "training": lambda given: training_speed.measure(given.tiny),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes: to see that it runs")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each figure")
    parser.add_argument("--only", nargs="+", choices=STAGES, default=list(STAGES))
    given = parser.parse_args(argv)
    where = torch.cuda.get_device_name(given.device) if given.device != "cpu" else "CPU"
    print(json.dumps({"device": where, "torch": torch.__version__, "transformers": transformers.__version__}))
    wrong = 0
    for name in given.only:
        for row in STAGES[name](given):
            print(json.dumps(row), flush=True)
            wrong += row.get("wrong", 0)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
