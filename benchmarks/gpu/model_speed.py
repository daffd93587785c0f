"""What the model costs `/rank` and a build on a GPU: encoding in each precision, scanning, and memory."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from benchmarks.forward_cost import forwards
from benchmarks.gpu.scan_speed import drawn
from benchmarks.random_models import BERT_BASE, MINILM, TINY, Shape, loaded, token_ids, write_base
from benchmarks.timing import quartiles_ms

from polyrank.model.inference.runners import BFLOAT16, FLOAT16, FLOAT32, TORCH, Runner
from polyrank.model.search.scan import Query, Scan, prepare

CONTEXT_TOKENS = (16, 128)  # of the shortest and the longest context
CANDIDATE_TOKENS = (4, 40)
COUNTS = (1, 32)  # contexts at a time
POLY: dict[str, Any] = {"architecture": "poly", "n_codes": 64, "normalize": True, "score_scale": 20.0}


def measure(device: str, tiny: bool, seconds: float) -> Iterator[dict[str, Any]]:
    """Measure models of the shapes of all-MiniLM-L6-v2 and BERT-base, with random weights and 64 learnt codes."""
    for name, shape in (("tiny", TINY),) if tiny else (("MiniLM", MINILM), ("BERT-base", BERT_BASE)):
        with TemporaryDirectory() as folder:
            base = write_base(Path(folder) / "base", shape)
            for precision in (FLOAT32, FLOAT16, BFLOAT16):
                model, before = {"model": name, "precision": precision}, _held(device)
                ranker = loaded(base, f"poly-{precision}", device, Runner(TORCH, precision), **POLY)
                contexts = _contexts(max(COUNTS), shape)
                together = ranker.encode_contexts(contexts)
                yield {"what": "memory", **model, "model_bytes": _held(device) - before}
                alone = [ranker.encode_contexts([each])[0] for each in contexts]
                differ = sum(not np.array_equal(*each) for each in zip(together, alone, strict=True))
                yield {"what": "batches", **model, "contexts_that_differ": differ, "of": len(contexts)}
                yield {"what": "build", **model, **_build(ranker, shape, 64 if tiny else 32_768, seconds)}
                for n in (100, 300) if tiny else (31_000, 1_000_000):
                    if precision == FLOAT32:  # the scan is the same in all
                        yield from ({**row, **model} for row in _rank(ranker, shape, n, device, seconds))
                if precision != FLOAT32:
                    yield {"what": "encode", **model, **_encode(ranker, shape, seconds)}


def batches(device: str, tiny: bool) -> Iterator[dict[str, Any]]:
    """Time batches of many sizes in float32, as `benchmarks.forward_cost` does, with the shape of all-MiniLM-L6-v2."""
    shape, most_tokens = (TINY, 128) if tiny else (MINILM, 65_536)
    with TemporaryDirectory() as folder:
        ranker = loaded(write_base(Path(folder) / "base", shape), "poly", device, Runner(TORCH, FLOAT32), **POLY)
        for length, count, took in forwards(ranker, most_tokens, shape.vocabulary):
            yield {"what": "batch", "tokens": length, "batch": count, "ms": round(took * 1000, 3)}


def _held(device: str) -> int:
    """Return the bytes of the tensors on a GPU; 0 on a CPU."""
    return 0 if device == "cpu" else torch.cuda.memory_allocated(device)


def _contexts(count: int, shape: Shape) -> list[list[int]]:
    return token_ids(np.random.default_rng(0), np.linspace(*CONTEXT_TOKENS, count).round().astype(np.int64), shape)


def _both(ranker: Any, scan: Scan, ids: list[list[int]]) -> None:
    scan.top_k([Query(each, 10) for each in ranker.encode_contexts(ids)])


def _rank(ranker: Any, shape: Shape, n: int, device: str, seconds: float) -> Iterator[dict[str, Any]]:
    matrix, before = drawn(n, shape.dim, device).cpu().numpy(), _held(device)
    scan = prepare(matrix, device)
    matrix_bytes = _held(device) - before
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
    for count in COUNTS:
        ids = _contexts(count, shape)
        codes = ranker.encode_contexts(ids)
        calls: dict[str, Callable[[], Any]] = {
            "encode": partial(ranker.encode_contexts, ids),
            "scan": partial(scan.top_k, [Query(each, 10) for each in codes]),
            "both": partial(_both, ranker, scan, ids),
        }
        took = quartiles_ms(calls, seconds)
        rate = round(count / took["both"][0] * 1000, 1)
        yield {"what": "rank", "n": n, "contexts": count, "milliseconds": took, "a_second": rate}
    peak = 0 if device == "cpu" else torch.cuda.max_memory_allocated(device)
    yield {"what": "memory", "n": n, "matrix_bytes": matrix_bytes, "peak_bytes": peak}


def _encode(ranker: Any, shape: Shape, seconds: float) -> dict[str, Any]:
    calls = {count: partial(ranker.encode_contexts, _contexts(count, shape)) for count in COUNTS}
    took = quartiles_ms(calls, seconds)
    rates = {f"{count}_contexts_a_second": round(count / took[count][0] * 1000, 1) for count in COUNTS}
    return {"milliseconds": took, **rates}


def _build(ranker: Any, shape: Shape, count: int, seconds: float) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(*CANDIDATE_TOKENS, count)
    took = quartiles_ms({"ms": partial(ranker.encode_candidates, token_ids(rng, lengths, shape))}, seconds, rounds=3)
    per_second = {"texts": count, "tokens": int(lengths.sum())}
    return {
        "candidates": count,
        "milliseconds": took["ms"],
        **{f"{what}_a_second": round(each / took["ms"][0] * 1000) for what, each in per_second.items()},
    }
