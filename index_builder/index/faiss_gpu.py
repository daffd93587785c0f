"""A copy of an index in GPU memory, where the machine has a GPU and the installed FAISS can use it.

GPU indexes ignore ID selectors. The caller therefore asks for more rows and drops the excluded ones, and searches the
index in main memory where only some rows are allowed.
"""

from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

_MOST = 2048  # rows or lists of one GPU search: faiss/gpu/utils/DeviceDefs.cuh


class GpuCopy:
    """A copy of an index in the first GPU's memory, for one thread at a time."""

    def __init__(self, index: Any) -> None:
        self._resources = faiss.StandardGpuResources()  # must outlive the copy
        self._index = faiss.index_cpu_to_gpu(self._resources, 0, index)

    def takes(self, depth: int, params: dict[str, int]) -> bool:
        """Whether the GPU can search for `depth` rows a code with these parameters."""
        return max(depth, params.get("nprobe", 1)) <= _MOST

    def search(
        self, codes: NDArray[np.float32], depth: int, params: dict[str, int]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Find the nearest rows to each of the codes (M, D): inner products and rows, both (M, depth)."""
        if "nprobe" in params:
            faiss.GpuParameterSpace().set_index_parameter(self._index, "nprobe", params["nprobe"])
        products, rows = self._index.search(codes, depth)
        return products, rows


def copy_to_gpu(index: Any) -> GpuCopy | None:
    """Copy an index; None without a GPU, and for kinds that have no form there, such as graphs."""
    if not hasattr(faiss, "StandardGpuResources") or faiss.get_num_gpus() == 0:
        return None
    try:
        return GpuCopy(index)
    except RuntimeError:
        return None
