"""Candidate attention in its closed form against the paper's two products: same dtype, threads and row blocks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from model.topk import top_k
from service.bench.timing import alternate

_SIZES = [(n, m, d) for d in (384, 768) for m in (16, 64, 360) for n in (1_000, 100_000)]
_BLOCK_ROWS = 2048
_SCALE = 10.0


def two_products(candidates: Tensor, codes: Tensor) -> Tensor:
    """Score (N,) as the paper writes it: the attended context vector is formed, then multiplied (Humeau et al. 4.4)."""
    scores = torch.empty(len(candidates))
    for start in range(0, len(candidates), _BLOCK_ROWS):
        block = candidates[start : start + _BLOCK_ROWS]
        attended = (block @ codes.T).softmax(dim=-1) @ codes
        scores[start : start + _BLOCK_ROWS] = (attended * block).sum(dim=-1)
    return scores


def closed_form(candidates: Tensor, codes: Tensor) -> Tensor:
    """The same scores (N,) from one product and a row reduction."""
    scores = torch.empty(len(candidates))
    for start in range(0, len(candidates), _BLOCK_ROWS):
        s = candidates[start : start + _BLOCK_ROWS] @ codes.T
        scores[start : start + _BLOCK_ROWS] = (s.softmax(dim=-1) * s).sum(dim=-1)
    return scores


def measure(seconds: float = 2.0, seed: int = 0) -> list[dict[str, Any]]:
    """Time both forms, and the pruned scan that answers top-10, for each size; float32, unit vectors, scale 10."""
    torch.manual_seed(seed)
    rows = []
    for n, m, d in _SIZES:
        candidates = torch.nn.functional.normalize(torch.randn(n, d), dim=1)
        codes = torch.nn.functional.normalize(torch.randn(m, d), dim=1) * _SCALE
        torch.testing.assert_close(closed_form(candidates, codes), two_products(candidates, codes), atol=1e-4, rtol=0)
        matrix, vectors = candidates.numpy(), codes.numpy()
        calls: dict[str, Callable[[], Any]] = {
            "two_products_ms": partial(two_products, candidates, codes),
            "closed_form_ms": partial(closed_form, candidates, codes),
            "top_10_ms": partial(top_k, matrix, vectors, 10, longest=1.001),
        }
        with torch.inference_mode():
            took = alternate(calls, seconds)
        ratio = took["two_products_ms"] / took["closed_form_ms"]
        rows.append({"n": n, "m": m, "d": d, **{k: round(v, 3) for k, v in took.items()}, "ratio": round(ratio, 2)})
    return rows
