"""The file of what calibration for int8 found, and which checkpoints it belongs to."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save
from tiny import write_checkpoint
from tiny_int8 import PROOF, on_any_processor, quantised_checkpoint

import polyrank
from polyrank.model.checkpoint.files import CONFIG_FILE, read_config, write_config
from polyrank.model.checkpoint.quantised import QUANTISED_FILE, MapInput, quantisation_bytes, read_quantisation
from polyrank.model.config import ModelConfig, QuantisationConfig
from polyrank.model.errors import CheckpointInvalid, InvalidInput
from polyrank.model.rankers.networks import load_network

ONES = np.ones(3, np.float16)
ENDS = np.array([-1, 1], np.float32)


def test_what_is_written_is_read() -> None:
    inputs = {"a.query": MapInput(np.array([0.5, 2, 1], np.float16), -1.5, 2.5), "b": MapInput(ONES, 0.0, 1.0)}
    content = quantisation_bytes({"contexts": inputs, "pairs": {"c": MapInput(ONES, -1.0, 0.0)}})
    again = read_quantisation(content)
    assert list(again.parts) == ["contexts", "pairs"]
    for name, found in inputs.items():
        np.testing.assert_array_equal(again.parts["contexts"][name].smoothing, found.smoothing)
        assert again.parts["contexts"][name][1:] == found[1:]
    assert quantisation_bytes(again.parts) == content


@pytest.mark.parametrize(("tensors", "why"), [
    ({"p/a.range": ENDS}, "p/a has no usable numbers"),
    ({"p/a.range": ENDS[:1], "p/a.smoothing": ONES}, "p/a has no usable numbers"),
    ({"p/a.range": ENDS[::-1].copy(), "p/a.smoothing": ONES}, "p/a has no usable numbers"),
    ({"p/a.range": ENDS + 2, "p/a.smoothing": ONES}, "p/a has no usable numbers"),
    ({"p/a.range": ENDS * np.nan, "p/a.smoothing": ONES}, "p/a has no usable numbers"),
    ({"p/a.range": np.array([-1e300, 1e300]), "p/a.smoothing": ONES}, "p/a has no usable numbers"),
    ({"p/a.range": ENDS.astype(np.complex64), "p/a.smoothing": ONES}, "p/a has no usable numbers"),
    ({"p/a.range": ENDS, "p/a.smoothing": ONES * 0}, "p/a has no usable numbers"),
    ({"p/a.range": ENDS, "p/a.smoothing": np.ones((3, 1), np.float16)}, "p/a has no usable numbers"),
    ({"p/a.range": ENDS, "p/a.smoothing": np.ones(3, np.float32)}, "p/a has no usable numbers"),
    ({"p/a.range": ENDS, "p/a.smoothing": ONES, "p/a.bias": ONES}, "p/a.bias is not known"),
])  # fmt: skip
def test_a_damaged_file_is_refused(tensors: dict[str, np.ndarray], why: str) -> None:
    with pytest.raises(CheckpointInvalid, match=f"^quantised.safetensors is damaged: {why}$"):
        read_quantisation(save(tensors))


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, quantisation_bytes({"p": {"a": MapInput(ONES, -1, 1)}})[:-3]])
def test_bytes_of_anything_else_are_refused(content: bytes) -> None:
    with pytest.raises(CheckpointInvalid, match=r"^quantised.safetensors is damaged: "):
        read_quantisation(content)


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    on_any_processor(monkeypatch)
    return quantised_checkpoint(write_checkpoint(tmp_path, "poly", seed=0, architecture="poly", n_codes=4))


def test_a_copy_carries_it_and_the_fingerprint_does_not_tell(checkpoint: Path, tmp_path: Path) -> None:
    ranker = polyrank.load(checkpoint)
    assert isinstance(ranker.config, ModelConfig)
    ranker.save(tmp_path / "copy")
    copy = polyrank.load(tmp_path / "copy")
    assert (tmp_path / "copy" / QUANTISED_FILE).read_bytes() == (checkpoint / QUANTISED_FILE).read_bytes()
    assert copy.config.quantisation == ranker.config.quantisation
    write_config(checkpoint / CONFIG_FILE, replace(ranker.config, quantisation=None))
    plain = polyrank.load(checkpoint)
    assert plain.fingerprint == copy.fingerprint == ranker.fingerprint
    plain.save(tmp_path / "copy")
    assert not (tmp_path / "copy" / QUANTISED_FILE).exists(), "it would be of no use"


def test_what_is_kept_of_one_calibration_is_not_taken_for_anothers(checkpoint: Path) -> None:
    found = []
    for reach in (8.0, 4.0):
        ranker = load_network(quantised_checkpoint(checkpoint, reach), "cpu", "openvino", "int8")
        found.append((ranker.fingerprint, ranker.precision, ranker.rounding))
    assert found[0][:2] == found[1][:2]
    assert found[0][2] != found[1][2]
    assert load_network(checkpoint, "cpu", "torch", "float32").rounding == "float32"


def test_another_model_or_file_is_told_from_its_own(checkpoint: Path) -> None:
    def refused(why: str) -> None:
        with pytest.raises(InvalidInput, match=rf"{why}; run polyrank quantise (first|again)$"):
            polyrank.load(checkpoint, backend="openvino", precision="int8")

    config = read_config(checkpoint / CONFIG_FILE)
    assert config.quantisation is not None
    content = (checkpoint / QUANTISED_FILE).read_bytes()
    (checkpoint / QUANTISED_FILE).write_bytes(quantisation_bytes({"contexts": {"a": MapInput(ONES, -1, 1)}}))
    refused("is of another run")
    short = quantisation_bytes({"contexts": read_quantisation(content).parts["contexts"]})
    (checkpoint / QUANTISED_FILE).write_bytes(short)
    said = replace(config.quantisation, sha256=read_quantisation(short).sha256)
    write_config(checkpoint / CONFIG_FILE, replace(config, quantisation=said))
    refused("the calibration for int8 knows nothing of candidates")
    write_config(checkpoint / CONFIG_FILE, config)
    (checkpoint / QUANTISED_FILE).write_bytes(content)
    write_config(checkpoint / CONFIG_FILE, replace(config, score_scale=3.0))
    refused("was changed after it was quantised")
    write_config(checkpoint / CONFIG_FILE, replace(config, quantisation=None))
    refused("is not quantised, so it has no int8")
    write_config(checkpoint / CONFIG_FILE, config)
    (checkpoint / QUANTISED_FILE).unlink()
    with pytest.raises(CheckpointInvalid, match=r"quantised.safetensors cannot be read: No such file"):
        polyrank.load(checkpoint, backend="openvino", precision="int8")
    assert polyrank.load(checkpoint).precision == "float32", "other precisions do without"


@pytest.mark.parametrize(("change", "why"), [
    ((-0.001, -0.004, 0.002), ""), ((-0.003, -0.0059, 0.0), ""),
    ((-0.0031, -0.005, -0.002), "R@1 changes by -0.31 points"),
    ((0.001, -0.006, 0.01), "R@1 may change by -0.60 points"),
])  # fmt: skip
def test_auto_may_take_what_loses_little_for_certain(change: tuple[float, float, float], why: str) -> None:
    said = QuantisationConfig(made_for="", sha256="", **{**PROOF, "recall_change": change})
    assert said.why_not_chosen().startswith(why)
    assert bool(said.why_not_chosen()) == bool(why)


@pytest.mark.parametrize(("fields", "why"), [
    ({"version": 2}, "quantisation.version 2 is not known"),
    ({"recall_change": (0.0, 0.0)}, "quantisation.recall_change must be a difference and the ends"),
    ({"mrr_change": (0.0, float("nan"), 0.0)}, "quantisation.mrr_change must lie between -1 and 1"),
    ({"lists": "many"}, "quantisation.lists is 'many', not a whole number"),
    ({"nearness": {"cosine": "high"}}, "quantisation.nearness is"),
])  # fmt: skip
def test_a_proof_that_is_none_is_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(CheckpointInvalid, match=f"^polyrank.json: {why}"):
        QuantisationConfig(made_for="", sha256="", **{**PROOF, **fields})
