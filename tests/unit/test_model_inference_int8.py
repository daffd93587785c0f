"""Linear maps in int8, beside the same sums in NumPy."""

from typing import Any

import numpy as np
import pytest

from polyrank.model import openvino_core
from polyrank.model.checkpoint.quantised import MapInput
from polyrank.model.errors import InvalidInput
from polyrank.model.inference import int8

ov = pytest.importorskip("openvino")

WIDTH = 8


def transformer(transposed: bool) -> tuple[Any, dict[str, np.ndarray]]:
    """Two maps that read the input and one that reads the first of them, named as torch names them."""
    from openvino import opset13 as ops

    rng = np.random.default_rng(0)
    read = ops.parameter([-1, -1, WIDTH], np.float32)
    weights = {
        name: rng.normal(size=(outputs, WIDTH)).astype(np.float32)
        for name, outputs in zip("abc", (8, 5, 3), strict=True)
    }

    def product(name: str, given: Any) -> Any:
        held = weights[name] if transposed else np.ascontiguousarray(weights[name].T)
        made = ops.matmul(given, ops.constant(held), False, transposed)
        made.set_friendly_name(f"__module.part.{name}/aten::linear/MatMul")
        return made

    first, second = product("a", read), product("b", read)
    third = product("c", ops.relu(first))
    return ov.Model([ops.result(second), ops.result(third)], [read], "tiny"), weights


def outputs(model: Any, given: np.ndarray) -> list[np.ndarray]:
    compiled = openvino_core.core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return [each.copy() for each in compiled(given).to_tuple()]


def rounded_map(given: np.ndarray, weights: np.ndarray, found: MapInput) -> np.ndarray:
    """The map as the formula has it: levels of the input and of each row of the weights."""
    smoothing = found.smoothing.astype(np.float64)
    step = (found.high - found.low) / 255
    levels = np.clip(np.rint((given * smoothing - found.low) / step), 0, 255) * step + found.low
    rows = weights / smoothing
    scales = np.abs(rows).max(axis=1, keepdims=True) / 127
    product: np.ndarray = levels @ (np.rint(rows / scales) * scales).T
    return product


@pytest.mark.parametrize("transposed", [True, False])
def test_maps_are_named_and_rounded_as_the_formula_says(transposed: bool) -> None:
    model, weights = transformer(transposed)
    assert [(name, len(products)) for name, products in int8.linear_maps(model)] == [("a", 2), ("c", 1)]
    smoothing = np.array([0.5, 1, 2, 1, 1, 0.25, 1, 1], np.float16)
    # Ends of which 0 is a level, as calibration gives them.
    inputs = {"a": MapInput(smoothing, -100 * 0.03, 155 * 0.03), "c": MapInput(smoothing, 0.0, 255 * 0.05)}
    given = np.random.default_rng(1).normal(size=(2, 4, WIDTH)).astype(np.float32)
    second, third = outputs(int8.quantised(model, inputs), given)
    np.testing.assert_allclose(second, rounded_map(given, weights["b"], inputs["a"]), atol=0.03)
    first = np.maximum(rounded_map(given, weights["a"], inputs["a"]), 0)
    np.testing.assert_allclose(third, rounded_map(first, weights["c"], inputs["c"]), atol=0.1)
    exact = np.maximum(given @ weights["a"].T, 0) @ weights["c"].T
    assert 0.001 < np.abs(third - exact).mean() < 0.2, "it is rounded, and near"


def test_maps_that_are_not_named_stay_as_they_are() -> None:
    model, weights = transformer(True)
    given = np.random.default_rng(1).normal(size=(1, 2, WIDTH)).astype(np.float32)
    second, _ = outputs(int8.quantised(model, {"c": MapInput(np.ones(8, np.float16), 0.0, 9.0)}), given)
    np.testing.assert_allclose(second, given @ weights["b"].T, rtol=1e-4, atol=1e-5)


def test_what_was_calibrated_for_another_transformer_is_refused() -> None:
    model, _ = transformer(True)
    for name, width, why in (("d", WIDTH, "there is no such map"), ("a", 7, "it reads 8 components, not 7")):
        with pytest.raises(InvalidInput, match=rf"does not fit the transformer: {name}: {why}; run polyrank quantise"):
            int8.quantised(model, {name: MapInput(np.ones(width, np.float16), -1.0, 1.0)})
