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
        self.requests: dict[tuple[int, bool], Any] = {}  # as `_compiled` has them


_own = _Own()


class OpenVinoProduct:
    """Multiplies rows by codes. codes: (P, D) int8, of so many contexts."""

    def __init__(self, codes: NDArray[np.int8], contexts: int) -> None:
        self._codes = np.ascontiguousarray(codes)
        self._contexts = contexts
        self._threads = count()

    def largest(
        self, rows: NDArray[np.uint8], factors: NDArray[np.float32], terms: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        import openvino as ov

        request = _request(self._threads, self._contexts == 1)
        inputs = [rows, self._codes, factors[None], terms[None]]
        if self._contexts > 1:
            inputs.append(np.array([len(rows), self._contexts, -1]))
        for at, each in enumerate(inputs):
            request.set_input_tensor(at, ov.Tensor(each, shared_memory=True))
        request.infer()
        largest: NDArray[np.float32] = request.get_output_tensor().data
        return largest


def _request(threads: int, is_alone: bool) -> Any:
    if (threads, is_alone) not in _own.requests:
        _own.requests[threads, is_alone] = _compiled(threads, is_alone).create_infer_request()
    return _own.requests[threads, is_alone]


@cache
def _compiled(threads: int, is_alone: bool) -> Any:
    """Compile the product for one context, or for several, where the sums are given another shape: a bit slower."""
    import openvino as ov
    from openvino import opset13 as op

    def limited(values: Any, least: int, most: int) -> Any:
        ends = [op.constant(np.float32(end)) for end in (least, most)]
        return op.fake_quantize(values, *ends, *ends, 256)

    rows, codes = op.parameter([-1, -1], np.uint8), op.parameter([-1, -1], np.int8)
    factors, terms = (op.parameter([1, -1], np.float32) for _ in range(2))
    bytes_of_both = limited(op.convert(rows, "f32"), 0, 255), limited(op.convert(codes, "f32"), -128, 127)
    sums = op.add(op.multiply(op.matmul(*bytes_of_both, False, True), factors), terms)
    inputs = [rows, codes, factors, terms]
    if is_alone:
        largest = op.reduce_max(sums, op.constant([1]), True)
    else:
        shape = op.parameter([3], np.int64)
        inputs.append(shape)
        largest = op.reduce_max(op.reshape(sums, shape, False), op.constant([2]), False)
    model = ov.Model([largest], inputs)
    return openvino_core.core().compile_model(model, "CPU", openvino_core.properties(threads))
