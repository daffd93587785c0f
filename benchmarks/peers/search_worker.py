"""One side of searching: polyrank's scan, or FAISS's flat index.

    python -m benchmarks.peers.search_worker scan|flat --folder DIR --threads N

DIR holds rows (N, D), the codes (C, M, D) of contexts for the scan, and their queries (C, D) for FAISS.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.worker import answer

ROWS_FILE, CODES_FILE, QUERIES_FILE = "rows.npy", "codes.npy", "queries.npy"
K = 10


def scan(folder: Path, threads: int) -> Callable[[int], Any]:
    """Return the search of polyrank for the context of a number."""
    from polyrank.model import threads as chosen
    from polyrank.model.search.scan import Query, prepare

    chosen.choose(threads)  # as a server does, which imports no torch
    prepared, codes = prepare(np.load(folder / ROWS_FILE, mmap_mode="r")), np.load(folder / CODES_FILE)
    return lambda number: prepared.top_k([Query(codes[number], K)])[0].rows


def flat(folder: Path, threads: int) -> Callable[[int], Any]:
    """Return the search of a flat FAISS index for the context of a number."""
    import faiss

    faiss.omp_set_num_threads(threads)
    vectors, queries = np.load(folder / ROWS_FILE).astype(np.float32), np.load(folder / QUERIES_FILE)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return lambda number: index.search(queries[number : number + 1], K)[1][0]


SIDES = {"scan": scan, "flat": flat}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    answer({"search": SIDES[arguments.side](arguments.folder, arguments.threads)}, {"threads": arguments.threads})
    return 0


if __name__ == "__main__":
    sys.exit(main())
