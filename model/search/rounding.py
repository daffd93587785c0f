"""Bound the error of rounding: how far below the k-th best computed score a row of the k best can be.

With additions a score is `w late + a`: w is the late weight, and a is the row's number, which float32 holds exactly.
The CPU computes that in float64 from a late score in float32, so of its error only w times that of the late score
matters. Rounding the answer to float32 is different: two scores are equal there up to `2**-23` of their size, and the
size of a has no bound. A margin for the largest a would be far too wide for all others. What may be taken for equal to
the k-th best is however about as large as the k-th best itself. So a share of the threshold is added to the margin.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Rows or products above could overflow float32.
LONGEST_ROW = 2.0**90
LARGEST_PRODUCT = 2.0**100

# The margin of scores with additions, as a share of the threshold: `2**-23` for scores that are equal in float32,
# `2**-24` twice for a GPU, which adds in float32. Float64 rounds a billionth of that.
RELATIVE = 2.0**-22

_UNIT = 2.0**-24  # of a float32 operation
_TINY = 2.0**-126  # the smallest normal float32; smaller numbers may be flushed to 0


def margin_of(m: NDArray[np.float64], products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute twice the largest error of a score from the largest error of a product.

    The derivatives of the closed form sum to at most `1 + 2 (max s - score)`, and `max s - score <= W((M - 1) / e)`
    with Lambert's W, so to less than `1 + 2 ln(1 + (M - 1) / e)`. Rounding in the closed form itself adds the last
    term: `exp(t)` is off by `2**-22 (1 + |t|) exp(t)`, and the mean of `t**2` over the weights is at most
    `2 (2 + ln M)**2`.

    m: the number of codes of each context. products: the largest error of a product of each context.
    """
    slopes = 1 + 2 * np.log1p((m - 1) / math.e)
    margins: NDArray[np.float64] = 2 * (slopes * products + (m + 8) * 2**-22 * (2 + np.log(m)) ** 2)
    return margins


def rounding(codes: Tensor, longest: float, late_weight: float = 1.0) -> float:
    """Bound how far below the k-th best score, computed in float32 on a CPU, the score of a row of the k best can be.

    A sum of D products in any order is off by at most `(D + 1) 2**-24 |y| |c|`. The sum of M terms in the closed form,
    which are not relative to the largest, is off by `(2 M + 2) 2**-24 |y| |c|`. The rest covers comparisons, and
    scores that are equal only in float32.

    codes: (M, D) float32. longest: length of the longest row. late_weight: by which scores are multiplied in float64;
    `RELATIVE` is then to be added. Returns infinity if products may overflow.
    """
    m, dim = codes.shape
    length = float(torch.linalg.vector_norm(codes, dim=1, dtype=torch.float64).max())
    largest = length * longest
    if not (longest < LONGEST_ROW and largest < LARGEST_PRODUCT):
        return math.inf
    products = (dim + 4) * _UNIT * largest * (1 + 2**-10) + dim * _TINY * (1 + length + longest)
    late = float(margin_of(np.array(float(m)), np.array(products))) + 2 * (2 * m + 4) * _UNIT * largest
    return late_weight * late + _TINY  # by which numbers that float32 hardly holds may be rounded
