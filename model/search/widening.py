"""Stored rows in float32, exactly.

NumPy converts float16 one number after another on x86, which takes twenty times as long as torch's instructions for it.
This takes four passes of whole numbers, which NumPy vectorises. A float16 is a sign, 5 bits of exponent and 10 bits of
fraction. With the sign in front and the other 15 bits where float32 has them, it is `2**-112` of its value: exponents
are counted from 15 in float16, and from 127 in float32. That holds for numbers too small to be normal as well.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHIFT = np.int32(23 - 10)  # bits of fraction
_VALUE_BITS = np.int32(~0x70000000)  # the shift leaves copies of the sign in front of the exponent
_UNIT = np.float32(2.0 ** (127 - 15))
_INFINITE = 0x7C00  # float16's bits of it; NaN are above, and a sign adds 0x8000


def widened(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Return rows (n, D), float16 or float32, in float32: themselves if they are."""
    if rows.dtype == np.float32:
        return rows
    largest, lowest = rows.view(np.int16).max(initial=0), rows.view(np.uint16).max(initial=0)
    if largest >= _INFINITE or lowest >= 0x8000 + _INFINITE:
        return rows.astype(np.float32)
    into = np.empty(rows.shape, np.float32)
    widen(rows, into)
    return into


def widen(rows: NDArray[Any], into: NDArray[np.float32]) -> None:
    """Write rows (n, D), float16 or float32, in float32. What is infinite or NaN in float16 is `2**16` or more then."""
    if rows.dtype != np.float16:
        np.copyto(into, rows)
        return
    bits = into.view(np.int32)
    np.copyto(bits, rows.view(np.int16))
    np.left_shift(bits, _SHIFT, out=bits)
    np.bitwise_and(bits, _VALUE_BITS, out=bits)
    np.multiply(into, _UNIT, out=into)
