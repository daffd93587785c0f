"""The product of rows and codes in bytes, and of each row the largest of its products with a context's codes.

Products are made in int32. Each is multiplied by a factor and a term is added, both of its code, so that what comes out
bounds the product of a stored row and a code from above. The library that multiplies also takes the largest of them:
reading all of them here would take longer than the product.

NumPy has no fast product of bytes; two libraries bring oneDNN. torch multiplies where it is imported already. Where it
is not, OpenVINO multiplies if it is installed. Neither is imported before a pool is prepared that is held in bytes.

Rows are stored as uint8, ZERO more than their value: VNNI multiplies unsigned bytes by signed ones, and without AMX
oneDNN takes four thousand times as long for two signed ones. ZERO times the sum of a code is taken away again, in the
term. These are numbers in float32, so they are a little off; `ByteProduct` adds to the term as much as they can be.
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

ZERO = 128  # the byte of a row that stands for 0
_LARGEST_ROW, _LARGEST_CODE = 255, 127  # bytes, as they are multiplied
_UNIT = 2.0**-24  # of rounding to float32, which holds every integer up to 1 / _UNIT
_TINY = 2.0**-126  # the smallest normal float32; smaller numbers may be flushed to 0
_LONGEST = 2**15  # D: int32 holds the sums
_CHECKED_ROWS, _CHECKED_CODES = 40, 16
_CHECKED_CONTEXTS = 1, 2  # a library may compute the largest of one context in another way than those of several
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

    def largest(
        self, rows: NDArray[np.uint8], factors: NDArray[np.float32], terms: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the largest of `product * factor + term` over the codes of each context.

        rows: (B, D). factors, terms: (P,). Returns (B, C), until this thread multiplies again.
        """


class Library(NamedTuple):
    """What multiplies bytes: its name, and what makes a product with codes (P, D) int8 of so many contexts."""

    name: str
    multiplier: Callable[[NDArray[np.int8], int], Multiplier]


@cache
def multiplying_library() -> Library:
    """Return what multiplies bytes in this process, from the first call on; imports nothing."""
    if "torch" not in sys.modules and importlib.util.find_spec("openvino") is not None:
        return Library("OpenVINO", OpenVinoProduct)
    return Library("torch", TorchProduct)


class ByteProduct:
    """Multiplies rows by the same codes, again and again.

    Args:
        codes: (P, D) int8, as many of each context.
        contexts: how many contexts there are.
        factors: of each product, for each block of rows, (blocks, P), not negative.
        terms: what is added to it, (blocks, P).
    """

    def __init__(
        self, codes: NDArray[np.int8], contexts: int, factors: NDArray[np.float64], terms: NDArray[np.float64]
    ) -> None:
        self._multiplier = multiplying_library().multiplier(codes, contexts)
        terms = terms - factors * (ZERO * codes.sum(axis=1, dtype=np.float64))
        terms += largest_error(codes.shape[1], factors, terms)
        self._factors, self._terms = factors.astype(np.float32), terms.astype(np.float32)

    def largest(self, rows: NDArray[np.uint8], block: int) -> NDArray[np.float32]:
        """Return the largest of `product * factor + term` over the codes of each context, or a little more.

        rows: of one block, (B, D). Returns (B, C), until this thread multiplies again: at least the exact numbers, and
        at most twice `largest_error` more.
        """
        return self._multiplier.largest(rows, self._factors[block], self._terms[block])


def largest_error(dim: int, factors: NDArray[np.float64], terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bound how far `product * factor + term` can be from what it is exactly, for vectors of `dim` components.

    The sum of unsigned bytes is at most `255 * 127 D`. It may be rounded to float32, and so are the factor and what
    both give: each by at most `2**-24` of itself, so three times that of the largest sum times factor. Rounding the
    term and the result add `2**-24` of the term twice and once of the sum times factor. That makes four and two. Five
    and three are taken, since the term grows by this error, and what is rounded may be more than what it was.
    """
    sums = _LARGEST_ROW * _LARGEST_CODE * dim
    error: NDArray[np.float64] = _UNIT * (5 * sums * factors + 3 * np.abs(terms)) + 4 * sums * _TINY
    return error


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
    rows, codes = (rng.integers(-127, 128, (n, dim)) for n in (_CHECKED_ROWS, _CHECKED_CODES))
    rows[0], rows[1], rows[2:4, ::2] = 127, -127, 127
    codes[0], codes[1], codes[2:6] = 127, -127, 127
    codes[3, 0], codes[4, :2], codes[5, :3] = 126, 126, 126
    exact, stored = rows @ codes.T, (rows + ZERO).astype(np.uint8)  # (40, 16)
    ones, offsets = np.ones(_CHECKED_CODES), ZERO * codes.sum(axis=1, dtype=np.float64)
    alone = multiplying_library().multiplier(codes.astype(np.int8), _CHECKED_CODES)
    off = np.abs(alone.largest(stored, ones.astype(np.float32), -offsets.astype(np.float32)) - exact).max(axis=0)
    holds_all = _LARGEST_ROW * _LARGEST_CODE * dim * _UNIT < 1
    if not (off <= (0.0 if holds_all else largest_error(dim, ones, offsets))).all():
        return False
    factors, terms = rng.uniform(0.5, 2, (1, _CHECKED_CODES)), rng.normal(0, 127 * dim, (1, _CHECKED_CODES))
    slack = 2 * largest_error(dim, factors, np.abs(terms) + factors * np.abs(offsets)).max()
    for contexts in _CHECKED_CONTEXTS:
        largest = ByteProduct(codes.astype(np.int8), contexts, factors, terms).largest(stored, 0)
        above = largest - (exact * factors + terms).reshape(len(rows), contexts, -1).max(axis=2)
        if not ((above >= 0) & (above <= slack)).all():
            return False
    return True


def _is_fast(dim: int) -> bool:
    """Whether any turn of several takes at most _SLOW times as long as a product in float32, in this thread's time."""
    rows, codes = min(_TIMED_ROWS, max(1, _TIMED_BYTES // dim)), _TIMED_CODES
    wide, stored = np.ones((rows, dim), np.float32), np.ones((rows, dim), np.uint8)
    ones, wide_codes = np.ones((1, codes)), np.ones((dim, codes), np.float32)
    product = ByteProduct(np.ones((codes, dim), np.int8), 1, ones, ones)
    usual = min(_seconds(lambda: wide @ wide_codes) for _ in range(_ROUNDS))
    return any(_seconds(lambda: product.largest(stored, 0)) <= _SLOW * usual for _ in range(_ROUNDS))


def _seconds(work: Callable[[], NDArray[Any]]) -> float:
    began = thread_time()  # other work on the machine does not count
    work()
    return thread_time() - began
