"""The product of rows and codes in bytes: which rows reach a bound with which codes, in one fused operator of oneDNN.

The operator multiplies in int32, adds a bias, rounds to uint8 and clips below at 0. A result that is not zero is
therefore above the bound. Eight results of one row lie side by side in one 64-bit word, so a row survives if any of its
words is not zero. The products themselves are never read one by one, which would take longer than the product.

Rows are stored as uint8, ZERO more than their value: VNNI multiplies unsigned bytes by signed ones, and without AMX
oneDNN takes four thousand times as long for two signed ones. The operator takes ZERO times the sum of a code away
again. With VNNI it does so in int32. With AMX it rounds both numbers to float32 first, so long vectors get sums that
are a little off; `largest_error` says by how much.
"""

import math
from collections.abc import Callable
from functools import cache
from time import monotonic, thread_time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GROUP = 8  # codes that share a word
ZERO = 128  # the byte of a row that stands for 0
_LARGEST_ROW, _LARGEST_CODE = 255, 127  # bytes, as they are multiplied
_UNIT = 2.0**-24  # of rounding to float32, which holds every integer up to 1 / _UNIT
_LONGEST = 2**15  # D: int32 holds the sums, and the bounds of quantised_rows.py hold
_LEAST_CHOSEN = 256  # rows
_CHECKED_ROWS = 40
_TIMED_ROWS, _TIMED_CODES = 4096, 64
_TIMED_BYTES = 512 * 384  # of the rows, at most
_ROUNDS = 5
# Where oneDNN has a kernel for bytes, the product takes 0.3 to 3 times as long as in float32; where it has none,
# thousands of times.
_SLOW = 100.0  # far from both: on a very busy machine 10 times was seen
TIMED_AGAIN_SECONDS = 300.0  # after a product that was found to be slow
_timed_again_at: dict[int, float] = {}  # by components, on the monotonic clock; infinity: it is fast


class ByteProduct:
    """Multiplies rows by the same codes, again and again. codes: (P, D) int8; P a multiple of GROUP."""

    def __init__(self, codes: Tensor) -> None:
        self._packed: Tensor = torch.ops.onednn.qlinear_prepack(codes, None)
        self._ones = torch.ones(len(codes))
        self._zeros = torch.zeros(len(codes), dtype=torch.int64)

    def groups_above(self, rows: Tensor, bias: Tensor) -> NDArray[np.int64]:
        """Find the groups of codes of which any product plus bias is above a half.

        rows: (B, D) uint8. bias: (P,) float32; may be infinite. Returns `row * P / GROUP + group` of each group found,
        ascending.
        """
        words = self._linear(rows, bias, torch.uint8).view(torch.int64).numpy()
        return np.flatnonzero(words != 0)  # takes half the time of torch's for so few

    def rows_above(self, rows: Tensor, chosen: Tensor, bias: Tensor) -> Tensor:
        """Find those of the chosen rows, (n,), of which any product plus bias is above a half.

        Row 0 pads them to a power of two, since oneDNN compiles its kernel anew for another number of rows.
        """
        padded = torch.zeros(max(_LEAST_CHOSEN, 1 << (len(chosen) - 1).bit_length()), dtype=torch.int64)
        padded[: len(chosen)] = chosen
        found = self.groups_above(rows.index_select(0, padded), bias) // (len(self._ones) // GROUP)
        is_above = torch.zeros(len(padded), dtype=torch.bool)
        is_above[torch.from_numpy(found)] = True
        return chosen[is_above[: len(chosen)]]

    def products(self, rows: Tensor) -> Tensor:
        """Return all products of rows (B, D) uint8, (B, P) float32."""
        return self._linear(rows, None, torch.float32)

    def _linear(self, rows: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        packed, ones, zeros = self._packed, self._ones, self._zeros
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows, 1.0, ZERO, packed, ones, zeros, bias, 1.0, 0, dtype, "none", [], "none"
        )
        return product


def largest_error(dim: int) -> float:
    """Bound how far a product plus a bias can be from the exact sum, for vectors of `dim` components.

    Four numbers may be rounded to float32, each by at most `2**-24` of itself: the sum of unsigned bytes, at most
    `255 * 127 D`; what is taken away, at most `128 * 127 D`; their difference, at most `127 * 127 D`; and the bias
    where it is added to what is taken away. Rounding the bias itself and the last sum comes on top: twice `2**-24` of
    the bias.
    """
    return (_LARGEST_ROW + ZERO + _LARGEST_CODE + ZERO) * _LARGEST_CODE * dim * _UNIT


def multiplies_bytes() -> bool:
    """Whether the processor multiplies bytes fast: it has VNNI, as every processor with AMX has."""
    supported: Any = getattr(torch.cpu, "_is_vnni_supported", bool)
    return bool(supported())


@cache
def refusal(dim: int) -> str | None:
    """Say why the product of bytes is not to be used for vectors of `dim` components; None: it is right.

    Instructions older than VNNI add pairs of products in 16 bits, which may overflow. The operator is not part of
    torch's public interface, so this checks its sums at the ends of the range.
    """
    if not multiplies_bytes():
        return "the processor has no instructions that multiply bytes fast (VNNI, AMX)"
    if dim > _LONGEST:
        return f"vectors of more than {_LONGEST} components are too long for sums of bytes"
    try:
        if not _is_right(dim):
            return f"torch's product of bytes is wrong for vectors of {dim} components"
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return f"this build of torch has no product of bytes: {error}"
    return None


def is_slow(dim: int) -> bool:
    """Whether the product, which is right, was found to have no fast kernel for vectors of `dim` components.

    A product that was found to be slow is timed again after TIMED_AGAIN_SECONDS; one that is fast stays so.
    """
    if monotonic() >= _timed_again_at.get(dim, -math.inf):
        _timed_again_at[dim] = math.inf if _is_fast(dim) else monotonic() + TIMED_AGAIN_SECONDS
    return _timed_again_at[dim] < math.inf


def _is_right(dim: int) -> bool:
    """Compare with exact sums: random ones, the largest there are, and some next to those, which are harder to round.

    Products must be exact while float32 holds all their sums: up to D = 518.
    """
    generator = torch.Generator().manual_seed(0)
    rows, codes = (torch.randint(-127, 128, (n, dim), generator=generator) for n in (_CHECKED_ROWS, 2 * GROUP))
    rows[0], rows[1], rows[2:4, ::2] = 127, -127, 127
    codes[0], codes[1], codes[2:6] = 127, -127, 127
    codes[3, 0], codes[4, :2], codes[5, :3] = 126, 126, 126
    exact = rows @ codes.T  # (40, 16)
    product, stored = ByteProduct(codes.to(torch.int8)), (rows + ZERO).to(torch.uint8)
    holds_all = _LARGEST_ROW * _LARGEST_CODE * dim * _UNIT < 1
    off = (product.products(stored).double() - exact).abs().max()
    return float(off) <= (0.0 if holds_all else largest_error(dim)) and _finds(product, stored, exact)


def _finds(product: ByteProduct, rows: Tensor, exact: Tensor) -> bool:
    """Whether the groups above a bound are found, and besides only those that rounding can put there."""
    bias = (0.5 - exact[7]).float()
    bias[3], bias[4] = torch.inf, -torch.inf
    rounding = largest_error(rows.shape[1]) + 2 * _UNIT * bias.double().abs().nan_to_num(0, 0)
    above = np.zeros(exact.numel() // GROUP, bool)
    above[product.groups_above(rows, bias)] = True
    must, may = (
        (exact + bias.double() + slack > 0.5).view(-1, GROUP).any(dim=1).numpy() for slack in (-rounding, rounding)
    )
    return bool((above >= must).all() and (above <= may).all())


def _is_fast(dim: int) -> bool:
    """Whether any turn of several takes at most _SLOW times as long as a product in float32, in this thread's time."""
    rows, codes = min(_TIMED_ROWS, max(1, _TIMED_BYTES // dim)), _TIMED_CODES
    wide, stored = torch.ones(rows, dim), torch.ones(rows, dim, dtype=torch.uint8)
    product, wide_codes = ByteProduct(torch.ones(codes, dim, dtype=torch.int8)), torch.ones(dim, codes)
    usual = min(_seconds(lambda: wide @ wide_codes) for _ in range(_ROUNDS))
    return any(_seconds(lambda: product.products(stored)) <= _SLOW * usual for _ in range(_ROUNDS))


def _seconds(work: Callable[[], Tensor]) -> float:
    began = thread_time()  # other work on the machine does not count
    work()
    return thread_time() - began
