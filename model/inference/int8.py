"""Linear maps in int8: a traced transformer is given rounded weights, and inputs that are rounded as it runs.

What an input may be was calibrated before (polyrank.model.checkpoint.quantised). It is the same for every token, so a
text's output does not depend on its batch. Each row of a map's weights has a scale of its own. What lies between the
maps stays float32: attention, normalisation, activations.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polyrank.model.checkpoint.quantised import Inputs, MapInput
from polyrank.model.errors import InvalidInput

if TYPE_CHECKING:
    import openvino as ov

LEVELS = 256  # of an input
_LARGEST_BYTE = 127  # of a weight: levels are symmetric
_MODULE = "__module.part."  # before the name of a module in the names of what it does


def linear_maps(model: "ov.Model") -> Iterator[tuple[str, list["ov.Node"]]]:
    """Yield products with weights in the order of the graph: those that read the same, and the name of the first.

    The name is the path of its module in the network; where a module is used again, a number follows.
    """
    by_input: dict[tuple[str, int], list[ov.Node]] = {}
    for node in model.get_ordered_ops():
        weights = node.input_value(1).get_node() if node.get_type_name() == "MatMul" else None
        if weights is not None and weights.get_type_name() == "Constant" and len(weights.shape) == 2:
            read = node.input_value(0)
            by_input.setdefault((read.get_node().get_friendly_name(), read.get_index()), []).append(node)
    names: dict[str, int] = {}
    for products in by_input.values():
        path = products[0].get_friendly_name().removeprefix(_MODULE).partition("/")[0]
        names[path] = names.get(path, 0) + 1
        yield path if names[path] == 1 else f"{path}.{names[path]}", products


def width_of(product: "ov.Node") -> int:
    """Return how many components a product with weights reads."""
    width: int = product.input_value(1).get_node().shape[int(product.get_attributes()["transpose_b"])]
    return width


def quantised(model: "ov.Model", inputs: Inputs) -> "ov.Model":
    """Return a copy of a traced transformer in which the maps that `inputs` names work in int8; others stay float32.

    Raises InvalidInput where a name or a size is not the transformer's.
    """
    model, left = model.clone(), dict(inputs)
    for name, products in list(linear_maps(model)):
        if (map_input := left.pop(name, None)) is not None:
            _quantise(name, products, map_input)
    if left:
        raise _misfit(next(iter(left)), "there is no such map")
    model.validate_nodes_and_infer_types()
    return model


def _quantise(name: str, products: "list[ov.Node]", map_input: MapInput) -> None:
    from openvino import opset13 as ops

    smoothing = map_input.smoothing.astype(np.float32)
    for product in products:
        if (width := width_of(product)) != len(smoothing):
            raise _misfit(name, f"it reads {width} components, not {len(smoothing)}")
    smooth = ops.multiply(products[0].input_value(0), ops.constant(smoothing))
    low, high = (ops.constant(np.float32(end)) for end in (map_input.low, map_input.high))
    rounded = ops.fake_quantize(smooth, low, high, low, high, LEVELS)
    for product in products:
        transposed = product.get_attributes()["transpose_b"]
        weights = product.input_value(1).get_node().data
        rows = weights if transposed else weights.T
        values, scales = _rounded(rows / smoothing)
        ours = (values, scales) if transposed else (np.ascontiguousarray(values.T), scales.T)
        restored = ops.multiply(ops.convert(ops.constant(ours[0]), "f32"), ops.constant(ours[1]))
        product.input(0).replace_source_output(rounded.output(0))
        product.input(1).replace_source_output(restored.output(0))


def _rounded(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return weights (N, D) as int8 and the scale of each row, (N, 1)."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scales = (np.maximum(largest, np.finfo(np.float32).tiny) / _LARGEST_BYTE).astype(np.float32)
    return np.rint(rows / scales).astype(np.int8), scales


def _misfit(name: str, why: str) -> InvalidInput:
    return InvalidInput(f"the calibration for int8 does not fit the transformer: {name}: {why}; run polyrank quantise")
