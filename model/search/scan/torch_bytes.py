"""The product of bytes by one fused operator of oneDNN in torch.

The operator is not part of torch's public interface.
"""

import numpy as np
from numpy.typing import NDArray

from polyrank.model import threads


class TorchProduct:
    """Multiplies rows by codes. codes: (P, D) int8, of so many contexts."""

    def __init__(self, codes: NDArray[np.int8], contexts: int) -> None:
        import torch

        threads.tell_torch()
        self._packed = torch.ops.onednn.qlinear_prepack(torch.from_numpy(codes), None)
        self._zeros = torch.zeros(len(codes), dtype=torch.int64)
        self._contexts = contexts

    def largest(
        self, rows: NDArray[np.uint8], factors: NDArray[np.float32], terms: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        import torch

        scales, bias = torch.from_numpy(factors), torch.from_numpy(terms)
        with torch.inference_mode():
            sums = torch.ops.onednn.qlinear_pointwise(
                torch.from_numpy(rows), 1.0, 0, self._packed, scales, self._zeros, bias, 1.0, 0, torch.float32,
                "none", [], "none",
            )  # fmt: skip
            largest: NDArray[np.float32] = sums.view(len(rows), self._contexts, -1).amax(2).numpy()
        return largest
