"""What it takes to gather candidates' vectors from the memory-mapped matrix, and from this process's cache of vectors.

    python benchmarks/memory_against_matrix.py [--count 100000] [--dim 384] [--rounds 1000]

Both hold what is asked for: every page of the matrix is in memory, and the cache answers everything.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from polyrank.service.caching.lru import Lru
from polyrank.service.caching.redis_server import Budget
from polyrank.service.caching.vector_cache import VectorCache


def timed(work: Callable[[], object], rounds: int) -> str:
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    p50, p99 = np.percentile(seconds, [50, 99]) * 1000
    return f"p50 {p50:.3f} ms, p99 {p99:.3f} ms"


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
            cache.remember(names, matrix[rows])
            print(f"{k} vectors from the matrix: {timed(partial(np.take, matrix, rows, axis=0), arguments.rounds)}")
            print(f"{k} vectors from the cache:  {timed(partial(cache.read, names, Budget()), arguments.rounds)}")


if __name__ == "__main__":
    main()
