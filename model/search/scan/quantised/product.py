"""The product of rows and codes in bytes: which rows reach a bound with which codes, in one fused operator of oneDNN.

The operator multiplies in int32, exactly, adds a bias, rounds to uint8 and clips below at 0. A result that is not zero
is therefore above the bound. Eight results of one row lie side by side in one 64-bit word, so a row survives if any of
its words is not zero. The products themselves are never read one by one, which would take longer than the product.

Rows are stored as uint8, ZERO more than their value: VNNI multiplies unsigned bytes by signed ones, and without AMX
oneDNN takes four thousand times as long for two signed ones.
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

    def products(self, rows: Tensor) -> Tensor:
        """Return all products of rows (B, D) uint8, (B, P) float32."""
        return self._linear(rows, None, torch.float32)

    def _linear(self, rows: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        packed, ones, zeros = self._packed, self._ones, self._zeros
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows, 1.0, ZERO, packed, ones, zeros, bias, 1.0, 0, dtype, "none", [], "none"
        )
        return product


@cache
def is_available() -> bool:
    """Whether this machine multiplies bytes fast and correctly with this build of torch.

    Instructions older than VNNI add pairs of products in 16 bits, which may overflow. The operator is not part of
    torch's public interface, so this checks its sums at the ends of the range, and its speed.
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
    codes[2, 0] = 126  # with row 0: a sum that float32 holds, and would not hold with ZERO added to the row
    exact = rows @ codes.T  # (40, 16)
    bias = 0.5 - exact[7].float()
    bias[3], bias[4] = torch.inf, -torch.inf
    expected = (exact + bias.double() > 0.5).view(-1, GROUP).any(dim=1).numpy().nonzero()[0]
    product, stored = ByteProduct(codes.to(torch.int8)), (rows + ZERO).to(torch.uint8)
    above = product.groups_above(stored, bias)
    return np.array_equal(above, expected) and product.products(stored).equal(exact.float())


def _is_fast() -> bool:
    """Compare with a product in float32: where oneDNN has no kernel for bytes it takes thousands of times as long."""
    rows, codes, dim = _TIMED
    wide, stored = torch.ones(rows, dim), torch.ones(rows, dim, dtype=torch.uint8)
    product, wide_codes = ByteProduct(torch.ones(codes, dim, dtype=torch.int8)), torch.ones(dim, codes)
    return _seconds(lambda: product.products(stored)) < _seconds(lambda: wide @ wide_codes)


def _seconds(work: Callable[[], Tensor]) -> float:
    """Time some calls; returns the shortest."""
    least = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - began)
    return least
