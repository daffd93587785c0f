"""What scoring costs: the closed form of candidate attention, the paper's two products, and the exact scan."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from benchmarks.timing import medians_ms
from torch import Tensor
from torch.nn.functional import normalize

from polyrank.model.search.scan import Query, prepare

_SIZES = [(n, m, d) for d in (384, 768) for m in (16, 64, 360) for n in (1_000, 100_000)]
_BLOCK_ROWS = 2048
_SCALE = 20.0
_CONTEXTS = 8
_TOPICS, _ROW_COSINE, _CODE_COSINE = 500, 0.6, 0.5


def two_products(candidates: Tensor, codes: Tensor) -> Tensor:
    """Score rows, (N,), as the paper does: form the attended context vector, then multiply (Humeau et al. 4.4)."""
    scores = torch.empty(len(candidates))
    for start in range(0, len(candidates), _BLOCK_ROWS):
        block = candidates[start : start + _BLOCK_ROWS]
        attended = (block @ codes.T).softmax(dim=-1) @ codes
        scores[start : start + _BLOCK_ROWS] = (attended * block).sum(dim=-1)
    return scores


def closed_form(candidates: Tensor, codes: Tensor) -> Tensor:
    """Compute the same scores, (N,), from one product and a reduction of each row."""
    scores = torch.empty(len(candidates))
    for start in range(0, len(candidates), _BLOCK_ROWS):
        s = candidates[start : start + _BLOCK_ROWS] @ codes.T
        scores[start : start + _BLOCK_ROWS] = (s.softmax(dim=-1) * s).sum(dim=-1)
    return scores


def measure(seconds: float = 2.0, seed: int = 0) -> list[dict[str, Any]]:
    """Time both forms in float32, and the scan of float16 rows for the ten best of one context and of several at once.

    Rows and codes are drawn like those of a trained encoder: rows are unit vectors around topics, and the codes of a
    context, of length _SCALE, lean to a few topics. If no row stood out, the scan could leave out none.
    """
    torch.manual_seed(seed)
    rows = []
    for n, m, d in _SIZES:
        topics = normalize(torch.randn(_TOPICS, d), dim=1)
        candidates = _about(topics[torch.randint(_TOPICS, (n,))], _ROW_COSINE)
        leanings = [topics[torch.randint(_TOPICS, (4,))].repeat(m // 4, 1) for _ in range(_CONTEXTS)]
        contexts = [_about(each, _CODE_COSINE) * _SCALE for each in leanings]
        codes = contexts[0]
        torch.testing.assert_close(closed_form(candidates, codes), two_products(candidates, codes), atol=1e-4, rtol=0)
        scan, queries = prepare(candidates.half().numpy()), [Query(each.numpy(), 10) for each in contexts]
        calls: dict[str, Callable[[], Any]] = {
            "two_products_ms": partial(two_products, candidates, codes),
            "closed_form_ms": partial(closed_form, candidates, codes),
            "top_10_ms": partial(scan.top_k, queries[:1]),
            f"top_10_of_{_CONTEXTS}_ms": partial(scan.top_k, queries),
        }
        with torch.inference_mode():
            took = medians_ms(calls, seconds)
        ratios = {
            "ratio": took["two_products_ms"] / took["closed_form_ms"],
            "top_10_ratio": took["two_products_ms"] / took["top_10_ms"],
        }
        figures = {k: round(v, 3) for k, v in took.items()} | {k: round(v, 2) for k, v in ratios.items()}
        rows.append({"n": n, "m": m, "d": d, "scan": scan.status.kind, "why": scan.status.why, **figures})
    return rows


def _about(directions: Tensor, cosine: float) -> Tensor:
    """Draw unit vectors (n, D), each at about this cosine to its direction."""
    noise = normalize(torch.randn_like(directions), dim=1)
    return normalize(cosine * directions + (1 - cosine**2) ** 0.5 * noise, dim=1)
