"""Which rows of bytes have a product above a bound with which codes of bytes: one fused operator of oneDNN.

The product of rows and codes, exact in int32, plus a bias, is written as uint8, and whatever is not above zero
becomes zero. Eight codes of a context are then one 64-bit word, and a row lives where any of its words is not zero: the
products are never read again one by one, which would cost more than they do.

Rows come as uint8, ZERO more than what they stand for: VNNI multiplies unsigned bytes by signed ones, and without AMX
oneDNN computes with two signed ones four thousand times as slowly.
"""

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GROUP = 8  # codes that share a word
ZERO = 128  # the byte of a row that stands for 0
_CHECKED_DIM = 1000
_TIMED = (512, 64, 384)  # rows, codes, D
_ROUNDS = 5


class Screen:
    """Codes to screen rows with.

    Args:
        codes: (P, D) int8; P a multiple of GROUP.
    """

    def __init__(self, codes: Tensor) -> None:
        self._packed: Tensor = torch.ops.onednn.qlinear_prepack(codes, None)
        self._ones = torch.ones(len(codes))
        self._zeros = torch.zeros(len(codes), dtype=torch.int64)

    def above(self, rows: Tensor, bias: Tensor) -> NDArray[np.int64]:
        """Find groups of codes with a product plus bias above a half.

        Args:
            rows: (B, D) uint8.
            bias: (P,) float32; may be infinite.

        Returns:
            `row * P / GROUP + group` of each, ascending.
        """
        words = self._linear(rows, bias, torch.uint8).view(torch.int64).numpy()
        return np.flatnonzero(words != 0)  # in half the time that torch takes for as few as they are

    def products(self, rows: Tensor) -> Tensor:
        """All products of rows (B, D) uint8, (B, P) float32."""
        return self._linear(rows, None, torch.float32)

    def _linear(self, rows: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        packed, ones, zeros = self._packed, self._ones, self._zeros
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows, 1.0, ZERO, packed, ones, zeros, bias, 1.0, 0, dtype, "none", [], "none"
        )
        return product


@cache
def is_available() -> bool:
    """Whether this machine multiplies bytes fast, and this build of torch does it as it should.

    Older instructions than VNNI add pairs of products in 16 bits, which may overflow; and the operator is not a public
    one, so its sums at the ends of the range are looked at, and how long it takes, before it is relied upon.
    """
    supported: Any = getattr(torch.cpu, "_is_vnni_supported", bool)
    if not supported():
        return False
    try:
        return _is_right() and _is_fast()
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


def _is_right() -> bool:
    generator = torch.Generator().manual_seed(0)
    rows, codes = (torch.randint(-127, 128, (n, _CHECKED_DIM), generator=generator) for n in (40, 2 * GROUP))
    rows[0], codes[0], codes[1], codes[2] = 127, 127, -127, 127
    codes[2, 0] = 126  # with row 0 a sum that float32 holds, and would not with ZERO added to the row
    exact = rows @ codes.T  # (40, 16)
    bias = 0.5 - exact[7].float()
    bias[3], bias[4] = torch.inf, -torch.inf
    expected = (exact + bias.double() > 0.5).view(-1, GROUP).any(dim=1).numpy().nonzero()[0]
    screen, stored = Screen(codes.to(torch.int8)), (rows + ZERO).to(torch.uint8)
    return np.array_equal(screen.above(stored, bias), expected) and screen.products(stored).equal(exact.float())


def _is_fast() -> bool:
    """Beside a product in float32: where oneDNN has no kernel for bytes it takes thousands of times as long."""
    rows, codes, dim = _TIMED
    wide, stored = torch.ones(rows, dim), torch.ones(rows, dim, dtype=torch.uint8)
    screen, wide_codes = Screen(torch.ones(codes, dim, dtype=torch.int8)), torch.ones(dim, codes)
    return _seconds(lambda: screen.products(stored)) < _seconds(lambda: wide @ wide_codes)


def _seconds(work: Callable[[], Tensor]) -> float:
    """The least of some rounds."""
    least = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - began)
    return least
