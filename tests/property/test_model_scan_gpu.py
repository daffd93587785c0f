"""The error of a GPU's scores, simulated with sums cut at every step, stays below the margin."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from polyrank.model.search.scan.gpu import GpuCodes

Rows = NDArray[np.floating]
Codes = NDArray[np.float32]


def cut(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cut towards zero, to 24 bits: tensor cores do not round."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32)
    return np.where(abs(rounded) > abs(values), np.nextafter(rounded, np.float32(0)), rounded).astype(np.float64)


def products(rows: Rows, codes: Codes) -> NDArray[np.float64]:
    """Multiply, (N, M), adding one element after another and cutting each sum."""
    total = np.zeros((len(rows), len(codes)))
    for y, c in zip(rows.T.astype(np.float64), codes.T.astype(np.float64), strict=True):
        total = cut(total + y[:, None] * c)
    return total


def closed_form(s: NDArray[np.floating]) -> NDArray[np.floating]:
    below = s - s.max(axis=1, keepdims=True)
    weights = np.exp(below)
    return s.max(axis=1) + (weights * below).sum(axis=1) / weights.sum(axis=1)


def errors(rows: Rows, codes: Codes) -> tuple[NDArray[np.float64], float]:
    """Return the errors of a GPU's scores, (N,), and half the margin."""
    longest = float(np.linalg.norm(rows.astype(np.float64), axis=1).max())
    held = GpuCodes([codes], [1], torch.from_numpy(rows), longest, 16, [1.0])
    s = products(rows, held.rounded[0, : len(codes)].numpy()).astype(np.float32) * held.units.numpy()[0]
    exact = rows.astype(np.float64) @ codes.T.astype(np.float64)
    return abs(closed_form(s) - closed_form(exact)), float(held.margins[0]) / 2


def drawn(seed: int) -> tuple[Rows, Codes]:
    """Draw rows and codes of all lengths, similar or not; some rows match only one code."""
    rng = np.random.default_rng(seed)
    d, m = int(rng.choice([3, 48, 384])), int(rng.choice([1, 5, 64, 360]))
    dtype = (np.float16, np.float32)[seed % 2]
    codes = rng.normal(size=(m, d)) / np.sqrt(d) + rng.choice([0.0, 1.0]) * rng.normal(size=d)
    codes = (codes * rng.choice([1e-30, 1e-3, 1.0, 20.0, 1e4])).astype(np.float32)
    rows = rng.normal(size=(40, d)) / np.sqrt(d) * rng.choice([1e-7, 1.0, 1e3])
    largest = np.abs(codes).max() or 1.0
    rows[::4] += codes[rng.integers(m, size=10)] / largest * np.abs(rows).max()
    return rows.astype(dtype), codes


@pytest.mark.parametrize("seed", range(60))
def test_no_score_is_off_by_more_than_half_the_margin(seed: int) -> None:
    found, allowed = errors(*drawn(seed))
    assert found.max() <= allowed


def test_the_margin_is_no_wider_than_it_must_be() -> None:
    """Unit vectors with scores in [-20, 20] need a small margin, or all rows would be finalists."""
    rng = np.random.default_rng(0)
    rows, codes = rng.normal(size=(50, 384)), rng.normal(size=(64, 384))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    codes *= 20 / np.linalg.norm(codes, axis=1, keepdims=True)
    found, allowed = errors(rows.astype(np.float16), codes.astype(np.float32))
    assert found.max() > 0.0002
    assert allowed < 0.1


@pytest.mark.parametrize(("code", "longest"), [([1.0, np.nan], 1.0), ([np.inf, 1.0], 1.0), ([1.0, 1.0], 1e30)])
def test_what_may_overflow_has_no_margin(code: list[float], longest: float) -> None:
    held = GpuCodes([np.array([code], np.float32)], [1], torch.zeros(1, 2), longest, 16, [1.0])
    assert not np.isfinite(held.margins.numpy()).any()
