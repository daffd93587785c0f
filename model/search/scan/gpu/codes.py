"""The code vectors of several contexts as the GPU reads them, and the largest error of its scores."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.model.search.rounding import LARGEST_PRODUCT, LONGEST_ROW, margin_of

# Each context is scaled by a power of two so that the length of its longest vector is just below 2**15: then nothing
# overflows in float16, and no element that matters is lost.
_BITS = 15
_ALIGNED = 4  # numbers of four bytes: 16 bytes
_MOST_BITS = 120  # float32 holds 2**120 and its inverse


class GpuCodes:
    """Code vectors of C contexts on the GPU; zeros pad each context to the same number, a multiple of `multiple`.

    `matrix` is what will be scanned, `longest` the length of its longest row.

    Attributes:
        contexts: the number of contexts, C.
        padded: the number of vectors of each, zeros included.
        exact: the vectors, (C, padded, D) float32.
        rounded: the same, scaled, in the matrix's type.
        units: the factor that undoes the scaling, (C,) float32.
        margins: see `margin`, (C,) float32.
        counts: the number of vectors of each context, zeros excluded, (C,) int32.
        ks: the number of rows that each context asks for, (C,) int32.
        late_weights: by which the scores of each context are multiplied, at least (C,) float64.
    """

    def __init__(
        self,
        codes: Sequence[NDArray[np.float32]],
        ks: Sequence[int],
        matrix: Tensor,
        longest: float,
        multiple: int,
        late_weights: Sequence[float],
    ) -> None:
        counts = np.array([len(own) for own in codes], np.int32)
        self.contexts, self.padded = len(codes), -(-int(counts.max()) // multiple) * multiple
        exact = torch.zeros(self.contexts, self.padded, matrix.shape[1])
        for into, own in zip(exact, codes, strict=True):
            into[: len(own)] = torch.from_numpy(own)
        lengths = torch.linalg.vector_norm(exact, dim=2, dtype=torch.float64).amax(dim=1).numpy()
        bits = np.minimum(_BITS - np.frexp(lengths)[1], _MOST_BITS)
        units = np.ldexp(np.float32(1), -bits)
        margins = margin(counts, lengths, units, longest, matrix.shape[1], matrix.dtype, np.array(late_weights))
        # One copy for all five: a copy takes the same time however small it is.
        # Rows are aligned to 16 bytes: for another alignment the kernels would be compiled anew.
        numbers = np.zeros((6, -(-self.contexts // _ALIGNED) * _ALIGNED), np.int32)
        numbers[:4, : self.contexts] = units.view(np.int32), margins.view(np.int32), counts, ks
        numbers[4:].reshape(-1).view(np.float64)[: self.contexts] = late_weights
        everything = torch.from_numpy(numbers).to(matrix.device)
        uploaded, self.late_weights = everything[:, : self.contexts], everything[4:].reshape(-1).view(torch.float64)
        self.units, self.margins = uploaded[0].view(torch.float32), uploaded[1].view(torch.float32)
        self.counts, self.ks = uploaded[2], uploaded[3]
        self.exact = exact.to(matrix.device)
        self.rounded = (self.exact / self.units[:, None, None]).to(matrix.dtype)


def margin(
    counts: NDArray[np.int32],
    lengths: NDArray[np.float64],
    units: NDArray[np.float32],
    longest: float,
    dim: int,
    dtype: torch.dtype,
    late_weights: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Bound how far below the k-th best computed score the score of a row of the k best can be.

    That is twice the largest error of a score. A product is off by rounding the code vector y to float16, at most
    `2**-11 |y| |c|`, and by D sums whose last bits tensor cores cut off, at most `2**-22 D |y| |c|`. Late weights
    multiply the error of a score; they are rounded to float32, and so is their product with the score.

    counts, units, late_weights: as in GpuCodes. lengths: length of each context's longest vector, (C,). longest: length
    of the longest row. dtype: type that the vectors are rounded to. Returns a bound for each context, (C,); infinite if
    products may overflow.
    """
    m, unit = counts.astype(np.float64), units.astype(np.float64)
    rounding = 0.0 if dtype == torch.float32 else 2.0**-11
    smallest = 0.0 if dtype == torch.float32 else 2.0**-25 * math.sqrt(dim)  # of elements near 0 in float16
    products = ((rounding + (dim + 4) * 2**-22) * lengths + smallest * unit) * longest * (1 + 2**-10)
    products += dim * (unit * 2.0**-110 + 2.0**-126)  # of products too small for float32
    bounded = (longest < LONGEST_ROW) & (longest * lengths < LARGEST_PRODUCT)
    with np.errstate(over="ignore"):  # an infinite margin makes finalists of all rows
        margins = late_weights * (margin_of(m, products) + 2**-22 * longest * lengths) + 2.0**-126
        return np.where(bounded, margins, np.inf).astype(np.float32)
