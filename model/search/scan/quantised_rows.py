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
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.model.representations import Additions
from polyrank.model.search.scan.product import GROUP, ZERO, largest_error

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
    """A pool in bytes.

    Attributes:
        bytes: (N, D) uint8, each ZERO more than its value.
        mean: mu, (D,) float64.
        steps: value of one unit of the bytes, for each block of BLOCK_ROWS rows, (blocks,) float64.
        factors: of each block, (blocks, 4) float64: minus 1, the relative error of `biases` and of rounding what it
            returns, the largest |c' - q| and the largest |q|; all in units of the block's step.
        longest: the largest |c| of all rows.
        sample: some rows from all over the pool, (S,) int64.
        sample_bytes: the bytes of the sample, (S, D).
    """

    bytes: Tensor
    mean: Tensor
    steps: Tensor
    factors: Tensor
    longest: float
    sample: Tensor
    sample_bytes: Tensor

    @classmethod
    def of(cls, matrix: NDArray[Any]) -> "QuantisedRows":
        """Quantise a matrix (N, D), float16 or float32; N is at least 1."""
        stored = torch.from_numpy(matrix)
        mean = stored[:: max(1, len(stored) // _MEAN_ROWS)].double().mean(dim=0).float()
        rounded = torch.empty(stored.shape, dtype=torch.uint8)
        blocks = [
            _quantise(block, mean, into)
            for block, into in zip(torch.split(stored, BLOCK_ROWS), torch.split(rounded, BLOCK_ROWS), strict=True)
        ]
        steps, residuals, lengths, longest = torch.tensor(blocks, dtype=torch.float64).T.contiguous()
        factors = torch.stack([torch.full_like(steps, -1.0), torch.full_like(steps, _RELATIVE), residuals, lengths], 1)
        sample = torch.arange(0, len(stored), max(1, len(stored) // _SAMPLE_ROWS))
        return cls(
            rounded,
            mean.double(),
            steps,
            factors / _divisors(steps)[:, None],
            float(longest.max()),
            sample,
            rounded[sample].contiguous(),
        )


def _quantise(rows: Tensor, mean: Tensor, into: Tensor) -> tuple[float, float, float, float]:
    """Write the bytes of a block; returns its step, largest residual, largest |q| and largest |c|.

    The block is read twice, in parts that stay in cache: for the largest component, and for the bytes.
    """
    parts = list(zip(torch.split(rows, _PART_ROWS), torch.split(into, _PART_ROWS), strict=True))
    longest = longest_centred = largest = 0.0
    for part, _ in parts:
        wide = part.float()
        longest = max(longest, _longest(wide))
        centred = wide - mean
        longest_centred = max(longest_centred, _longest(centred))
        largest = max(largest, float(centred.abs().max()))
    error = _RELATIVE * longest_centred + _SMALLEST
    if not _SMALLEST <= largest < math.inf:
        into.fill_(ZERO)
        return 0.0, min(error + longest_centred, _HUGE), 0.0, longest
    step, residual, length = largest / _LEVELS, 0.0, 0.0
    for part, into_part in parts:
        centred = part.float() - mean
        rounded = (centred / largest).mul_(_LEVELS).round_()
        into_part.copy_(rounded + ZERO)
        approximate = rounded.mul_(step)
        length = max(length, _longest(approximate))
        residual = max(residual, _longest(centred.sub_(approximate)))
    return step, residual + error, length * (1 + _RELATIVE), longest


def _longest(rows: Tensor) -> float:
    """Length of the longest row, computed in float64, where no square overflows."""
    return float(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).max())


@dataclass(frozen=True, slots=True)
class QuantisedCodes:
    """The codes of several contexts in bytes; each context is padded to a multiple of GROUP codes.

    Attributes:
        bytes: (P, D) int8.
        steps: value of one unit of the bytes, for each code, (P,) float64.
        offsets: y . mu, (P,) float64; -inf for padding.
        errors: |y| and |y - r| in units of the steps, (2, P) float64.
        owners: the context of each code, (P,) int64.
    """

    bytes: Tensor
    steps: Tensor
    offsets: Tensor
    errors: Tensor
    owners: Tensor

    @classmethod
    def of(cls, contexts: Sequence[Tensor], mean: Tensor) -> "QuantisedCodes":
        """Quantise the codes (M, D) float32 of each context."""
        counts = [-(-len(codes) // GROUP) * GROUP for codes in contexts]
        codes = torch.zeros(sum(counts), len(mean))
        absent = torch.ones(len(codes), dtype=torch.bool)
        start = 0
        for own, count in zip(contexts, counts, strict=True):
            codes[start : start + len(own)] = own
            absent[start : start + len(own)] = False
            start += count
        largest = codes.abs().amax(dim=1)
        is_normal = largest >= _SMALLEST
        steps = torch.where(is_normal, largest / _LEVELS, 0.0)
        rounded = (codes / torch.where(is_normal, largest, torch.inf)[:, None]).mul_(_LEVELS).round_()
        lengths = torch.linalg.vector_norm(codes, dim=1, dtype=torch.float64)
        residuals = torch.linalg.vector_norm(codes - rounded * steps[:, None], dim=1, dtype=torch.float64)
        steps = steps.double()
        return cls(
            rounded.to(torch.int8),
            steps,
            torch.mv(codes.double(), mean).masked_fill_(absent, -torch.inf),
            torch.stack([lengths, residuals + _RELATIVE * lengths + _SMALLEST]) / _divisors(steps),
            torch.arange(len(contexts)).repeat_interleave(torch.tensor(counts)),
        )


def biases(rows: QuantisedRows, codes: QuantisedCodes, bars: Tensor, blocks: Tensor) -> Tensor:
    """Compute what to add to products of bytes so that they exceed a half wherever `s` may reach its context's bar.

    The sum of an exact product and its bias is at least 1 there, and `largest_error` more. Rounding may take that much
    away, and twice `2**-24` of the bias. `_RELATIVE` covers it for the part of the bias that the bar makes. The
    residuals make at most 127 D of it, so for them less than a half is left to take away up to D = 2**15.

    bars: what the largest `s` of a row must reach, for each context, (C,) float64; -inf: every row reaches it; inf:
    none does. blocks: numbers of the blocks, (n,). Returns a bias for each block and code, (n, P) float32.
    """
    missing = (bars[codes.owners] - codes.offsets).clamp_(-_HUGE, _HUGE).div_(_divisors(codes.steps))
    of_codes = torch.cat([missing[None], missing.abs()[None], codes.errors])  # (4, P)
    slack = 1.0 + largest_error(codes.bytes.shape[1])
    return (rows.factors[blocks] @ of_codes).add_(slack).float()


def _divisors(steps: Tensor) -> Tensor:
    """Return steps to divide by. A step of 0 means that all bytes are 0: any divisor is right then."""
    return torch.where(steps > 0, steps, 1.0)


_FIRST = 256  # rows in the first tier
_GROWTH = 8  # of the rows above a cut, from one tier to the next
_LOWEST = 1 / 8  # share of the rows that may lie above the cut
# Times in which so many survivors are scored: of a look at a row of a tier, and of a tier however few rows it has.
_LOOK = 1 / 4
_TIER = 300


class Cut:
    """Divides the rows of a pool by the numbers added to them.

    Attributes:
        height: the largest number of the rows that are left.
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
