"""Rows and codes in bytes, and an upper bound of their exact products.

Write a row as `c = mu + c'`, with the mean `mu` of the pool, and a code as `y`. Then `s = y . c = y . mu + y . c'`.
Let `q` be the bytes of c' times the step of their block, and `r` the bytes of y times their own step. By the inequality
of Cauchy and Schwarz

    |y . c' - r . q|  <=  |y| |c' - q| + |y - r| |q|.

Rows of encoders that were not trained to spread their outputs have much in common. Subtracting the mean removes that,
and with it most of the error.

A query may add numbers to the scores. The larger the number added to a row, the less its largest `s` must reach. The
rows of a block must all reach the same, what the largest number among them leaves. So rows with large numbers would
make many others survive. They are looked at first, in tiers of falling numbers, and the blocks then hold only rows
below the cut (`Cut`). A lower cut leaves more rows to the tiers, a higher one lets more rows of the blocks survive. A
sample shows where both together take the least time.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.model.representations import Additions
from polyrank.model.search.scan.product import GROUP, ZERO, largest_error
from polyrank.model.search.topk import longest_of
from polyrank.model.search.widening import widen
from polyrank.model.threads import count

BLOCK_ROWS = 16_384
_PART_ROWS = 1024
_LEVELS = 127
_MEAN_ROWS = 4096
_SAMPLE_ROWS = 2048
# What rounding in float32 adds to a residual: relative to the row's length, and for numbers too small to be normal.
_RELATIVE = 1e-6
_SMALLEST = 1e-30
_HUGE = 1e100  # instead of infinity: inf - inf is no number


@dataclass(frozen=True, slots=True)
class QuantisedRows:
    """A pool in bytes."""

    bytes: NDArray[np.uint8]  # (N, D) uint8, each ZERO more than its value
    mean: NDArray[np.float64]  # mu, (D,) float64
    steps: NDArray[np.float64]  # value of one unit of the bytes, for each block of BLOCK_ROWS rows, (blocks,) float64
    # Of each block, (blocks, 4) float64: minus 1, the relative error of `biases` and of rounding what it returns, the
    # largest |c' - q| and the largest |q|; all in units of the block's step.
    factors: NDArray[np.float64]
    longest: float  # the largest |c| of all rows
    sample: NDArray[np.int64]  # some rows from all over the pool, (S,) int64
    sample_bytes: NDArray[np.uint8]  # the bytes of the sample, (S, D)

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
        factors = np.stack([np.full_like(steps, -1.0), np.full_like(steps, _RELATIVE), residuals, lengths], axis=1)
        sample = np.arange(0, len(stored), max(1, len(stored) // _SAMPLE_ROWS))
        return cls(
            rounded,
            mean.astype(np.float64),
            steps,
            factors / _divisors(steps)[:, None],
            float(longest.max()),
            sample,
            rounded[sample],
        )


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
    """The codes of several contexts in bytes; each context is padded to a multiple of GROUP codes."""

    bytes: NDArray[np.int8]  # (P, D) int8
    steps: NDArray[np.float64]  # value of one unit of the bytes, for each code, (P,) float64
    # y . mu, (P,) float64; -inf for padding.
    offsets: NDArray[np.float64]
    errors: NDArray[np.float64]  # |y| and |y - r| in units of the steps, (2, P) float64
    owners: NDArray[np.int64]  # the context of each code, (P,) int64

    @classmethod
    def of(cls, contexts: Sequence[NDArray[np.float32]], mean: NDArray[np.float64]) -> "QuantisedCodes":
        """Quantise the codes (M, D) float32 of each context."""
        counts = [-(-len(codes) // GROUP) * GROUP for codes in contexts]
        codes = np.zeros((sum(counts), len(mean)), np.float32)
        absent = np.ones(len(codes), bool)
        start = 0
        for own, most in zip(contexts, counts, strict=True):
            codes[start : start + len(own)] = own
            absent[start : start + len(own)] = False
            start += most
        largest = np.abs(codes).max(axis=1)
        is_normal = largest >= _SMALLEST
        steps = np.where(is_normal, largest / np.float32(_LEVELS), np.float32(0))
        rounded = np.rint(codes / np.where(is_normal, largest, np.float32(np.inf))[:, None] * np.float32(_LEVELS))
        lengths, residuals = _lengths(codes), _lengths(codes - rounded * steps[:, None])
        offsets = codes.astype(np.float64) @ mean
        offsets[absent] = -np.inf
        steps = steps.astype(np.float64)
        return cls(
            rounded.astype(np.int8),
            steps,
            offsets,
            np.stack([lengths, residuals + _RELATIVE * lengths + _SMALLEST]) / _divisors(steps),
            np.repeat(np.arange(len(contexts)), counts),
        )


def _lengths(codes: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = codes.astype(np.float64)
    lengths: NDArray[np.float64] = np.sqrt(np.vecdot(wide, wide))
    return lengths


def biases(
    rows: QuantisedRows, codes: QuantisedCodes, bars: NDArray[np.float64], blocks: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Compute what to add to products of bytes so that they exceed a half wherever `s` may reach its context's bar.

    The sum of an exact product and its bias is at least 1 there, and `largest_error` more. Rounding may take that much
    away, and twice `2**-24` of the bias. `_RELATIVE` covers it for the part of the bias that the bar makes. The
    residuals make at most 127 D of it, so for them less than a half is left to take away up to D = 2**15.

    bars: what the largest `s` of a row must reach, for each context, (C,) float64; -inf: every row reaches it; inf:
    none does. blocks: numbers of the blocks, (n,). Returns a bias for each block and code, (n, P) float32.
    """
    missing = np.clip(bars[codes.owners] - codes.offsets, -_HUGE, _HUGE) / _divisors(codes.steps)
    of_codes = np.concatenate([missing[None], np.abs(missing)[None], codes.errors])  # (4, P)
    slack = 1.0 + largest_error(codes.bytes.shape[1])
    with np.errstate(over="ignore"):
        found: NDArray[np.float32] = (rows.factors[blocks] @ of_codes + slack).astype(np.float32)
    return found


def _divisors(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return steps to divide by. A step of 0 means that all bytes are 0: any divisor is right then."""
    return np.where(steps > 0, steps, 1.0)


_FIRST = 256  # rows in the first tier
_GROWTH = 8  # of the rows above a cut, from one tier to the next
_LOWEST = 1 / 8  # share of the rows that may lie above the cut
# Times in which so many survivors are scored: of a look at a row of a tier, and of a tier however few rows it has.
_LOOK = 1 / 4
_TIER = 300


class Cut:
    """Divides the rows of a pool by the numbers added to them.

    `height`: the largest number of the rows that are left.
    """

    def __init__(self, additions: Additions, allowed: NDArray[np.bool_] | None) -> None:
        """Begin above all rows; those not allowed, (N,), belong to no tier."""
        self._values, self._late_weight = additions.values, additions.late_weight
        self._allowed = allowed
        self.height = float(self._values.max())

    def least(self, bar: float) -> float:
        """Return what the largest `s` of a row that is left must reach for its score to reach the bar."""
        return (bar - self.height) / self._late_weight

    def leaves(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say which of some rows (n,) are left, (n,)."""
        left: NDArray[np.bool_] = self._values[rows] <= self.height
        return left

    def tiers(
        self, sample: NDArray[np.int64], largest: NDArray[np.float32], bar: Callable[[], float]
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of each tier, (n,), ascending; the cut is lowered below a tier when the next one is asked for.

        sample: some rows, (S,). largest: the largest `s` of each, approximately, (S,). bar: returns what a score must
        reach, which may be more after each tier.
        """
        if self._allowed is not None:
            sample, largest = sample[self._allowed[sample]], largest[self._allowed[sample]]
        values = self._values[sample]
        share = len(values) / len(self._values)
        cuts = np.sort(values)[::-1][_ranks(len(values), share)]
        for at, cut in enumerate(cuts):
            left = values <= self.height
            times = _times(np.r_[self.height, cuts[at:]], values[left], largest[left], bar(), self._late_weight)
            if times[0] <= times[1:].min() + _TIER * share:
                return
            tier = (self._values > cut) & (self._values <= self.height)
            yield np.flatnonzero(tier if self._allowed is None else tier & self._allowed)
            self.height = float(cut)


def _ranks(sampled: int, share: float) -> list[int]:
    """Return the places in the falling order of a sample, a share of the pool, at which it may be cut."""
    lowest = int(_LOWEST * sampled)
    ranks, rank = [], max(1, int(_FIRST * share))
    while rank < lowest:
        ranks.append(rank)
        rank *= _GROWTH
    return [*ranks, lowest] if lowest else []


def _times(
    cuts: NDArray[np.float64],
    values: NDArray[np.float32],
    largest: NDArray[np.float32],
    bar: float,
    late_weight: float,
) -> NDArray[np.float64]:
    """Estimate what each of the cuts (C,) takes for a sample with numbers added and largest `s`, both (n,)."""
    survives = largest >= ((bar - cuts) / late_weight)[:, None]
    times: NDArray[np.float64] = np.where(values > cuts[:, None], _LOOK, survives).sum(axis=1)
    return times
