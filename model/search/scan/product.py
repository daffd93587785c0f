"""The product of rows and codes in bytes: which rows reach a bound with which codes.

Products are made in int32; a bias is added, and the sum is rounded to uint8 and clipped below at 0. A result that is
not zero is therefore above the bound. Eight results of one row lie side by side in one 64-bit word, so a row survives
if any of its words is not zero. The products themselves are never read one by one, which would take longer than the
product.

NumPy has no fast product of bytes; two libraries bring oneDNN. torch multiplies where it is imported already: it adds
the bias within the product, OpenVINO after it, and takes 1.04 to 1.22 times as long (docs/measurements/scan.md).
Where torch is not imported, OpenVINO multiplies if it is installed. Neither is imported before a pool is prepared that
is held in bytes.

Rows are stored as uint8, ZERO more than their value: VNNI multiplies unsigned bytes by signed ones, and without AMX
oneDNN takes four thousand times as long for two signed ones. ZERO times the sum of a code is taken away again: from the
bias, or from the product. These are numbers in float32, so long vectors get sums that are a little off;
`largest_error` says by how much.
"""

import importlib.util
import math
import sys
from collections.abc import Callable
from functools import cache
from time import monotonic, thread_time
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.model import processor
from polyrank.model.search.scan.openvino_bytes import OpenVinoProduct
from polyrank.model.search.scan.torch_bytes import TorchProduct

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


class Multiplier(Protocol):
    """The product of rows and the same codes, as a library computes it."""

    def clipped(self, rows: NDArray[np.uint8], bias: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Multiply rows (B, D), add a bias (P,), round and clip; (B, P), until this thread multiplies again."""

    def products(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Multiply rows (B, D); (B, P), until this thread multiplies again."""


class Library(NamedTuple):
    """What multiplies bytes: its name, and what makes a product with codes (P, D) int8."""

    name: str
    multiplier: Callable[[NDArray[np.int8]], Multiplier]


@cache
def multiplying_library() -> Library:
    """Return what multiplies bytes in this process, from the first call on; imports nothing."""
    if "torch" not in sys.modules and importlib.util.find_spec("openvino") is not None:
        return Library("OpenVINO", OpenVinoProduct)
    return Library("torch", TorchProduct)


class ByteProduct:
    """Multiplies rows by the same codes, again and again. codes: (P, D) int8; P a multiple of GROUP."""

    def __init__(self, codes: NDArray[np.int8]) -> None:
        self._multiplier = multiplying_library().multiplier(codes)
        self._taken = ZERO * codes.sum(axis=1, dtype=np.float64)  # whole numbers

    def groups_above(self, rows: NDArray[np.uint8], bias: NDArray[np.float32]) -> NDArray[np.int64]:
        """Find the groups of codes of which any product plus bias is above a half.

        rows: (B, D). bias: (P,); may be infinite. Returns `row * P / GROUP + group` of each group found, ascending.
        """
        words = self._multiplier.clipped(rows, (bias - self._taken).astype(np.float32)).view(np.int64)
        return np.flatnonzero(words != 0)

    def rows_above(
        self, rows: NDArray[np.uint8], chosen: NDArray[np.int64], bias: NDArray[np.float32]
    ) -> NDArray[np.int64]:
        """Find those of the chosen rows, (n,), of which any product plus bias is above a half.

        Row 0 pads them to a power of two, since oneDNN compiles its kernel anew for another number of rows.
        """
        padded = np.zeros(max(_LEAST_CHOSEN, 1 << (len(chosen) - 1).bit_length()), np.int64)
        padded[: len(chosen)] = chosen
        found = self.groups_above(rows[padded], bias) // (len(self._taken) // GROUP)
        is_above = np.zeros(len(padded), bool)
        is_above[found] = True
        return chosen[is_above[: len(chosen)]]

    def products(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return all products of rows (B, D), (B, P)."""
        products: NDArray[np.float32] = self._multiplier.products(rows) - self._taken.astype(np.float32)
        return products


def largest_error(dim: int) -> float:
    """Bound how far a product plus a bias can be from the exact sum, for vectors of `dim` components.

    Three numbers may be rounded to float32, each by at most `2**-24` of itself: the sum of unsigned bytes, at most
    `255 * 127 D`; what is taken away, at most `128 * 127 D`; and their difference, at most `127 * 127 D`. Rounding the
    bias itself and the last sum comes on top: twice `2**-24` of the bias.
    """
    return (_LARGEST_ROW + ZERO + _LARGEST_CODE) * _LARGEST_CODE * dim * _UNIT


def multiplies_bytes() -> bool:
    """Whether the processor multiplies bytes fast: it has VNNI, as every processor with AMX has."""
    return processor.has("avx512_vnni")


@cache
def refusal(dim: int) -> str | None:
    """Say why the product of bytes is not to be used for vectors of `dim` components; None: it is right.

    Instructions older than VNNI add pairs of products in 16 bits, which may overflow. So this checks sums at the ends
    of the range.
    """
    if not multiplies_bytes():
        return "the processor has no instructions that multiply bytes fast (VNNI, AMX)"
    if dim > _LONGEST:
        return f"vectors of more than {_LONGEST} components are too long for sums of bytes"
    name = multiplying_library().name
    try:
        if not _is_right(dim):
            return f"{name}'s product of bytes is wrong for vectors of {dim} components"
    except Exception as error:  # whatever a broken package raises: the stored rows give the same answers
        return f"{name} has no product of bytes here: {error}"
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
    rng = np.random.default_rng(0)
    rows, codes = (rng.integers(-127, 128, (n, dim)) for n in (_CHECKED_ROWS, 2 * GROUP))
    rows[0], rows[1], rows[2:4, ::2] = 127, -127, 127
    codes[0], codes[1], codes[2:6] = 127, -127, 127
    codes[3, 0], codes[4, :2], codes[5, :3] = 126, 126, 126
    exact = rows @ codes.T  # (40, 16)
    product, stored = ByteProduct(codes.astype(np.int8)), (rows + ZERO).astype(np.uint8)
    holds_all = _LARGEST_ROW * _LARGEST_CODE * dim * _UNIT < 1
    off = float(np.abs(product.products(stored) - exact).max())
    return off <= (0.0 if holds_all else largest_error(dim)) and _finds(product, stored, exact)


def _finds(product: ByteProduct, rows: NDArray[np.uint8], exact: NDArray[np.int64]) -> bool:
    """Whether the groups above a bound are found, and besides only those that rounding can put there."""
    added = (0.5 - exact[7]).astype(np.float32)
    added[3], added[4] = np.inf, -np.inf
    bias = added.astype(np.float64)
    rounding = largest_error(rows.shape[1]) + 2 * _UNIT * np.abs(np.where(np.isfinite(bias), bias, 0))
    above = np.zeros(exact.size // GROUP, bool)
    above[product.groups_above(rows, added)] = True
    must, may = ((exact + bias + slack > 0.5).reshape(-1, GROUP).any(axis=1) for slack in (-rounding, rounding))
    return bool((above >= must).all() and (above <= may).all())


def _is_fast(dim: int) -> bool:
    """Whether any turn of several takes at most _SLOW times as long as a product in float32, in this thread's time."""
    rows, codes = min(_TIMED_ROWS, max(1, _TIMED_BYTES // dim)), _TIMED_CODES
    wide, stored = np.ones((rows, dim), np.float32), np.ones((rows, dim), np.uint8)
    product, wide_codes = ByteProduct(np.ones((codes, dim), np.int8)), np.ones((dim, codes), np.float32)
    usual = min(_seconds(lambda: wide @ wide_codes) for _ in range(_ROUNDS))
    return any(_seconds(lambda: product.products(stored)) <= _SLOW * usual for _ in range(_ROUNDS))


def _seconds(work: Callable[[], NDArray[Any]]) -> float:
    began = thread_time()  # other work on the machine does not count
    work()
    return thread_time() - began
