"""What an exact top-10 costs, compared with reading the matrix once, which is the least that any scan needs."""

import cProfile
import pstats
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.timing import quartiles_ms
from numpy.typing import NDArray
from torch import Tensor

from polyrank.model.search.scan import Query, Scan, prepare
from polyrank.model.search.scan.gpu import tiles_for
from polyrank.model.search.topk import TopK, top_k

SCALE = 20.0
K = 10


def check(device: str, n: int) -> Iterator[dict[str, Any]]:
    """Compare rows and scores with those of the CPU; the matrix holds copies of rows."""
    for d, m, dtype in (
        (384, 1, torch.float16),
        (384, 64, torch.float16),
        (100, 360, torch.float16),
        (384, 64, torch.float32),
    ):
        stored = drawn(n, d, device).to(dtype)
        stored[n // 2 :] = stored[: n - n // 2].flip(0)
        matrix = stored.cpu().numpy()
        allowed = np.random.default_rng(0).random(n) < 0.5
        queries = [
            Query(codes, k, rows)
            for codes, k, rows in zip(contexts(3, m, d), (10, 500, 10), (None, None, allowed), strict=True)
        ]
        wrong = 0
        for found, query in zip(prepare(matrix, device).top_k(queries), queries, strict=True):
            rows = None if query.allowed is None else np.flatnonzero(query.allowed)
            expected = top_k(matrix, query.codes, query.k, rows)
            wrong += _differs(found, expected)
        yield {"what": "check", "n": n, "d": d, "m": m, "dtype": str(dtype), "wrong": wrong, "of": len(queries)}


def _differs(found: TopK, expected: TopK) -> bool:
    return not (np.array_equal(found.rows, expected.rows) and np.array_equal(found.scores, expected.scores))


def measure(device: str, sizes: Sequence[int], seconds: float) -> Iterator[dict[str, Any]]:
    """Time scans of so many rows: 1 context and 32, 64 code vectors and 360, 384 dimensions and 768.

    `wrong` says whether the first context's rows or scores differ from brute force on the CPU.
    """
    for n, d in product(sizes, (384, 768)):
        stored = drawn(n, d, device)
        matrix = stored.cpu().numpy()
        scan = prepare(matrix, device)
        for count, m in ((1, 64), (1, 1), (1, 360), (8, 64), (32, 64)):
            queries = [Query(codes, K) for codes in contexts(count, m, d)]
            wrong = _differs(scan.top_k(queries)[0], top_k(matrix, queries[0].codes, K))
            yield {**_timed(stored, scan, queries, seconds), "wrong": int(wrong)}
        if device != "cpu":
            queries = [Query(codes, K) for codes in contexts(1, 64, d)]
            yield kernels(scan, queries)
            yield host(scan, queries)
        del stored, scan


def kernels(scan: Scan, queries: Sequence[Query]) -> dict[str, Any]:
    """Measure the microseconds of each kernel and copy of one call: where time goes besides the scan."""
    scan.top_k(queries)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        scan.top_k(queries)
    took = {each.key[:60]: round(each.device_time_total, 1) for each in profile.key_averages()}
    return {"what": "kernels", "microseconds": {name: time for name, time in took.items() if time}}


def host(scan: Scan, queries: Sequence[Query], calls: int = 50) -> dict[str, Any]:
    """Measure the microseconds of a call's functions on the host, the profiler's own time included; most first."""
    with cProfile.Profile() as profile:
        for _ in range(calls):
            scan.top_k(queries)
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]  # the stub lacks it
    own = {f"{Path(file).name}:{name}": each[2] for (file, _, name), each in stats.items()}
    first = sorted(own.items(), key=lambda each: -each[1])[:15]
    return {"what": "host", "microseconds": {name: round(took / calls * 1e6, 1) for name, took in first}}


def _timed(stored: Tensor, scan: Scan, queries: list[Query], seconds: float) -> dict[str, Any]:
    n, d = stored.shape
    m = len(queries[0].codes)
    # The sum ends on the host, as the answer of a scan does.
    calls: dict[str, Callable[[], Any]] = {
        "read": lambda: float(stored.sum(dtype=torch.float32)),
        "top_10": partial(scan.top_k, queries),
    }
    took = quartiles_ms(calls, seconds)
    return {
        "what": "scan",
        "n": n,
        "d": d,
        "m": m,
        "contexts": len(queries),
        "tiles": tiles_for(m, len(queries), stored.dtype) if stored.is_cuda else None,
        **{f"{name}_ms": each for name, each in took.items()},
        "read_gb_a_second": round(stored.nbytes / took["read"][0] / 1e6, 1),
        "ratio": round(took["top_10"][0] / took["read"][0], 3),
    }


def drawn(n: int, d: int, device: str) -> Tensor:
    """Draw random unit rows on the device, (n, d) float16."""
    generator = torch.Generator(device).manual_seed(d)
    stored = torch.empty(n, d, dtype=torch.float16, device=device)
    for part in stored.split(2**17):  # type: ignore[no-untyped-call]  # torch has no type for it
        rows = torch.randn(part.shape, generator=generator, device=device)
        part.copy_(torch.nn.functional.normalize(rows, dim=1))
    return stored


def contexts(count: int, m: int, d: int) -> list[NDArray[np.float32]]:
    """Draw unit vectors times the scale, (m, d) for each context."""
    codes = np.random.default_rng(m).standard_normal((count, m, d), np.float32)
    return list(codes * SCALE / np.linalg.norm(codes, axis=2, keepdims=True))
