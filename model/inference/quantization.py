"""Weights as bytes: each row of a linear map is int8 with a scale.

OpenVINO quantises what they multiply while it comes, 32 values with a common scale, so nothing has to be calibrated. It
costs accuracy: docs/measurements/backends.md.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import openvino as ov

_LARGEST = 127
_LEAST_ELEMENTS = 256  # smaller matrices gain nothing


def quantized(model: "ov.Model") -> "ov.Model":
    """A copy of a model with the weights of its linear maps in int8."""
    from openvino import opset13 as ops

    model = model.clone()
    for product in (node for node in model.get_ops() if node.get_type_name() == "MatMul"):
        weights = product.input_value(1).get_node()
        if weights.get_type_name() != "Constant" or len(weights.shape) != 2 or np.prod(weights.shape) < _LEAST_ELEMENTS:
            continue
        values = weights.data
        inner = 1 if product.get_attributes()["transpose_b"] else 0
        scales = np.maximum(np.abs(values).max(axis=inner, keepdims=True), np.finfo(np.float32).tiny) / _LARGEST
        bytes_of = np.rint(values / scales).astype(np.int8)
        restored = ops.multiply(ops.convert(ops.constant(bytes_of), "f32"), ops.constant(scales.astype(np.float32)))
        product.input(1).replace_source_output(restored.output(0))
    model.validate_nodes_and_infer_types()
    return model
