"""The code vectors of several contexts as a GPU reads them, and how far its scores can be off."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.model.search.rounding import LARGEST_PRODUCT, LONGEST_ROW, margin_of

# A context is scaled by a power of two so that its longest vector is just below 2**15 long: in float16 nothing
# overflows, and no element is lost that counts.
_BITS = 15
_ALIGNED = 4  # numbers of four bytes
_MOST_BITS = 120  # 2**120 and its inverse are numbers of float32


class GpuCodes:
    """Code vectors of C contexts, those of each filled up with zeros to the same number; all of it on the GPU.

    Args:
        codes: (M, D) float32 of each context.
        ks: how many rows are asked for by each.
        matrix: that is scanned; the vectors are rounded to its type.
        longest: the length of its longest row.
        multiple: of which the number of vectors is to be one.

    Attributes:
        contexts: how many, C.
        padded: the number of vectors of each.
        exact: (C, padded, D) float32.
        rounded: the same, scaled, in the matrix's type.
        units: what undoes the scaling, (C,) float32.
        margins: as `margin` tells, (C,) float32.
        counts: the vectors of each context without the zeros, (C,) int32.
        ks: (C,) int32.
    """

    def __init__(
        self, codes: Sequence[NDArray[np.float32]], ks: Sequence[int], matrix: Tensor, longest: float, multiple: int
    ) -> None:
        counts = np.array([len(each) for each in codes], np.int32)
        self.contexts, self.padded = len(codes), -(-int(counts.max()) // multiple) * multiple
        exact = torch.zeros(self.contexts, self.padded, matrix.shape[1])
        for into, each in zip(exact, codes, strict=True):
            into[: len(each)] = torch.from_numpy(each)
        lengths = torch.linalg.vector_norm(exact, dim=2, dtype=torch.float64).amax(dim=1).numpy()
        bits = np.minimum(_BITS - np.frexp(lengths)[1], _MOST_BITS)
        units = np.ldexp(np.float32(1), -bits)
        margins = margin(counts, lengths, units, longest, matrix.shape[1], matrix.dtype)
        # In one piece: each copy takes as long as the next, however small.
        # Kernels are compiled anew where an address is no multiple of 16 bytes.
        numbers = np.zeros((4, -(-self.contexts // _ALIGNED) * _ALIGNED), np.int32)
        numbers[:, : self.contexts] = units.view(np.int32), margins.view(np.int32), counts, ks
        uploaded = torch.from_numpy(numbers).to(matrix.device)[:, : self.contexts]
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
) -> NDArray[np.float32]:
    """How far below the k-th best computed score a row's can be that is among the k best.

    Twice what a computed score can be off by. A product is off by the rounding of the code vector y to float16, at most
    `2**-11 |y| |c|`, and by that of D sums, whose last bits tensor cores cut off, at most `2**-22 D |y| |c|`.

    Args:
        counts: M of each context, (C,).
        lengths: of each context's longest vector, (C,).
        units: what undoes its scaling, (C,).
        longest: length of the longest row.
        dim: D.
        dtype: that the vectors are rounded to.

    Returns:
        (C,); infinite where products may overflow.
    """
    m, unit = counts.astype(np.float64), units.astype(np.float64)
    rounding = 0.0 if dtype == torch.float32 else 2.0**-11
    smallest = 0.0 if dtype == torch.float32 else 2.0**-25 * math.sqrt(dim)  # of elements that float16 hardly holds
    products = ((rounding + (dim + 4) * 2**-22) * lengths + smallest * unit) * longest * (1 + 2**-10)
    products += dim * (unit * 2.0**-110 + 2.0**-126)  # what is too small for float32
    bounded = (longest < LONGEST_ROW) & (longest * lengths < LARGEST_PRODUCT)
    return np.where(bounded, margin_of(m, products), np.inf).astype(np.float32)
