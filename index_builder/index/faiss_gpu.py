"""Search a copy of an index on the GPU, where the FAISS that is installed can and the machine has one.

GPU indexes heed no ID selectors: whoever searches them asks for more and drops what is excluded, and asks the index in
memory where only some rows are allowed.
"""

from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

_MOST = 2048  # rows, and lists, of one GPU search: faiss/gpu/utils/DeviceDefs.cuh


class GpuCopy:
    """A copy of an index in the first GPU's memory; for one thread at a time."""

    def __init__(self, index: Any) -> None:
        self._resources = faiss.StandardGpuResources()  # must outlive the copy
        self._index = faiss.index_cpu_to_gpu(self._resources, 0, index)

    def takes(self, depth: int, params: dict[str, int]) -> bool:
        """Whether it can search for so many rows a code with these parameters."""
        return max(depth, params.get("nprobe", 1)) <= _MOST

    def search(
        self, codes: NDArray[np.float32], depth: int, params: dict[str, int]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Inner products and rows, both (M, depth), of the rows nearest to each of the codes (M, D)."""
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
