"""The margin for pools whose float32 scores come in the wrong order, and for products that overflow."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from polyrank.model.search.scan import Additions, Query, prepare
from polyrank.model.search.scan.plain import PlainScan
from polyrank.model.search.topk import closed_form, longest_row, rounding, scores_of, top_k

pytestmark = pytest.mark.quick

torch.set_num_threads(1)  # on matrices this small threads only wait for each other

DIM = 384


def misordered(m: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
    """A pool, its best row first, one context's codes, and how far a worse row is ahead of it as float32 computes.

    Rows and codes are constant, so that the rounding errors of a sum all point the same way; one code is just as far
    ahead of the others as makes the closed form steepest.
    """
    rng = np.random.default_rng(seed)
    first = np.float32(rng.uniform(0.5, 1))
    codes = np.full((m, DIM), first * (20 - math.log(m - 1)) / 20 * (1 + rng.normal() * 0.01), np.float32)
    codes[0] = first
    lengths = rng.integers(300, DIM + 1, 1300)
    values = (20 / (lengths * float(first)) * (1 + rng.uniform(-2e-6, 2e-6, 1300))).astype(np.float32)
    rows = np.where(np.arange(DIM) < lengths[:, None], values[:, None], np.float32(0))
    stored, vectors = torch.from_numpy(rows), torch.from_numpy(codes)
    order = closed_form(stored.double() @ vectors.double().T).argsort(descending=True).numpy()
    computed = closed_form(stored @ vectors.T).numpy()[order]
    ahead = np.maximum.accumulate(computed[::-1])[::-1] - computed
    best = int(ahead.argmax())
    return rows[order[best:]], codes, float(ahead[best])


@pytest.mark.parametrize("m", [64, 128, 360])
def test_rows_that_float32_puts_in_the_wrong_order(m: int) -> None:
    for seed in range(12):
        rows, codes, ahead = misordered(m, seed)
        assert 0 < ahead <= rounding(torch.from_numpy(codes), longest_row(rows))
        found, scores = top_k(rows, codes, 1), scores_of(rows, codes)
        assert found.rows.tolist() == [scores.argmax()]


@pytest.mark.parametrize("late_weight", [1e-3, 1.0, 1e3])
def test_rows_that_float32_puts_in_the_wrong_order_with_additions(late_weight: float) -> None:
    """What is added leaves the order of the late scores, whose error the late weight multiplies."""
    for seed in range(12):
        rows, codes, ahead = misordered(128, seed)
        additions = Additions(late_weight, np.full(len(rows), -20 * late_weight, np.float32))
        assert 0 < late_weight * ahead <= rounding(torch.from_numpy(codes), longest_row(rows), late_weight)
        scores = scores_of(rows, codes, additions)
        assert top_k(rows, codes, 1, additions=additions).rows.tolist() == [scores.argmax()]


def test_products_that_overflow_lose_no_row() -> None:
    """The best row has a product of 50, and one of -1e40 that gets no weight."""
    rng = np.random.default_rng(0)
    matrix, codes = rng.normal(size=(9000, 16)).astype(np.float32), np.zeros((2, 16), np.float32)
    matrix[:, 1] = 0
    matrix[7, :2] = 50, -1e25
    codes[0, 0], codes[1, 1] = 1, 1e15
    assert rounding(torch.from_numpy(codes), longest_row(matrix)) == math.inf
    expected = np.argsort(-scores_of(matrix, codes))[:5]
    assert expected[0] == 7
    assert top_k(matrix, codes, 5).rows.tolist() == expected.tolist()
    for scan in (PlainScan(matrix, longest_row(matrix)), prepare(matrix)):
        unchanged = Additions(1.0, np.zeros(len(matrix), np.float32))
        for found in scan.top_k([Query(codes, 5), Query(codes, 5, None, unchanged)]):
            assert found.rows.tolist() == expected.tolist()


@pytest.mark.parametrize("worst", [math.inf, math.nan])
def test_a_pool_that_is_not_finite_is_not_compared(worst: float) -> None:
    assert rounding(torch.ones(3, 4), worst) == math.inf
