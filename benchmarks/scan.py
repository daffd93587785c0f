"""The exact scan compared with the paper's two products and FAISS flat, and how its cost grows with the pool.

    export OMP_NUM_THREADS=1
    python -m benchmarks.scan compare --cache DIR --model MODEL --replies F [F...] --contexts F [F...]
    python -m benchmarks.scan growth  --cache DIR ...
    python -m benchmarks.scan least   --cache DIR ...
    python -m benchmarks.scan added   --cache DIR ...

Replies and contexts are files of dialogues; they are encoded once and kept in DIR, as index_kinds.py does.
`compare` times the sides in turns; a ratio is taken within a round. The paper's form computes in float32 over float32
rows, unblocked as published, and in blocks of 2048 rows. FAISS flat gets one query a context, as a Bi-encoder would
ask, and is measured with its defaults and with its matrix product, which by default it uses only for many more queries.
Answers are checked against scoring every row. `growth` measures processor time, which other processes cannot lengthen,
and bytes of memory, from N = 10,000 on. `least` says from how many rows on bytes are faster than the stored rows, by
the number of code vectors. `added` compares the processor time of queries that add a number to the score of each row
with that of queries that add nothing, by how the numbers are distributed.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count as counted_from
from typing import Any

import faiss
import numpy as np
import psutil
import torch
from benchmarks.index_kinds import add_options, encoded, grown
from benchmarks.peers.ratios import Figure, ratios
from benchmarks.scoring import two_products
from benchmarks.timing import in_turns, machine, processor_seconds, wall_seconds
from numpy.typing import NDArray
from torch import Tensor

from polyrank.model.representations import Additions
from polyrank.model.search.scan import Query, Scan, prepare, quantised
from polyrank.model.search.scan.quantised import QuantisedScan
from polyrank.model.search.topk import scores_of

OURS = "scan"
K = 10
MANY = 32  # contexts at once
SIZES = (10_000, 31_623, 100_000, 316_228, 1_000_000)
SMALL_SIZES = (2048, 4096, 8192, 16_384, 32_768)

Matrix = NDArray[np.float16]
Codes = NDArray[np.float32]


def unblocked(candidates: Tensor, codes: Tensor) -> Tensor:
    """Score rows, (N,), as the paper does, over the whole pool at once."""
    attended = (candidates @ codes.T).softmax(dim=-1) @ codes
    return (attended * candidates).sum(dim=-1)


def rounds(
    sides: dict[str, Callable[[int], Any]], count: int, measure: Callable[[Callable[[], Any]], float] = wall_seconds
) -> dict[str, list[float]]:
    """Time sides in turns; returns seconds of each side and round. A side gets the number of the round, from -1."""
    calls = {name: partial(_next_round, side, counted_from(-1)) for name, side in sides.items()}
    return in_turns(calls, count, measure=measure)


def _next_round(side: Callable[[int], Any], numbers: Iterator[int]) -> None:
    side(next(numbers))


def print_rows(what: str, took: dict[str, list[float]]) -> None:
    """Print rows of a table: milliseconds, and how many times ours."""
    compared = ratios(took, OURS)
    for name, seconds in took.items():
        ms, times = Figure.of(seconds).times(1000), compared.get(name, "")
        print(f"| {what} | {name} | {ms} | {times} |", flush=True)


def check(scan: Scan, matrix: Matrix, contexts: Codes, additions: Additions | None = None) -> None:
    queries = [Query(each, K, None, additions) for each in contexts]
    for codes, best in zip(contexts, scan.top_k(queries), strict=True):
        scores = scores_of(matrix, codes, additions)
        expected = np.lexsort((np.arange(len(scores)), -scores))[:K]
        if not (np.array_equal(best.rows, expected) and np.array_equal(best.scores, scores[expected])):
            sys.exit("the scan's answer is not that of scoring every row")


def compare(matrix: Matrix, contexts: Codes, arguments: argparse.Namespace) -> None:
    """Compare all sides on one context, and on several at once."""
    candidates = torch.from_numpy(matrix.astype(np.float32))
    flat = faiss.IndexFlatIP(matrix.shape[1])
    flat.add(candidates.numpy())
    scan = prepare(matrix)
    check(scan, matrix, contexts[:8])
    together = np.ascontiguousarray(contexts[np.arange(MANY) % len(contexts), 0])

    def of(number: int) -> Codes:
        codes: Codes = contexts[number % len(contexts)]
        return codes

    def paper(form: Callable[[Tensor, Tensor], Tensor], number: int) -> None:
        form(candidates, torch.from_numpy(of(number))).topk(K)

    def several(number: int) -> None:
        scan.top_k([Query(of(number * MANY + at), K) for at in range(MANY)])

    def with_products(_: int) -> None:
        least, faiss.cvar.distance_compute_blas_threshold = faiss.cvar.distance_compute_blas_threshold, 1
        flat.search(together, K)
        faiss.cvar.distance_compute_blas_threshold = least

    one: dict[str, Callable[[int], Any]] = {
        OURS: partial(one_of, scan, contexts),
        "two products": partial(paper, unblocked),
        "two products in blocks": partial(paper, two_products),
        "FAISS flat": lambda number: flat.search(of(number)[:1], K),
    }
    more: dict[str, Callable[[int], Any]] = {
        OURS: several,
        "FAISS flat": lambda _: flat.search(together, K),
        "FAISS flat by product": with_products,
    }
    with torch.inference_mode():
        measure = processor_seconds if arguments.processor_time else wall_seconds
        print_rows("1 context", rounds(one, arguments.rounds, measure))
        print_rows(f"{MANY} contexts", rounds(more, max(3, arguments.rounds // 3), measure))


def one_of(scan: Scan, contexts: Codes, number: int, additions: Additions | None = None) -> None:
    scan.top_k([Query(contexts[number % len(contexts)], K, None, additions)])


def growth(matrix: Matrix, contexts: Codes, arguments: argparse.Namespace) -> None:
    """Measure processor time of a context and memory besides the matrix by pool size, and their logarithmic slopes."""
    found: list[tuple[int, float, int]] = []  # rows, milliseconds, bytes
    rng = np.random.default_rng(arguments.seed)
    rounds({OURS: partial(one_of, prepare(grown(matrix, SIZES[0], rng)), contexts)}, 3)  # buffers that libraries keep
    for size in SIZES:
        pool = grown(matrix, size, rng)
        before = psutil.Process().memory_info().rss
        began = time.process_time()
        scan = prepare(pool)
        prepared, held = time.process_time() - began, psutil.Process().memory_info().rss - before
        check(scan, pool, contexts[:2])
        took = rounds({OURS: partial(one_of, scan, contexts)}, arguments.rounds, processor_seconds)
        ms = Figure.of(took[OURS]).times(1000)
        print(f"| {size} | {ms} | {held / 2**20:.0f} | {prepared:.2f} |", flush=True)
        found.append((size, ms.median, max(1, held)))
        del scan, pool  # before the next ones are made
    logs = np.log(found)
    slopes = [float(np.polyfit(logs[1:, 0], logs[1:, column], 1)[0]) for column in (1, 2)]
    print(f"slope of the logarithms from {SIZES[1]} on: time {slopes[0]:.2f}, memory {slopes[1]:.2f}")


def least(matrix: Matrix, contexts: Codes, arguments: argparse.Namespace) -> None:
    """Compare the scan in bytes with that of the stored rows in small pools."""
    quantised.LEAST_ROWS = quantised._ROWS_FOR_ONE_CODE = quantised._ROWS_FOR_FEW_CODES = 0  # bytes wherever they are
    for m in (1, 16, 64):
        codes = np.ascontiguousarray(contexts[:, :m])
        for size in SMALL_SIZES:
            pool = matrix[:size]
            scans = {OURS: QuantisedScan(pool), "stored rows": prepare(pool, with_bytes=False)}
            sides: dict[str, Callable[[int], Any]] = {
                name: partial(one_of, scan, codes) for name, scan in scans.items()
            }
            print_rows(f"{m} codes, {size} rows", rounds(sides, arguments.rounds, processor_seconds))


def numbers(size: int, rng: np.random.Generator) -> dict[str, NDArray[np.float64]]:
    """Draw what queries add to the scores of a pool, (N,) each, beside late scores with a deviation of 1.5."""
    tail = rng.exponential(0.6, size) + np.where(rng.random(size) < 0.03, rng.uniform(2, 5, size), 0)
    return {
        "nothing but zeros": np.zeros(size),
        "a tail: 3 % of the rows high, the others low": tail,
        "the tail, and -0.1 to 0.1 for each row": tail + rng.uniform(-0.1, 0.1, size),
        "the tail, and 2 for half of the rows": tail + np.where(rng.random(size) < 0.5, 2, 0),
        "2 to 4 for 5 % of the rows": np.where(rng.random(size) < 0.05, rng.uniform(2, 4, size), 0),
        "3 for 1 % of the rows": np.where(rng.random(size) < 0.01, 3, 0),
        "3 for 5 % of the rows": np.where(rng.random(size) < 0.05, 3, 0),
    }


def added(matrix: Matrix, contexts: Codes, arguments: argparse.Namespace) -> None:
    """Compare queries that add numbers with those that add none."""
    scan, rng = prepare(matrix), np.random.default_rng(arguments.seed)
    sides: dict[str, Callable[[int], Any]] = {OURS: partial(one_of, scan, contexts)}
    for name, values in numbers(len(matrix), rng).items():
        additions = Additions(1.0, values.astype(np.float32))
        check(scan, matrix, contexts[:2], additions)
        sides[name] = partial(one_of, scan, contexts, additions=additions)
    print_rows(f"{len(matrix)} rows", rounds(sides, arguments.rounds, processor_seconds))


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("compare", "growth", "least", "added"))
    add_options(parser)
    parser.add_argument("--size", type=int, default=100_000, help="rows")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--processor-time", action="store_true", help="compare processor time; for busy machines")
    arguments = parser.parse_args(given)
    faiss.omp_set_num_threads(torch.get_num_threads())
    matrix, contexts = encoded(arguments)
    rng = np.random.default_rng(arguments.seed)
    contexts = contexts[rng.permutation(len(contexts))]
    matrix = matrix if arguments.what not in ("compare", "added") else grown(matrix, arguments.size, rng)
    print(machine(), f"seed {arguments.seed}, N {len(matrix)}, contexts {contexts.shape}, {arguments.rounds} rounds")
    measure = {"compare": compare, "growth": growth, "least": least, "added": added}[arguments.what]
    measure(matrix, contexts, arguments)


if __name__ == "__main__":
    main()
