"""The product of bytes by OpenVINO's CPU plugin, which is oneDNN's: without torch.

Rows and codes are both inputs of any size, so two small models serve every pool and query. OpenVINO multiplies two
inputs as bytes only where a model says of both that they are limited to the values of bytes.
"""

import threading
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.model import openvino_core
from polyrank.model.threads import count


class _Own(threading.local):
    """The requests of a thread; one cannot answer two at once."""

    def __init__(self) -> None:
        self.requests: dict[tuple[bool, int], Any] = {}  # by whether they clip, and the number of OpenVINO's threads


_own = _Own()


class OpenVinoProduct:
    """Multiplies rows by codes. codes: (P, D) int8."""

    def __init__(self, codes: NDArray[np.int8]) -> None:
        self._codes = np.ascontiguousarray(codes)
        self._threads = count()

    def clipped(self, rows: NDArray[np.uint8], bias: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Multiply rows (B, D), add a bias (P,), round and clip; (B, P), until this thread multiplies again."""
        return self._multiplied(True, rows, self._codes, bias[None])

    def products(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Multiply rows (B, D); (B, P), until this thread multiplies again."""
        return self._multiplied(False, rows, self._codes)

    def _multiplied(self, clips: bool, *inputs: NDArray[Any]) -> NDArray[Any]:
        import openvino as ov

        request = _request(clips, self._threads)
        for at, each in enumerate(inputs):
            request.set_input_tensor(at, ov.Tensor(each, shared_memory=True))
        request.infer()
        multiplied: NDArray[Any] = request.get_output_tensor().data
        return multiplied


def _request(clips: bool, threads: int) -> Any:
    if (clips, threads) not in _own.requests:
        _own.requests[clips, threads] = _compiled(clips, threads).create_infer_request()
    return _own.requests[clips, threads]


@cache
def _compiled(clips: bool, threads: int) -> Any:
    import openvino as ov
    from openvino import opset13 as op

    def limited(values: Any, least: int, most: int) -> Any:
        ends = [op.constant(np.float32(end)) for end in (least, most)]
        return op.fake_quantize(values, *ends, *ends, 256)

    rows, codes = op.parameter([-1, -1], np.uint8), op.parameter([-1, -1], np.int8)
    factors = limited(op.convert(rows, "f32"), 0, 255), limited(op.convert(codes, "f32"), -128, 127)
    inputs, product = [rows, codes], op.matmul(*factors, False, True)
    if clips:
        bias = op.parameter([1, -1], np.float32)
        inputs, product = [*inputs, bias], op.convert(limited(op.add(product, bias), 0, 255), "u8")
    return openvino_core.core().compile_model(ov.Model([product], inputs), "CPU", openvino_core.properties(threads))
