"""Back-ends by their names, and the choice of `auto`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny import write_base

import polyrank
from polyrank.model.architectures.batching import TokenBatch
from polyrank.model.config import ModelConfig
from polyrank.model.errors import InvalidInput
from polyrank.model.inference import choice, openvino_backend
from polyrank.model.inference.backend import TorchBackend
from polyrank.model.inference.choice import choose_backend, fastest
from polyrank.model.inference.compiler import Compiler
from polyrank.model.inference.forwards import LateForwards
from polyrank.model.inference.names import Runner
from polyrank.model.inference.network import Network
from polyrank.model.rankers.late import LateRanker

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of the process may have measured already."""
    monkeypatch.setattr(choice, "_chosen", {})


def test_an_unknown_back_end_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^unknown back-end 'tensorflow'; use one of auto, torch, openvino, "):
        polyrank.load(tmp_path / "nothing here", backend="tensorflow")


def test_a_missing_package_is_named_and_auto_does_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_backend, "is_installed", lambda: False)
    base = write_base(tmp_path / "base", 0)
    with pytest.raises(InvalidInput, match=r"^the back-end openvino needs the package openvino: pip install openvino"):
        polyrank.load(base, backend="openvino")
    assert polyrank.load(base, backend="auto").backend == "torch"


def test_a_precision_that_the_processor_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_backend, "_capabilities", lambda: ["FP32"])
    with pytest.raises(InvalidInput, match="this processor does not compute in float16"):
        choose_backend("openvino", "float16", CPU)


def test_a_gpu_is_for_torch() -> None:
    gpu = torch.device("cuda:0")
    for backend in ("auto", "torch"):
        assert choose_backend(backend, "float32", gpu).runner == ("torch", "float32")
    with pytest.raises(InvalidInput, match="runs on CPUs, not on the device 'cuda:0'"):
        choose_backend("openvino", "float32", gpu)


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({"torch": 1.0}, "torch"),
        ({"torch": 1.0, "openvino": 0.95}, "torch"),  # nearly equal: the reference
        ({"torch": 1.0, "openvino": 0.7}, "openvino"),
        ({"torch": 1.0, "openvino": 2.0}, "torch"),
    ],
)
def test_auto_leaves_the_reference_only_where_it_is_worth_it(seconds: dict[str, float], chosen: str) -> None:
    assert fastest({Runner(name, "float32"): each for name, each in seconds.items()}).backend == chosen


def test_auto_takes_the_one_that_was_fastest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_seconds", lambda forwards, _: dict(zip(forwards, (1.0, 0.5), strict=True)))
    base = write_base(tmp_path / "base", 0)
    assert polyrank.load(base, backend="auto").backend == "openvino"


def test_auto_measures_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_base(tmp_path / "base", 0)
    for torch_seconds in (1.0, 0.1):  # later something else runs beside it
        monkeypatch.setattr(
            choice, "_seconds", lambda forwards, _, torch=torch_seconds: dict(zip(forwards, (torch, 0.5), strict=True))
        )
        assert polyrank.load(base, backend="auto").backend == "openvino"


def spoil(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[NDArray[Any], int], NDArray[Any]]) -> None:
    """Let OpenVINO's outputs be wrong; `wrong` is told the width of the batch."""
    right = openvino_backend._Compiled.__call__

    def outputs(self: openvino_backend._Compiled, batch: TokenBatch) -> tuple[NDArray[Any], ...]:
        return tuple(wrong(each, batch.ids.shape[1]) for each in right(self, batch))

    monkeypatch.setattr(openvino_backend._Compiled, "__call__", outputs)
    monkeypatch.setattr(choice, "fastest", lambda seconds: min(seconds, key=lambda runner: runner.backend == "torch"))


@pytest.mark.parametrize(
    "wrong", [lambda each, _: each * 1.001, lambda each, width: each * (np.nan, 1)[width < 60]], ids=["off", "nan"]
)
def test_auto_takes_none_whose_outputs_are_not_those_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[NDArray[Any], int], NDArray[Any]]
) -> None:
    base = write_base(tmp_path / "base", 0)
    spoil(monkeypatch, lambda each, _: each)
    assert polyrank.load(base, backend="auto").backend == "openvino"
    spoil(monkeypatch, wrong)
    assert polyrank.load(base, backend="auto").backend == "torch"


def test_a_later_part_that_is_not_as_by_torch_is_left_to_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_base(tmp_path / "base", 0)
    spoil(monkeypatch, lambda each, _: each)
    config = ModelConfig(architecture="bi", base_name="", max_context_tokens=40, max_candidate_tokens=16)
    ranker = polyrank.from_base(str(base), config, "auto", "float32")
    assert isinstance(ranker, LateRanker)
    spoil(monkeypatch, lambda each, _: each * 2)
    expected = polyrank.from_base(str(base), config, "torch")
    assert isinstance(expected, LateRanker)
    np.testing.assert_array_equal(ranker.encode_contexts([[2, 5, 3]]), expected.encode_contexts([[2, 5, 3]]))


@pytest.mark.parametrize("factor", [np.nan, 1.001])
def test_what_gives_other_numbers_than_torch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    spoil(monkeypatch, lambda each, width: each * factor if width > 48 else each)
    base = write_base(tmp_path / "base", 0)
    with pytest.raises(InvalidInput, match=r"^the numbers of openvino in float32 are wrong .* use the back-end torch$"):
        polyrank.load(base, backend="openvino")


@pytest.mark.parametrize("broken", ["openvino.Core.compile_model", "openvino.frontend.FrontEndManager"])
def test_where_openvino_fails_torch_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("Exception from core.cpp:\n\nno such thing\n")

    monkeypatch.setattr(broken, fail)
    base = write_base(tmp_path / "base", 0)
    assert polyrank.load(base, backend="auto").backend == "torch"
    with pytest.raises(InvalidInput, match=r"^OpenVINO cannot run .* use the back-end torch: no such thing$"):
        polyrank.load(base, backend="openvino")


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_torch_in_16_bits_is_near_to_float32_and_leaves_the_weights_alone(tmp_path: Path, precision: str) -> None:
    base = write_base(tmp_path / "base", 0)
    config = ModelConfig(architecture="poly", base_name="", n_codes=4, max_context_tokens=40, max_candidate_tokens=16)
    torch.manual_seed(0)
    ranker = polyrank.from_base(str(base), config, "torch", precision)
    assert isinstance(ranker, LateRanker)
    assert (ranker.backend, ranker.precision) == ("torch", precision)
    reference = LateForwards(Network.of(ranker.encoder), Compiler(TorchBackend(CPU)))
    texts = [[2, 5, 3], list(range(2, 30))]
    both = [(ranker.encode_candidates(texts), reference.encode_candidates(texts))]
    both += zip(ranker.encode_contexts(texts), reference.encode_contexts(texts), strict=True)
    for ours, theirs in both:
        assert ours.dtype == np.float32
        assert 0 < np.linalg.norm(ours - theirs) / np.linalg.norm(theirs) < 0.02
    assert {each.dtype for each in ranker.encoder.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("backend", "precision", "why"),
    [
        ("openvino-int8", "float32", "openvino-int8 has a precision of its own: leave precision at auto"),
        ("torch", "bf16", "unknown precision 'bf16'; use one of auto, float32, float16, bfloat16"),
        ("openvino-bf16", "auto", "unknown back-end 'openvino-bf16'; use one of auto, torch, openvino, openvino-int8"),
    ],
)
def test_what_does_not_go_together_is_refused(backend: str, precision: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{why}$"):
        polyrank.load("nothing here", backend=backend, precision=precision)
