"""The product of bytes by one fused operator of oneDNN in torch.

The operator is not part of torch's public interface.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.model import threads


class TorchProduct:
    """Multiplies rows by codes. codes: (P, D) int8."""

    def __init__(self, codes: NDArray[np.int8]) -> None:
        import torch

        threads.tell_torch()
        self._packed = torch.ops.onednn.qlinear_prepack(torch.from_numpy(codes), None)
        self._ones = torch.ones(len(codes))
        self._zeros = torch.zeros(len(codes), dtype=torch.int64)

    def clipped(self, rows: NDArray[np.uint8], bias: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Multiply rows (B, D), add a bias (P,), round and clip; (B, P)."""
        import torch

        return self._multiplied(rows, torch.from_numpy(bias), torch.uint8)

    def products(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        import torch

        return self._multiplied(rows, None, torch.float32)

    def _multiplied(self, rows: NDArray[np.uint8], bias: Any, dtype: Any) -> NDArray[Any]:
        import torch

        packed, ones, zeros = self._packed, self._ones, self._zeros
        with torch.inference_mode():
            multiplied: NDArray[Any] = torch.ops.onednn.qlinear_pointwise(
                torch.from_numpy(rows), 1.0, 0, packed, ones, zeros, bias, 1.0, 0, dtype, "none", [], "none"
            ).numpy()
        return multiplied
