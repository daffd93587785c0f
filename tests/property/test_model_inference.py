"""What holds for every back-end: torch's outputs, whatever the lengths, the batch and the padding."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_int8 import quantised_checkpoint
from tiny_training import TWO_STAGES
from warm_python import WarmPython

from polyrank.model.architectures.batching import TokenBatch
from polyrank.model.config import ModelConfig
from polyrank.model.inference import openvino_backend, trials
from polyrank.model.inference.network import Forward
from polyrank.model.inference.parts import NetworkPart
from polyrank.model.inference.torch_backend import TorchBackend
from polyrank.model.rankers.load import load
from polyrank.model.rankers.networks import CrossRanker, VectorRanker, from_base
from polyrank.model.text.sequences import Pairs

LONGEST = 40
# Norm of the difference as a share of the norm: how far these models are off, and room for other processors.
APART = {"float32": 1e-5, "float16": 0.01, "bfloat16": 0.06, "int8": 0.1}
KINDS: list[dict[str, Any]] = [
    {"architecture": "bi", "reduction": "mean"},
    *({"architecture": "poly", "context_vectors": kind, "n_codes": 6} for kind in ("codes", "first", "last")),
    {"architecture": "poly", "context_vectors": "last+first", "n_codes": 6, "normalize": True, "score_scale": 20.0},
]

SIGNALLED = """
import gc, os, signal, sys
from polyrank.model.config import ModelConfig
from polyrank.model.rankers.load import load
from polyrank.model.rankers.networks import from_base

config = ModelConfig(base_name="", architecture="bi", reduction="mean", max_context_tokens=40, max_candidate_tokens=16)
models = [from_base(sys.argv[1], config, "openvino") for _ in range(2)]
while models:
    models.pop(0)
    gc.collect()
signal.signal(signal.SIGUSR1, lambda *_: print("heard"))
os.kill(os.getpid(), signal.SIGUSR1)
"""
LOADED = """
import ctypes, gc, sys
from pathlib import Path
from polyrank.model.config import ModelConfig
from polyrank.model.rankers.load import load
from polyrank.model.rankers.networks import from_base

config = ModelConfig(base_name="", architecture="bi", reduction="mean", max_context_tokens=40, max_candidate_tokens=16)
for _ in range(7):
    from_base(sys.argv[1], config, "openvino").encode_contexts([[2, 3]])
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    print(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20)
"""

token_lists = st.lists(st.lists(st.integers(1, 43), min_size=1, max_size=LONGEST), min_size=1, max_size=9)


def loaded(base: Path, backend: str, precision: str = "float32", **fields: Any) -> Any:
    torch.manual_seed(0)
    config = ModelConfig(base_name="", max_context_tokens=LONGEST, max_candidate_tokens=16, **fields)
    if backend != "torch" and not openvino_backend.is_supported(precision):
        pytest.skip(f"OpenVINO cannot run in {precision} here")
    if precision != "int8":
        return from_base(str(base), config, backend, precision)
    ranker = from_base(str(base), config)
    with TemporaryDirectory() as directory:
        ranker.save(Path(directory))
        return load(quantised_checkpoint(Path(directory)), backend=backend, precision=precision)


def apart(ours: np.ndarray, theirs: np.ndarray) -> float:
    assert ours.shape == theirs.shape
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


@pytest.mark.parametrize("fields", KINDS, ids=lambda fields: fields.get("context_vectors", "bi"))
def test_openvino_gives_what_torch_gives_for_every_kind_of_context_vectors(base: Path, fields: dict[str, Any]) -> None:
    ours, theirs = (loaded(base, backend, **fields) for backend in ("openvino", "torch"))
    assert isinstance(ours, VectorRanker)

    @settings(max_examples=cases(8), deadline=None)
    @given(token_lists)
    def agree(texts: list[list[int]]) -> None:
        for one, other in zip(ours.encode_contexts(texts), theirs.encode_contexts(texts), strict=True):
            assert apart(one, other) < APART["float32"]

    agree()
    # A context of fewer tokens than vectors, beside a longer one.
    short, long = ours.encode_contexts([[2, 5, 3], list(range(2, 30))])
    assert len(short) == (
        min(3, len(long)) if fields.get("context_vectors") in ("first", "last", "last+first") else len(long)
    )


@pytest.mark.parametrize("architecture", TWO_STAGES)
def test_openvino_passes_its_trial_where_it_pads_further_than_torch(base: Path, architecture: str, monkeypatch) -> None:
    monkeypatch.setattr(trials, "_USUAL", ([23], [47, 30, 5]))
    ours, theirs = (loaded(base, backend, architecture=architecture) for backend in ("openvino", "torch"))
    texts = [list(range(2, 2 + length)) for length in (15, 7)]
    for one, other in zip(ours.represent_contexts(texts), theirs.represent_contexts(texts), strict=True):
        made = [ranker.represent_candidate_batch(texts) for ranker in (ours, theirs)]
        scores = [ranker.late_scores(each, made[1]) for ranker, each in ((ours, one), (theirs, other))]
        assert apart(made[0].first, made[1].first) < APART["float32"]
        assert apart(scores[0], scores[1]) < 10 * APART["float32"]


@pytest.mark.parametrize("precision", list(APART))
def test_a_text_has_the_same_vector_alone_and_in_any_company(base: Path, precision: str) -> None:
    ours = loaded(base, "openvino", precision, architecture="bi", reduction="mean")
    theirs = loaded(base, "torch", architecture="bi", reduction="mean")

    @settings(max_examples=cases(8), deadline=None)
    @given(token_lists)
    def agree(texts: list[list[int]]) -> None:
        together = ours.encode_candidates(texts)
        assert apart(together, theirs.encode_candidates(texts)) < APART[precision]
        alone = np.concatenate([ours.encode_candidates([text]) for text in texts])
        assert apart(together, alone) < 1e-5

    agree()


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize(
    "fields",
    [*KINDS, {"architecture": "cross"}, {"architecture": "uni"}],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_below_float32_outputs_are_the_same_to_the_last_bit_alone_and_in_any_batch(
    base: Path, precision: str, fields: dict[str, Any]
) -> None:
    ranker = loaded(base, "openvino", precision, **fields)

    def outputs(texts: list[list[int]]) -> list[np.ndarray]:
        if isinstance(ranker, CrossRanker):
            pairs = Pairs(texts, [text[:16] for text in texts], list(range(len(texts))))
            return [*ranker.score_pair_batch(pairs)]
        codes = [each.codes for each in ranker.represent_context_batch(texts)]
        return [*codes, *ranker.represent_candidate_batch([text[:16] for text in texts]).first]

    @settings(max_examples=cases(15), deadline=None)
    @given(token_lists)
    def agree(texts: list[list[int]]) -> None:
        alone = [outputs([text]) for text in texts]
        expected = [each for side in zip(*alone, strict=True) for each in side]
        for one, other in zip(outputs(texts), expected, strict=True):
            np.testing.assert_array_equal(one, other)

    agree()


@pytest.mark.parametrize("architecture", ["cross", "uni"])
def test_pairs_are_scored_as_by_torch_in_any_company(base: Path, architecture: str) -> None:
    ours, theirs = (loaded(base, backend, architecture=architecture) for backend in ("openvino", "torch"))
    assert isinstance(ours, CrossRanker)
    rng = np.random.default_rng(0)
    contexts, texts = ([rng.integers(1, 44, n).tolist() for n in lengths] for lengths in ((1, 12, 40), range(1, 13)))
    pairs = Pairs(contexts, texts, [at % 3 for at in range(12)])
    scores = ours.score_pairs(pairs)
    np.testing.assert_allclose(scores, theirs.score_pairs(pairs), rtol=0, atol=1e-5)
    alone = [ours.score_pairs(pairs.take([at]))[0] for at in range(12)]
    np.testing.assert_allclose(scores, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("fields", [*KINDS, {"architecture": "cross"}, {"architecture": "cross", "residual": True}])
def test_a_batch_that_is_ready_goes_through_in_one_forward_and_gives_the_same(
    base: Path, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    forwards: list[int] = []
    right = TorchBackend.compile

    def counted(self: TorchBackend, part: NetworkPart) -> Forward:
        forward = right(self, part)

        def run(batch: TokenBatch) -> tuple[np.ndarray, ...]:
            forwards.append(len(batch.ids))
            return forward(batch)

        return run

    monkeypatch.setattr(TorchBackend, "compile", counted)
    ranker = loaded(base, "torch", **fields)
    texts = [list(range(2, 2 + n)) for n in (1, LONGEST, 3, 30, 30)]  # of lengths that several batches would suit
    if isinstance(ranker, CrossRanker):
        pairs = Pairs(texts[:2], [each[:16] for each in texts], [0, 1, 0, 1, 0])
        [*ours], [*theirs] = ranker.score_pair_batch(pairs), ranker.score_pairs(pairs)
    else:
        ours = [each.codes for each in ranker.represent_context_batch(texts)]
        theirs = ranker.encode_contexts(texts)
        made = ranker.represent_candidate_batch(texts).first
        np.testing.assert_allclose(made, ranker.encode_candidates(texts), rtol=0, atol=1e-5)
    assert forwards[0] == len(texts)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_first_contexts_of_several_threads_compile_once(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranker = loaded(base, "torch", architecture="bi", reduction="mean")
    compiled, again, right = [], threading.Event(), TorchBackend.compile

    def compile_slowly(self: TorchBackend, part: NetworkPart) -> Forward:
        compiled.append(part)
        if len(compiled) > 1:
            again.set()
        again.wait(0.1)  # long enough for another thread to begin, were it let
        return right(self, part)

    monkeypatch.setattr(TorchBackend, "compile", compile_slowly)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ranker.encode_contexts, [[[2, 3]]] * 4))
    assert len(compiled) == 1


def test_threads_may_share_a_model(base: Path) -> None:
    ranker = loaded(base, "openvino", architecture="bi", reduction="mean")
    texts = [list(range(2, 3 + n)) for n in range(30)]
    expected = [ranker.encode_candidates([text]) for text in texts]
    barrier = threading.Barrier(4)

    def work(_: int) -> list[np.ndarray]:
        barrier.wait()
        return [ranker.encode_candidates([text]) for text in texts]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(work, range(4)):
            np.testing.assert_array_equal(found, expected)


def said(python: WarmPython, script: str, base: Path) -> str:
    process = python.start("-c", script, base)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def test_a_signal_after_models_have_gone_is_handled(warm_python: WarmPython, base: Path) -> None:
    """OpenVINO sets a stack for signals; a process that was left with one that is gone would end at the next."""
    assert said(warm_python, SIGNALLED, base) == "heard\n"


def test_a_model_that_has_gone_leaves_no_memory_behind(warm_python: WarmPython, base: Path) -> None:
    """What torch keeps of a traced model was 6 MiB each, for the tiny ones, too."""
    mebibytes = [float(line) for line in said(warm_python, LOADED, base).splitlines()]
    assert mebibytes[-1] - mebibytes[1] < 10
