"""The product of bytes by OpenVINO's CPU plugin, which is oneDNN's: without torch, and as fast.

Rows and codes are both inputs of any size, so two small models serve every pool and query. OpenVINO multiplies two
inputs as bytes only where both are made from bytes by a factor; the two factors here cancel out. Vectors of more than
LONGEST components it multiplies in float32, whose sums are not those of whole numbers.
"""

import threading
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.model.threads import count

LONGEST = 1024
_KEPT_KERNELS = "64"  # each for one shape
_own = threading.local()  # a request for each thread: one cannot answer two at once


class OpenVinoProduct:
    """Multiplies rows by codes. codes: (P, D) int8."""

    def __init__(self, codes: NDArray[np.int8]) -> None:
        self._codes = np.ascontiguousarray(codes)
        self._threads = count()

    def clipped(self, rows: NDArray[np.uint8], bias: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Multiply rows (B, D), add a bias (P,), round and clip; (B, P), until this thread multiplies again."""
        return self._multiplied(True, rows, self._codes, bias[None])

    def products(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Multiply rows (B, D), (B, P)."""
        return self._multiplied(False, rows, self._codes).copy()

    def _multiplied(self, clips: bool, *inputs: NDArray[Any]) -> NDArray[Any]:
        import openvino as ov

        request = _request(clips, self._threads)
        for at, each in enumerate(inputs):
            request.set_input_tensor(at, ov.Tensor(each, shared_memory=True))
        request.infer()
        multiplied: NDArray[Any] = request.get_output_tensor().data
        return multiplied


def _request(clips: bool, threads: int) -> Any:
    requests: dict[tuple[bool, int], Any] = _own.__dict__
    if (clips, threads) not in requests:
        requests[clips, threads] = _compiled(clips, threads).create_infer_request()
    return requests[clips, threads]


@cache
def _compiled(clips: bool, threads: int) -> Any:
    import openvino as ov
    from openvino import opset13 as op

    def number(value: float) -> Any:
        return op.constant(np.float32(value))

    rows, codes = op.parameter([-1, -1], np.uint8), op.parameter([-1, -1], np.int8)
    halves, twice = op.multiply(op.convert(rows, "f32"), number(0.5)), op.multiply(op.convert(codes, "f32"), number(2))
    product = op.matmul(halves, twice, False, True)
    inputs = [rows, codes]
    if clips:
        bias, ends = op.parameter([1, -1], np.float32), [number(0), number(255)] * 2
        product = op.convert(op.fake_quantize(op.add(product, bias), *ends, 256), "u8")
        inputs.append(bias)
    properties = {
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",  # else AMX would silently mean bf16
        "ENABLE_CPU_PINNING": False,  # several processes would be pinned to the same cores
        "CPU_RUNTIME_CACHE_CAPACITY": _KEPT_KERNELS,
    }
    return ov.Core().compile_model(ov.Model([product], inputs), "CPU", properties)
