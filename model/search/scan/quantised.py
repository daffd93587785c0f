"""Rows and codes in bytes, with what is needed to bound the error of their products.

A row is `c = mu + c'`, a code `y`, and `s = y . c = y . mu + y . c'`. With `q` the bytes of c' times the step of its
block and `r` those of y times its own step, by Cauchy and Schwarz

    |y . c' - r . q|  <=  |y| |c' - q| + |y - r| |q|.

Where encoders were not trained to spread their outputs these have much in common: the mean `mu` takes it out, and with
it most of the error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.model.search.scan.screen import GROUP, ZERO

BLOCK_ROWS = 4096
_LEVELS = 127
_MEAN_ROWS = 4096
_SAMPLE_ROWS = 2048
# What float32 adds to a residual: relative to the row's length, and where numbers are too small to be normal.
_RELATIVE = 1e-6
_SMALLEST = 1e-30
_HUGE = 1e100  # stands for infinity: sums of infinities are no numbers


@dataclass(frozen=True, slots=True)
class QuantisedRows:
    """A pool in bytes.

    Attributes:
        bytes: (N, D) uint8, each ZERO more than what it stands for.
        mean: mu, (D,) float64.
        steps: of each block of BLOCK_ROWS rows, (blocks,) float64; so are the next two.
        residuals: the largest |c' - q|.
        lengths: the largest |q|.
        longest: the largest |c| of all rows.
        sample: some rows from all over the pool, (S,) int64.
        sample_bytes: theirs, (S, D).
    """

    bytes: Tensor
    mean: Tensor
    steps: Tensor
    residuals: Tensor
    lengths: Tensor
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
            _quantise(block.float(), mean, into)
            for block, into in zip(torch.split(stored, BLOCK_ROWS), torch.split(rounded, BLOCK_ROWS), strict=True)
        ]
        steps, residuals, lengths, longest = torch.tensor(blocks, dtype=torch.float64).T.contiguous()
        sample = torch.arange(0, len(stored), max(1, len(stored) // _SAMPLE_ROWS))
        return cls(
            rounded,
            mean.double(),
            steps,
            residuals,
            lengths,
            float(longest.max()),
            sample,
            rounded[sample].contiguous(),
        )


def _quantise(rows: Tensor, mean: Tensor, into: Tensor) -> tuple[float, float, float, float]:
    """Write the bytes of a block; returns its step, the largest residual and length of bytes, and of the rows."""
    longest = _longest(rows)
    centred = rows - mean
    largest = float(centred.abs().max())
    error = _RELATIVE * _longest(centred) + _SMALLEST
    if not _SMALLEST <= largest < math.inf:
        into.fill_(ZERO)
        return 0.0, min(error + _longest(centred), _HUGE), 0.0, longest
    rounded = (centred / largest).mul_(_LEVELS).round_()
    into.copy_(rounded + ZERO)
    step = largest / _LEVELS
    approximate = rounded.mul_(step)
    length = _longest(approximate)
    return step, _longest(centred.sub_(approximate)) + error, length * (1 + _RELATIVE), longest


def _longest(rows: Tensor) -> float:
    """Length of the longest row; float64, in which no square overflows."""
    return float(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).max())


@dataclass(frozen=True, slots=True)
class QuantisedCodes:
    """The codes of several contexts in bytes, those of each filled up to a multiple of GROUP.

    Attributes:
        bytes: (P, D) int8.
        steps: of each code, (P,) float64; so are the next three.
        offsets: y . mu; -inf where no code is.
        residuals: |y - r|.
        lengths: |y|.
        owners: whose each code is, (P,) int64.
    """

    bytes: Tensor
    steps: Tensor
    offsets: Tensor
    residuals: Tensor
    lengths: Tensor
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
        return cls(
            rounded.to(torch.int8),
            steps.double(),
            torch.mv(codes.double(), mean).masked_fill_(absent, -torch.inf),
            residuals + _RELATIVE * lengths + _SMALLEST,
            lengths,
            torch.arange(len(contexts)).repeat_interleave(torch.tensor(counts)),
        )


def biases(rows: QuantisedRows, codes: QuantisedCodes, least: Tensor, blocks: Tensor) -> Tensor:
    """What to add to products of bytes so that they are above a half wherever `s` may be as much as asked for.

    Args:
        rows: the pool.
        codes: of all contexts.
        least: what a row's largest `s` must reach, of each context, (C,) float64; -inf: all do; inf: none does.
        blocks: which ones of the pool, (n,).

    Returns:
        (n, P) float32.
    """
    missing = (least[codes.owners] - codes.offsets).clamp(-_HUGE, _HUGE)
    # A step of 0 stands for bytes of 0: then any unit is right.
    of_codes = torch.stack([-missing, missing.abs(), codes.lengths, codes.residuals])  # (4, P)
    of_codes /= torch.where(codes.steps > 0, codes.steps, 1.0)
    steps = rows.steps[blocks]
    rounding = torch.full_like(steps, _RELATIVE)  # of these lines, and of sums above 2^24 to float32
    of_blocks = torch.stack([torch.ones_like(steps), rounding, rows.residuals[blocks], rows.lengths[blocks]], dim=1)
    of_blocks /= torch.where(steps > 0, steps, 1.0)[:, None]
    return (of_blocks @ of_codes).add_(1.0).float()
