"""Tiny checkpoints with what int8 takes to know, without a calibration, which takes another package and seconds."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrank.model.checkpoint.files import CONFIG_FILE, write_config
from polyrank.model.checkpoint.quantised import (
    QUANTISED_FILE,
    Inputs,
    MapInput,
    quantisation_bytes,
    read_quantisation,
)
from polyrank.model.config import QuantisationConfig
from polyrank.model.inference import openvino_backend
from polyrank.model.inference.int8 import linear_maps, width_of
from polyrank.model.inference.tracing import traced
from polyrank.model.quantisation.calibration import parts_of
from polyrank.model.rankers.networks import NetworkRanker, load_network


def require_int8() -> None:
    """Skip the test on a processor that does not compute in int8."""
    if not openvino_backend.is_supported("int8"):
        pytest.skip("this processor does not compute in int8")


PROOF: dict[str, Any] = {
    "lists": 3000, "conversations": 900, "recall_at_1": 0.6, "mrr": 0.7, "recall_change": (-0.001, -0.004, 0.002),
    "mrr_change": (0.0, -0.002, 0.002), "nearness": {"least cosine": 0.98, "mean cosine": 0.998},
}  # fmt: skip


def found_inputs(ranker: NetworkRanker, reach: float = 8.0) -> dict[str, Inputs]:
    """Ranges in which all that the tiny models' maps read lies."""
    found: dict[str, Inputs] = {}
    for part in parts_of(ranker):
        inputs: dict[str, MapInput] = {}
        for name, products in linear_maps(traced(part)[0]):
            inputs[name] = MapInput(np.ones(width_of(products[0]), np.float16), -reach, reach)
        found[part.reads] = inputs
    return found


def quantised_checkpoint(path: Path, reach: float = 8.0, **proof: Any) -> Path:
    """Give a checkpoint a file for int8 and a proof; returns its directory."""
    ranker = load_network(path, "cpu", "torch", "float32")
    content = quantisation_bytes(found_inputs(ranker, reach))
    (path / QUANTISED_FILE).write_bytes(content)
    said: Mapping[str, Any] = {
        "made_for": ranker.fingerprint, "sha256": read_quantisation(content).sha256, **PROOF, **proof,
    }  # fmt: skip
    write_config(path / CONFIG_FILE, replace(ranker.config, quantisation=QuantisationConfig(**said)))
    return path


def on_any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let int8 run without VNNI as well: the sums of these tiny models do not overflow 16 bits."""
    monkeypatch.setattr(openvino_backend, "_sums_bytes_right", lambda: True)
