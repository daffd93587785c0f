"""What the model costs `/rank` and a build: encoding contexts and scanning for them, encoding candidates."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from benchmarks.gpu.scan_speed import drawn
from benchmarks.random_models import BERT_BASE, MINILM, TINY, Shape, loaded, token_ids, write_base
from benchmarks.timing import quartiles_ms

from polyrank.model.inference.runners import Runner
from polyrank.model.search.scan import Query, prepare

CONTEXT_TOKENS = (16, 128)  # of the shortest and the longest context
CANDIDATE_TOKENS = (4, 40)
POLY: dict[str, Any] = {"architecture": "poly", "n_codes": 64, "normalize": True, "score_scale": 20.0}


def measure(device: str, tiny: bool, seconds: float) -> Iterator[dict[str, Any]]:
    """Measure models of the shapes of all-MiniLM-L6-v2 and BERT-base, with random weights and 64 learnt codes."""
    for name, shape in (("tiny", TINY),) if tiny else (("MiniLM", MINILM), ("BERT-base", BERT_BASE)):
        with TemporaryDirectory() as folder:
            ranker = loaded(
                write_base(Path(folder) / "base", shape), "poly", device, Runner("torch", "float32"), **POLY
            )
            for n in (100, 300) if tiny else (31_000, 1_000_000):
                yield from _rank(ranker, name, shape, n, device, seconds)
            yield {"what": "build", "model": name, **_build(ranker, shape, 64 if tiny else 32_768, seconds)}


def _rank(ranker: Any, name: str, shape: Shape, n: int, device: str, seconds: float) -> Iterator[dict[str, Any]]:
    scan = prepare(drawn(n, shape.dim, device).cpu().numpy(), device)
    rng = np.random.default_rng(0)
    for count in (1, 32):
        ids = token_ids(rng, np.linspace(*CONTEXT_TOKENS, count).round().astype(np.int64), shape)
        codes = ranker.encode_contexts(ids)
        calls = {
            "encode": partial(ranker.encode_contexts, ids),
            "scan": partial(scan.top_k, [Query(each, 10) for each in codes]),
            "both": lambda ids=ids: scan.top_k([Query(each, 10) for each in ranker.encode_contexts(ids)]),
        }
        took = quartiles_ms(calls, seconds)
        rate = round(count / took["both"][0] * 1000, 1)
        yield {"what": "rank", "model": name, "n": n, "contexts": count, "milliseconds": took, "a_second": rate}


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
