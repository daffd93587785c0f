"""Tables 5 and 9 of Humeau et al.: milliseconds from a context to the best of N candidates, on a CPU or a GPU.

    python -m benchmarks.paper_table [--device cuda] [--threads 2] [--seconds 30] [--processor-time] [--shape tiny]

The transformers have the shape of BERT-base and random weights. A Bi- or Poly-encoder encodes a context of 128 tokens
and scans all candidates, encoded ahead, for the ten best, exactly as the service does. The Cross-encoder reads the
context with each candidate of 16 tokens; as in the paper, its times follow from pairs a second. `first` m takes the
first m token outputs as context vectors, so 128 at most. Models take turns. Prints a line of JSON for each model, then
the table.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from benchmarks.random_models import BERT_BASE, TINY, Shape, loaded, token_ids, write_base
from benchmarks.timing import processor_seconds, quartiles_ms, wall_seconds
from numpy.typing import NDArray

from polyrank.model.inference.runners import Runner
from polyrank.model.search.scan import Query, prepare
from polyrank.model.text.sequences import Pairs

CONTEXT_TOKENS, CANDIDATE_TOKENS = 128, 16
SIZES = (1_000, 100_000)
FLOAT32 = Runner("torch", "float32")
PAIRS = 8
SAMPLE = 256  # candidates that are encoded; the rows of the pool are drawn with their mean and spread
SHAPES = {"bert-base": (BERT_BASE, SIZES), "tiny": (TINY, (50, 200))}


def _poly(kind: str, m: int) -> dict[str, Any]:
    return {"architecture": "poly", "context_vectors": kind, "n_codes": m}


MODELS: dict[str, dict[str, Any]] = {
    "Bi": {"architecture": "bi"},
    **{f"Poly, first {m}": _poly("first", m) for m in (16, 64, 360)},
    **{f"Poly, learnt {m}": _poly("codes", m) for m in (16, 64, 360)},
    "Cross": {"architecture": "cross"},
}
# Milliseconds at 1k and 100k candidates, on an 80-core Xeon E5-2698 and a Quadro GP100 (Table 9).
PAPER: dict[str, dict[str, tuple[int, int]]] = {
    "Bi": {"cpu": (115, 160), "cuda": (19, 22)},
    "Poly, first 16": {"cpu": (119, 551), "cuda": (17, 37)},
    "Poly, first 64": {"cpu": (124, 570), "cuda": (17, 39)},
    "Poly, first 360": {"cpu": (120, 619), "cuda": (17, 45)},
    "Poly, learnt 16": {"cpu": (122, 678), "cuda": (18, 38)},
    "Poly, learnt 64": {"cpu": (126, 692), "cuda": (23, 46)},
    "Poly, learnt 360": {"cpu": (160, 837), "cuda": (57, 88)},
    "Cross": {"cpu": (21_700, 2_200_000), "cuda": (2_600, 266_000)},
}


def measure(
    device: str,
    shape: Shape,
    sizes: tuple[int, ...],
    seconds: float,
    measure_call: Callable[[Callable[[], Any]], float],
) -> Iterator[dict[str, Any]]:
    """Time all models in turns; yields a row for each."""
    rng = np.random.default_rng(0)
    context = token_ids(rng, np.array([CONTEXT_TOKENS]), shape)
    candidates = token_ids(rng, np.full(SAMPLE, CANDIDATE_TOKENS), shape)
    pairs = Pairs(context, candidates[:PAIRS], [0] * PAIRS)
    with TemporaryDirectory() as folder:
        base = write_base(Path(folder) / "base", shape)
        rankers = {
            name: loaded(base, f"model-{number}", device, FLOAT32, **fields)
            for number, (name, fields) in enumerate(MODELS.items())
        }
    cross = rankers.pop("Cross")
    encoded = rankers["Bi"].encode_candidates(candidates)
    scans = {n: prepare(_pool(rng, encoded, n), device) for n in sizes}
    codes = {name: ranker.encode_contexts(context)[0] for name, ranker in rankers.items()}
    calls: dict[Any, Callable[[], Any]] = {"pairs": partial(cross.score_pairs, pairs)}
    for name, ranker in rankers.items():
        calls[name, "encode"] = partial(ranker.encode_contexts, context)
        for n, scan in scans.items():
            calls[name, n] = partial(scan.top_k, [Query(codes[name], 10)])
    took = quartiles_ms(calls, seconds, measure=measure_call)
    for name in rankers:
        of_model = {str(what): took[name, what] for what in ("encode", *sizes)}
        totals = [round(took[name, "encode"][0] + took[name, n][0], 2) for n in sizes]
        yield {"model": name, "context_vectors": len(codes[name]), "milliseconds": of_model, "total": totals}
    a_second = PAIRS / took["pairs"][0] * 1000
    totals = [round(n / a_second * 1000, 1) for n in sizes]
    yield {"model": "Cross", "pairs_a_second": round(a_second, 1), "milliseconds": took["pairs"], "total": totals}


def _pool(rng: np.random.Generator, encoded: NDArray[np.float32], n: int) -> NDArray[np.float16]:
    drawn = rng.standard_normal((n, encoded.shape[1]), np.float32)
    rows: NDArray[np.float16] = (drawn * encoded.std(axis=0) + encoded.mean(axis=0)).astype(np.float16)
    return rows


def table(rows: list[dict[str, Any]], device: str, sizes: tuple[int, ...]) -> str:
    """Format the rows in Markdown, with the paper's figures."""
    heads = ["model", "encode", *(f"scan {n:,}" for n in sizes), *(f"{n:,} candidates" for n in sizes), "the paper's"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for row in rows:
        name, took = row["model"], row["milliseconds"]
        paper = PAPER[name]["cpu" if device == "cpu" else "cuda"]
        if name == "Cross":
            parts = [f"{row['pairs_a_second']} pairs a second", *[""] * len(sizes)]
        else:
            parts = [f"{each[0]:,.1f} ({each[1]:,.1f}-{each[2]:,.1f})" for each in took.values()]
        lines.append(_line([name, *parts, *(f"{each:,.1f}" for each in row["total"]), f"{paper[0]:,}, {paper[1]:,}"]))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=30.0, help="for all models")
    parser.add_argument("--processor-time", action="store_true", help="for a CPU that is busy, with --threads 1")
    parser.add_argument("--shape", choices=SHAPES, default="bert-base")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    shape, sizes = SHAPES[arguments.shape]
    clock = processor_seconds if arguments.processor_time else wall_seconds
    rows = []
    for row in measure(arguments.device, shape, sizes, arguments.seconds, clock):
        rows.append(row)
        print(json.dumps(row), flush=True)
    print(table(rows, arguments.device, sizes), file=sys.stderr)


if __name__ == "__main__":
    main()
