"""Rows and codes in bytes, and an upper bound of their exact products.

Write a row as `c = mu + c'`, with the mean `mu` of the pool, and a code as `y`. Then `s = y . c = y . mu + y . c'`.
Let `q` be the bytes of c' times the step of their block, and `r` the bytes of y times their own step. By the inequality
of Cauchy and Schwarz

    |y . c' - r . q|  <=  |y| |c' - q| + |y - r| |q|.

Rows of encoders that were not trained to spread their outputs have much in common. Subtracting the mean removes that,
and with it most of the error.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.model.search.scan.product import ZERO
from polyrank.model.search.topk import longest_of
from polyrank.model.search.widening import widen
from polyrank.model.threads import count

BLOCK_ROWS = 16_384
_PART_ROWS = 1024
_LEVELS = 127
_MEAN_ROWS = 4096
# What rounding in float32 adds to a residual: relative to the row's length, and for numbers too small to be normal.
_RELATIVE = 1e-6
_SMALLEST = 1e-30
_HUGE = 1e100  # instead of infinity: 0 times that is 0


@dataclass(frozen=True, slots=True)
class QuantisedRows:
    """A pool in bytes."""

    bytes: NDArray[np.uint8]  # (N, D) uint8, each ZERO more than its value
    mean: NDArray[np.float64]  # mu, (D,) float64
    steps: NDArray[np.float64]  # value of one unit of the bytes, for each block of BLOCK_ROWS rows, (blocks,) float64
    residuals: NDArray[np.float64]  # the largest |c' - q| of each block, (blocks,) float64
    lengths: NDArray[np.float64]  # the largest |q| of each block, (blocks,) float64
    longest: float  # the largest |c| of all rows

    @classmethod
    def of(cls, matrix: NDArray[Any]) -> "QuantisedRows":
        """Quantise a matrix (N, D), float16 or float32; N is at least 1."""
        stored = np.asarray(matrix)
        with np.errstate(all="ignore"):
            mean = stored[:: max(1, len(stored) // _MEAN_ROWS)].mean(axis=0, dtype=np.float64).astype(np.float32)
        mean[~np.isfinite(mean)] = 0.0  # else no row would reach a bound; what is no number is found by its score
        rounded = np.empty(stored.shape, np.uint8)

        def quantise(start: int) -> tuple[float, float, float, float]:
            block = slice(start, start + BLOCK_ROWS)
            with np.errstate(all="ignore"):
                return _quantise(stored[block], mean, rounded[block])

        with ThreadPoolExecutor(count()) as threads:  # each uses one: NumPy has no threads but in products
            blocks = list(threads.map(quantise, range(0, len(stored), BLOCK_ROWS)))
        steps, residuals, lengths, longest = np.array(blocks).T
        return cls(rounded, mean.astype(np.float64), steps, residuals, lengths, float(longest.max()))


def _quantise(
    rows: NDArray[Any], mean: NDArray[np.float32], into: NDArray[np.uint8]
) -> tuple[float, float, float, float]:
    """Write the bytes of a block; returns its step, largest residual, largest |q| and largest |c|.

    The block is read twice, in parts that stay in cache: for the largest component, and for the bytes.
    """
    parts = [slice(start, start + _PART_ROWS) for start in range(0, len(rows), _PART_ROWS)]
    wide, other = (np.empty((min(_PART_ROWS, len(rows)), rows.shape[1]), np.float32) for _ in range(2))
    lengths, centred_lengths, ends = [], [], []
    for part in parts:
        own = wide[: len(rows[part])]
        widen(rows[part], own)
        lengths.append(longest_of(own))
        np.subtract(own, mean, out=own)
        centred_lengths.append(longest_of(own))
        ends += [own.max(), -own.min()]
    longest, longest_centred, largest = (float(np.max(each)) for each in (lengths, centred_lengths, ends))
    error = _RELATIVE * longest_centred + _SMALLEST
    if not _SMALLEST <= largest < math.inf:
        into[:] = ZERO
        return 0.0, min(error + longest_centred, _HUGE), 0.0, longest
    step, residual, length = largest / _LEVELS, 0.0, 0.0
    for part in parts:
        own, rounded = wide[: len(rows[part])], other[: len(rows[part])]
        widen(rows[part], own)
        np.subtract(own, mean, out=own)
        np.divide(own, np.float32(largest), out=rounded)
        np.multiply(rounded, np.float32(_LEVELS), out=rounded)
        np.rint(rounded, out=rounded)
        np.add(rounded, np.float32(ZERO), out=into[part], casting="unsafe")
        np.multiply(rounded, np.float32(step), out=rounded)
        length = max(length, longest_of(rounded))
        residual = max(residual, longest_of(np.subtract(own, rounded, out=own)))
    return step, residual + error, length * (1 + _RELATIVE), longest


@dataclass(frozen=True, slots=True)
class QuantisedCodes:
    """The codes of several contexts in bytes, as many of each: those with fewer repeat their last one."""

    bytes: NDArray[np.int8]  # (P, D) int8
    steps: NDArray[np.float64]  # value of one unit of the bytes, for each code, (P,) float64
    offsets: NDArray[np.float64]  # y . mu, (P,) float64
    lengths: NDArray[np.float64]  # |y|, (P,) float64
    residuals: NDArray[np.float64]  # |y - r|, (P,) float64

    @classmethod
    def of(cls, contexts: Sequence[NDArray[np.float32]], mean: NDArray[np.float64]) -> "QuantisedCodes":
        """Quantise the codes (M, D) float32 of each context."""
        most = max(map(len, contexts))
        codes = np.concatenate([own[np.minimum(np.arange(most), len(own) - 1)] for own in contexts])
        largest = np.abs(codes).max(axis=1)
        is_normal = largest >= _SMALLEST
        steps = np.where(is_normal, largest / np.float32(_LEVELS), np.float32(0))
        rounded = np.rint(codes / np.where(is_normal, largest, np.float32(np.inf))[:, None] * np.float32(_LEVELS))
        lengths, residuals = _lengths(codes), _lengths(codes - rounded * steps[:, None])
        return cls(
            rounded.astype(np.int8),
            steps.astype(np.float64),
            codes.astype(np.float64) @ mean,
            lengths,
            residuals + _RELATIVE * lengths + _SMALLEST,
        )


def _lengths(codes: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = codes.astype(np.float64)
    lengths: NDArray[np.float64] = np.sqrt(np.vecdot(wide, wide))
    return lengths


def upper_bounds(rows: QuantisedRows, codes: QuantisedCodes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return by which factor to multiply a product of bytes, and what to add to it, so that it is at least `s`.

    Returns both for each block and code, (blocks, P).
    """
    errors = np.outer(rows.residuals, codes.lengths) + np.outer(rows.lengths, codes.residuals)
    return np.outer(rows.steps, codes.steps), codes.offsets + errors
