"""Back-ends by their names, and the choice of `auto`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny import write_base, write_checkpoint
from tiny_int8 import on_any_processor, quantised_checkpoint

import polyrank
from polyrank.model import processor
from polyrank.model.architectures.batching import TokenBatch, pad
from polyrank.model.checkpoint.quantised import Quantisation
from polyrank.model.checkpoint.read import begin_from_base
from polyrank.model.config import ModelConfig
from polyrank.model.errors import InvalidInput
from polyrank.model.inference import auto, openvino_backend, trials
from polyrank.model.inference.auto import Chooser, candidates, fastest
from polyrank.model.inference.compiler import Compiler
from polyrank.model.inference.network import Forward, Network
from polyrank.model.inference.parts import PARTS, NetworkPart
from polyrank.model.inference.passes import VectorForwards
from polyrank.model.inference.runners import Runner
from polyrank.model.inference.torch_backend import TorchBackend
from polyrank.model.rankers.load import load_classifier
from polyrank.model.rankers.networks import VectorRanker
from polyrank.model.text.assembly import Assembler
from polyrank.model.text.tokenizer import Tokenizer

CPU = "cpu"


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of the process may have measured already."""
    monkeypatch.setattr(auto, "_measured", {})


def let_last_be_fastest(monkeypatch: pytest.MonkeyPatch, first: float = 1.0) -> None:
    """Let the first back-end take `first` seconds, and each other half as long as the one before."""
    monkeypatch.setattr(
        auto, "measured", lambda forwards, _: {each: (first, 0.5, 0.25)[at] for at, each in enumerate(forwards)}
    )


def runners(backend: str, precision: str, device: str) -> list[str]:
    return [" ".join(each.runner) for each in candidates(backend, precision, device)]


def test_a_missing_package_is_named_and_auto_does_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_backend, "is_installed", lambda: False)
    base = write_base(tmp_path / "base", 0)
    with pytest.raises(InvalidInput, match=r"^the back-end openvino needs the package openvino: pip install openvino"):
        polyrank.load(base, backend="openvino")
    assert polyrank.load(base, backend="auto").backend == "torch"


def test_a_precision_that_the_processor_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_backend, "_capabilities", lambda: ["FP32"])
    with pytest.raises(InvalidInput, match="this processor does not compute in float16"):
        candidates("openvino", "float16", CPU)


def test_a_gpu_is_for_torch() -> None:
    gpu = "cuda:0"
    for backend in ("auto", "torch"):
        assert runners(backend, "float32", gpu) == ["torch float32"]
        assert runners(backend, "auto", gpu) == ["torch float32", "torch bfloat16", "torch float16"]
    with pytest.raises(InvalidInput, match="runs on CPUs, not on the device 'cuda:0'"):
        candidates("openvino", "float32", gpu)


@pytest.mark.parametrize(("seconds", "chosen"), [
    ({"torch": 1.0}, "torch"),
    ({"torch": 1.0, "openvino": 0.95}, "torch"),  # nearly equal: the reference
    ({"torch": 1.0, "openvino": 0.7}, "openvino"),
    ({"torch": 1.0, "openvino": 2.0}, "torch"),
])  # fmt: skip
def test_auto_leaves_the_reference_only_where_it_is_worth_it(seconds: dict[str, float], chosen: str) -> None:
    assert fastest({Runner(name, "float32"): each for name, each in seconds.items()}).backend == chosen


@pytest.mark.slow
def test_auto_measures_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_base(tmp_path / "base", 0)
    for torch_seconds in (1.0, 0.1):  # later something else runs beside it
        let_last_be_fastest(monkeypatch, torch_seconds)
        assert polyrank.load(base, backend="auto").backend == "openvino"


def spoil(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[NDArray[Any], int], NDArray[Any]]) -> None:
    """Let OpenVINO's outputs be wrong; `wrong` is told the width of the batch."""
    right = openvino_backend._Compiled.__call__

    def outputs(self: openvino_backend._Compiled, batch: TokenBatch) -> tuple[NDArray[Any], ...]:
        return tuple(wrong(each, batch.ids.shape[1]) for each in right(self, batch))

    monkeypatch.setattr(openvino_backend._Compiled, "__call__", outputs)
    monkeypatch.setattr(auto, "fastest", lambda seconds: min(seconds, key=lambda runner: runner.backend == "torch"))


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_later_part_that_is_not_as_by_torch_is_left_to_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_base(tmp_path / "base", 0)
    spoil(monkeypatch, lambda each, _: each)
    config = ModelConfig(architecture="bi", base_name="", max_context_tokens=40, max_candidate_tokens=16)
    ranker = polyrank.from_base(str(base), config, "auto", "float32")
    assert isinstance(ranker, VectorRanker)
    spoil(monkeypatch, lambda each, _: each * 2)
    expected = polyrank.from_base(str(base), config, "torch")
    assert isinstance(expected, VectorRanker)
    np.testing.assert_array_equal(ranker.encode_contexts([[2, 5, 3]]), expected.encode_contexts([[2, 5, 3]]))


@pytest.mark.slow
@pytest.mark.parametrize("factor", [np.nan, 1.001])
def test_what_gives_other_numbers_than_torch_is_refused(tmp_path: Path, monkeypatch, factor: float) -> None:
    spoil(monkeypatch, lambda each, width: each * factor if width > 48 else each)
    base = write_base(tmp_path / "base", 0)
    with pytest.raises(InvalidInput, match=r"^the numbers of openvino in float32 are wrong .* use the back-end torch$"):
        polyrank.load(base, backend="openvino")


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["openvino.Core.compile_model", "openvino.frontend.FrontEndManager"])
def test_where_openvino_fails_torch_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("Exception from core.cpp:\n\nno such thing\n")

    monkeypatch.setattr(broken, fail)
    base = write_base(tmp_path / "base", 0)
    assert polyrank.load(base, backend="auto").backend == "torch"
    with pytest.raises(InvalidInput, match=r"^OpenVINO cannot run .* use the back-end torch: no such thing$"):
        polyrank.load(base, backend="openvino")


@pytest.mark.parametrize(("backend", "precision", "expected"), [
    ("auto", "auto", ["torch float32", "openvino float32", "openvino bfloat16"]),
    ("auto", "float32", ["torch float32", "openvino float32"]),
    ("auto", "bfloat16", ["torch bfloat16", "openvino bfloat16"]),
    ("auto", "float16", ["torch float16"]),
    ("torch", "auto", ["torch float32"]),
    ("torch", "float16", ["torch float16"]),
    ("openvino", "auto", ["openvino float32", "openvino bfloat16"]),
    ("openvino", "bfloat16", ["openvino bfloat16"]),
])  # fmt: skip
def test_what_is_not_named_is_chosen_from_what_the_processor_computes_in(
    monkeypatch: pytest.MonkeyPatch, backend: str, precision: str, expected: list[str]
) -> None:
    monkeypatch.setattr(openvino_backend, "_capabilities", lambda: ["FP32", "BF16"])
    assert runners(backend, precision, CPU) == expected


@pytest.mark.parametrize(("backend", "precision", "expected"), [
    ("auto", "auto", ["torch float32", "openvino float32", "openvino bfloat16", "openvino int8"]),
    ("openvino", "auto", ["openvino float32", "openvino bfloat16", "openvino int8"]),
    ("auto", "int8", ["openvino int8"]),
    ("openvino", "int8", ["openvino int8"]),
    ("auto", "float32", ["torch float32", "openvino float32"]),
    ("torch", "auto", ["torch float32"]),
])  # fmt: skip
def test_int8_is_offered_for_what_was_quantised(monkeypatch, backend: str, precision: str, expected: list[str]) -> None:
    on_any_processor(monkeypatch)
    monkeypatch.setattr(openvino_backend, "_capabilities", lambda: ["FP32", "BF16", "INT8"])
    found = Quantisation({}, "")
    assert [" ".join(each.runner) for each in candidates(backend, precision, CPU, found)] == expected


@pytest.mark.parametrize(("machine", "flags", "able"), [
    ("x86_64", "flags : sse2 avx2 avx512_vnni", True), ("x86_64", "flags : sse2 avx_vnni avx2", True),
    ("x86_64", "flags : sse2 avx2 avx512f", False), ("aarch64", "Features : asimd", True), ("AMD64", None, False),
])  # fmt: skip
def test_int8_needs_a_processor_whose_sums_do_not_overflow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, flags: str | None, able: bool
) -> None:
    told = tmp_path / "cpuinfo"
    if flags is not None:
        told.write_text(flags)
    monkeypatch.setattr(processor, "_TOLD", told)
    processor.told.cache_clear()
    monkeypatch.setattr(openvino_backend, "_capabilities", lambda: ["FP32", "INT8"])
    monkeypatch.setattr("platform.machine", lambda: machine)
    try:
        assert openvino_backend.is_supported("int8") == able
    finally:
        processor.told.cache_clear()


def test_int8_is_refused_where_it_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_any_processor(monkeypatch)
    plain = write_checkpoint(tmp_path, "plain", seed=0, architecture="bi")
    with pytest.raises(InvalidInput, match=r"plain is not quantised, so it has no int8; run polyrank quantise first$"):
        polyrank.load(plain, backend="auto", precision="int8")
    why = "which does not run in int8; use another precision$"
    with pytest.raises(InvalidInput, match=f"base is a base model, {why}"):
        polyrank.load(write_base(tmp_path / "base", 0), backend="auto", precision="int8")
    with pytest.raises(InvalidInput, match=f"classes is a classifier, {why}"):
        load_classifier(
            write_checkpoint(tmp_path, "classes", seed=0, architecture="bi", labels=("a", "b")), "cpu", "auto", "int8"
        )
    config = ModelConfig(architecture="bi", base_name="", max_context_tokens=40, max_candidate_tokens=16)
    with pytest.raises(InvalidInput, match=r"^the model is not quantised, so it has no int8; run polyrank quantise"):
        polyrank.from_base(str(tmp_path / "base"), config, "openvino", "int8")
    with pytest.raises(InvalidInput, match=r"^int8 runs on CPUs, not on the device 'cuda'"):
        candidates("auto", "int8", "cuda", Quantisation({}, ""))


@pytest.fixture
def quantised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint whose int8 is the fastest here."""
    on_any_processor(monkeypatch)
    monkeypatch.setattr(
        auto, "measured", lambda forwards, _: {each: 1 + 9 * (each.precision != "int8") for each in forwards}
    )
    return quantised_checkpoint(write_checkpoint(tmp_path, "bi", seed=0, architecture="bi"))


@pytest.mark.slow
def test_auto_takes_int8_that_the_checkpoint_proves_though_it_is_not_near(quantised: Path, tmp_path: Path) -> None:
    uni = quantised_checkpoint(write_checkpoint(tmp_path, "uni", seed=0, architecture="uni"))
    for path in (quantised, uni):
        ranker = polyrank.load(path, backend="auto", precision="auto")
        assert (ranker.backend, ranker.precision) == ("openvino", "int8")
        assert polyrank.load(path, backend="torch", precision="auto").precision == "float32"


@pytest.mark.slow
@pytest.mark.parametrize(("proof", "why"), [
    ({"recall_change": (-0.004, -0.005, -0.003)}, "R@1 changes by -0.40 points, more than -0.3"),
    ({"made_for": "another"}, "was changed after it was quantised; run polyrank quantise again"),
])  # fmt: skip
def test_auto_leaves_out_int8_without_a_proof_and_says_so_once(
    quantised: Path, proof: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    quantised_checkpoint(quantised, **proof)
    assert polyrank.load(quantised, backend="auto", precision="auto").precision != "int8"
    [told] = [record for record in caplog.records if record.message == "int8 is left out"]
    assert told.fields["why"].endswith(why)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["bi", "cross", "uni"])
def test_auto_takes_no_int8_that_is_unlike_float32(quantised: Path, tmp_path: Path, architecture: str) -> None:
    path = write_checkpoint(tmp_path, "mine", seed=0, architecture=architecture)
    ranker = polyrank.load(quantised_checkpoint(path, reach=0.001), backend="auto", precision="auto")
    assert ranker.precision == "float32"
    assert ranker.choice.refused
    for why in ranker.choice.refused.values():
        assert why.startswith("its numbers are like float32's by ")


@pytest.mark.slow
def test_auto_takes_no_int8_whose_outputs_depend_on_their_batch(quantised: Path, monkeypatch) -> None:
    monkeypatch.setattr(trials, "_is_same_together", lambda *_: False)
    ranker = polyrank.load(quantised, backend="auto", precision="auto")
    assert ranker.precision == "float32"
    assert ranker.choice.refused["openvino int8, candidates"] == "a text's output depends on its batch"


def test_a_precision_that_only_torch_has_here_is_warned_of(monkeypatch, caplog) -> None:
    monkeypatch.setattr(openvino_backend, "_capabilities", lambda: ["FP32", "BF16"])
    candidates("auto", "bfloat16", CPU)
    assert not caplog.records
    candidates("auto", "float16", CPU)
    assert caplog.messages == ["a slow precision was asked for"]


Wrong = Callable[[NDArray[Any]], NDArray[Any]]


class FakeBackend:
    """A fast back-end in bfloat16: each text's output by torch in float32, alone, and then made wrong."""

    def __init__(self, wrong: Wrong) -> None:
        self.runner, self.token_budget = Runner("fake", "bfloat16"), 1000
        self._wrong = wrong

    def compile(self, part: NetworkPart) -> Forward:
        right = TorchBackend(CPU).compile(part)

        def run(batch: TokenBatch) -> tuple[NDArray[Any], ...]:
            lengths = batch.mask.sum(1).tolist()
            rows = [right(TokenBatch(*(field[[at], :n] for field in batch))) for at, n in enumerate(lengths)]
            first, *others = (np.concatenate(each) for each in zip(*rows, strict=True))
            return self._wrong(first), *others

        return run


def chosen(
    monkeypatch: pytest.MonkeyPatch, base: Path, part: str, wrong: Wrong, is_asked_for: bool = False
) -> tuple[Chooser, Runner]:
    """Let `auto` choose between torch and the fake for a part of a model; returns who chose, and what."""
    let_last_be_fastest(monkeypatch)
    torch.manual_seed(0)
    kind: dict[str, Any] = {"architecture": "cross"} if part == "pairs" else {"architecture": "poly", "n_codes": 4}
    config = ModelConfig(base_name="", max_context_tokens=40, max_candidate_tokens=16, **kind)
    encoder, _ = begin_from_base(str(base), config)
    assembler = Assembler(Tokenizer(base / "tokenizer.json"), config)
    chooser = Chooser([TorchBackend(CPU), FakeBackend(wrong)], CPU, assembler, is_asked_for)
    return chooser, chooser.choose(part, PARTS[part](encoder))[0]


def turned(vectors: NDArray[Any]) -> NDArray[Any]:
    """One vector in a new direction, by an angle with a cosine of 0.999."""
    away = np.zeros_like(vectors)
    first = vectors.reshape(-1, vectors.shape[-1])[0]
    away.reshape(-1, vectors.shape[-1])[0] = np.roll(first, 1) * 0.09
    return vectors + away


_drawn = np.random.default_rng(0)
# Sixteen conversations of two turns, in the words that tiny models know.
WORDS = tuple(
    tuple(" ".join(f"w{word}" for word in _drawn.integers(40, size=_drawn.integers(3, 12))) for _ in range(2))
    for _ in range(16)
)
BATCH = "a text's output depends on its batch"


@pytest.mark.slow
@pytest.mark.parametrize(("part", "wrong", "why"), [
    *((part, lambda each: each, None) for part in ("contexts", "candidates", "pairs")),
    *((part, lambda each: each + 1e-6 * len(each), BATCH) for part in ("contexts", "candidates", "pairs")),
    *((part, lambda each: each * np.nan, "its numbers are not finite") for part in ("candidates", "pairs")),
    ("contexts", turned, "a vector's cosine with that of float32 is"),
    ("candidates", turned, "a vector's cosine with that of float32 is"),
    ("candidates", lambda each: each * 1.02, "a vector's length is 2.0% off"),
    ("pairs", lambda each: np.round(each, 1), "scores have a rank correlation of"),
    ("pairs", lambda each: -each, "scores have a rank correlation of -1.0"),
    ("pairs", lambda each: each * 1.5, "scores are off by"),
])  # fmt: skip
def test_auto_refuses_a_coarser_precision_that_changes_what_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, wrong: Wrong, why: str | None
) -> None:
    monkeypatch.setattr(trials, "CONVERSATIONS", WORDS)
    base = write_base(tmp_path / "base", 0)
    chooser, runner = chosen(monkeypatch, base, part, wrong)
    assert chooser.choice.milliseconds == {"torch float32": 1000.0, "fake bfloat16": 500.0}
    if why is None:
        assert (runner, chooser.choice.refused) == (("fake", "bfloat16"), {})
    else:
        assert runner == ("torch", "float32")
        [(name, told)] = chooser.choice.refused.items()
        assert name == f"fake bfloat16, {part}"
        assert told.startswith(why)
    assert chosen(monkeypatch, base, part, wrong, is_asked_for=True)[1] == ("fake", "bfloat16")


def test_a_later_part_that_is_refused_runs_otherwise_and_is_told(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(trials, "CONVERSATIONS", WORDS)
    base = write_base(tmp_path / "base", 0)
    chooser, first = chosen(monkeypatch, base, "candidates", lambda each: turned(each) if each.ndim == 3 else each)
    config = ModelConfig(architecture="poly", base_name="", n_codes=4, max_context_tokens=40, max_candidate_tokens=16)
    encoder, _ = begin_from_base(str(base), config)
    second, forward = chooser.choose("contexts", PARTS["contexts"](encoder))
    assert (first, second) == (("fake", "bfloat16"), ("torch", "float32"))
    assert list(chooser.choice.refused) == ["fake bfloat16, contexts"]
    assert "back-end refused" in caplog.text
    batch = pad([[2, 5, 3]], 0)
    expected = TorchBackend(CPU).compile(PARTS["contexts"](encoder))(batch)
    np.testing.assert_array_equal(forward(batch)[0], expected[0])


def test_what_is_clearly_slower_is_dropped_after_the_first_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, now = dict.fromkeys("abc", 0), [0.0]
    monkeypatch.setattr(auto.time, "perf_counter", lambda: now[0])

    def forward(name: str, seconds: float) -> Forward:
        def run(_: TokenBatch) -> tuple[NDArray[Any], ...]:
            calls[name] += 1
            now[0] += seconds
            return ()

        return run

    took = {"a": 0.05, "b": 0.001, "c": 0.001}
    forwards = {Runner(name, "float32"): forward(name, seconds) for name, seconds in took.items()}
    found = auto.measured(forwards, [pad([[1]], 0)])
    assert calls["a"] == auto._FIRST_ROUNDS * auto._CALLS < calls["c"]
    assert found[Runner("a", "float32")] == pytest.approx(0.05)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_torch_in_16_bits_is_near_to_float32_and_leaves_the_weights_alone(tmp_path: Path, precision: str) -> None:
    base = write_base(tmp_path / "base", 0)
    config = ModelConfig(architecture="poly", base_name="", n_codes=4, max_context_tokens=40, max_candidate_tokens=16)
    torch.manual_seed(0)
    ranker = polyrank.from_base(str(base), config, "torch", precision)
    assert isinstance(ranker, VectorRanker)
    assert (ranker.backend, ranker.precision) == ("torch", precision)
    reference = VectorForwards(Network.of(ranker.encoder), Compiler(TorchBackend(CPU)))
    texts = [[2, 5, 3], list(range(2, 30))]
    both = [(ranker.encode_candidates(texts), reference.encode_candidates(texts))]
    both += zip(ranker.encode_contexts(texts), reference.encode_contexts(texts), strict=True)
    for ours, theirs in both:
        assert ours.dtype == np.float32
        assert 0 < np.linalg.norm(ours - theirs) / np.linalg.norm(theirs) < 0.02
    assert {each.dtype for each in ranker.encoder.parameters()} == {torch.float32}


@pytest.mark.parametrize(("backend", "precision", "why"), [
    ("torch", "int8", "torch does not compute in int8; use openvino or auto"),
    ("torch", "bf16", "unknown precision 'bf16'; use one of auto, float32, float16, bfloat16, int8"),
    ("openvino-bf16", "auto", "unknown back-end 'openvino-bf16'; use one of auto, torch, openvino"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(backend: str, precision: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{why}$"):
        polyrank.load("nothing here", backend=backend, precision=precision)
