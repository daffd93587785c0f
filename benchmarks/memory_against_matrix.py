"""What it costs to gather vectors of candidates from the memory-mapped matrix and from the process's vector cache.

    python -m benchmarks.memory_against_matrix [--count 100000] [--dim 384] [--rounds 1000]

Both are warm: every page of the matrix is in memory, and the cache holds every vector.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from benchmarks.timing import in_turns

from polyrank.service.caching.redis_server import Budget
from polyrank.service.caching.vector_cache import Lru, VectorCache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=1000)
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as directory:
        path, shape = Path(directory) / "matrix", (arguments.count, arguments.dim)
        random.normal(size=shape).astype("<f2").tofile(path)
        matrix = np.memmap(path, "<f2", "c", shape=shape)
        cache = VectorCache("generation", arguments.dim, "float16", lambda *_: None, Lru(2**30), None)
        for k in (20, 200, 1000):
            rows = random.choice(arguments.count, k, replace=False)
            names = [f"candidate-{row}" for row in rows]
            cache.write(names, matrix[rows])
            calls = {"matrix": partial(np.take, matrix, rows, axis=0), "cache": partial(cache.read, names, Budget())}
            for name, seconds in in_turns(calls, arguments.rounds).items():
                p50, p99 = np.percentile(seconds, [50, 99]) * 1000
                print(f"{k} vectors from the {name}: p50 {p50:.3f} ms, p99 {p99:.3f} ms")


if __name__ == "__main__":
    main()
