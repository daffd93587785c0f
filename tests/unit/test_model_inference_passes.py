"""Forward passes of rankers, residual Cross-encoders among them."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny import CLS, SEP, write_base, write_checkpoint
from torch import Tensor

import polyrank
from polyrank.model import threads
from polyrank.model.architectures.attention import poly_scores
from polyrank.model.architectures.backbone import TensorBatch
from polyrank.model.architectures.batching import joined, pad
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.vector import VectorEncoder
from polyrank.model.checkpoint.files import CONFIG_FILE, read_config
from polyrank.model.checkpoint.read import begin_from_base
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.inference import openvino_backend, passes
from polyrank.model.inference.network import Network
from polyrank.model.inference.passes import VectorForwards
from polyrank.model.rankers.load import load_cross
from polyrank.model.rankers.networks import VectorRanker
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.text.sequences import Pairs


def tensors(state: Any) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    return [] if state is None else [each for field in state for each in tensors(field)]


@pytest.mark.parametrize("name", [name for name, row in ARCHITECTURES.items() if row.embeds and not row.by_vectors])
def test_what_was_kept_is_compared_where_the_network_is(name: str, tmp_path: Path, monkeypatch) -> None:
    ranker = polyrank.load(write_checkpoint(tmp_path, name, 0, architecture=name))
    assert isinstance(ranker, VectorRanker)
    [context], kept = ranker.represent_contexts([[2, 5, 6, 3]]), ranker.represent_candidates([[2, 5, 3], [2, 6, 7, 3]])
    seen: list[str] = []

    def late_scores(*states: Any) -> Tensor:
        seen.extend(each.device.type for each in tensors(states))
        return torch.tensor([[1.0, 2.0]])

    ranker.encoder.to("meta")
    monkeypatch.setattr(ranker.encoder, "late_scores", late_scores)
    assert ranker.late_scores(context, kept).tolist() == [1, 2]
    assert len(seen) >= 3
    assert set(seen) == {"meta"}


LONG = [CLS, *range(10, 30), SEP]
PAIRS = Pairs(
    [[CLS, 5, SEP], LONG], [[CLS, 7, SEP], LONG[:12], [CLS, 7, SEP], [CLS, 8, 9, SEP]], [0, 0, 1, 1], prefix=1
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path, "residual", 3, architecture="cross", residual=True, n_codes=3)


@pytest.fixture
def encoder(checkpoint: Path) -> CrossEncoder:
    loaded = load_cross(checkpoint).encoder
    assert loaded.poly is not None
    return loaded


def score(encoder: CrossEncoder, pairs: Pairs) -> torch.Tensor:
    """The sum that a residual Cross-encoder stands for, straight from its two modules."""
    poly, rows = encoder.poly, range(len(pairs.owners))
    codes = poly.encode_contexts(TensorBatch.of(pad(pairs.contexts, poly.context.pad_id))).first
    first = poly_scores(
        codes, poly.encode_candidates(TensorBatch.of(pad(pairs.candidates, poly.candidate.pad_id))).first
    )
    return first[pairs.owners, rows] + encoder.joint_scores(TensorBatch.of(joined(pairs, encoder.encoder.pad_id)))


def test_no_gradient_and_no_dropout_reach_the_poly_encoder(encoder: CrossEncoder) -> None:
    encoder.train()
    assert encoder.encoder.training
    assert not any(each.training for each in encoder.poly.modules())
    score(encoder, PAIRS).sum().backward()
    assert encoder.head.weight.grad is not None
    assert all(each.grad is None and not each.requires_grad for each in encoder.poly.parameters())
    assert not encoder.eval().encoder.training


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_a_backend_scores_pairs_of_several_contexts_as_the_encoder_does(
    encoder: CrossEncoder, checkpoint: Path, backend: str
) -> None:
    if backend != "torch" and not openvino_backend.is_installed():
        pytest.skip("OpenVINO is not installed")
    served = load_cross(checkpoint, backend=backend)
    with torch.inference_mode():
        expected = score(encoder, PAIRS).numpy()
    for _ in range(2):  # the contexts are known the second time
        np.testing.assert_allclose(served.score_pairs(PAIRS), expected, rtol=0, atol=1e-5)
        alone = np.concatenate([served.score_pairs(PAIRS.take([each])) for each in range(4)])
        np.testing.assert_allclose(alone, expected, rtol=0, atol=1e-5)


def test_a_context_is_encoded_once_for_all_batches_of_its_candidates(checkpoint: Path, monkeypatch) -> None:
    served, seen = load_cross(checkpoint), list[list[int]]()
    encode = VectorForwards.encode_contexts

    def counted(forwards: VectorForwards, contexts: list[list[int]]) -> list[NDArray[np.float32]]:
        seen.extend(contexts)
        return encode(forwards, contexts)

    monkeypatch.setattr(VectorForwards, "encode_contexts", counted)
    monkeypatch.setattr(passes, "_KNOWN_CONTEXTS", 2)
    for position in (0, 1, 2, 3):
        served.score_pairs(PAIRS.take([position]))
    assert seen == PAIRS.contexts
    others = [Pairs([[CLS, number, SEP]], [[CLS, 7, SEP]], [0], prefix=1) for number in (30, 31)]
    for each in (*others, PAIRS.take([0])):
        served.score_pairs(each)
    assert seen[2:] == [*(each.contexts[0] for each in others), PAIRS.contexts[0]], "only the last two are remembered"


def test_a_second_stage_takes_as_many_threads_as_were_chosen_before_torch_was_imported(tmp_path, monkeypatch) -> None:
    before = torch.get_num_threads()
    config = read_config(write_checkpoint(tmp_path, "virt", 5, architecture="virt") / CONFIG_FILE)
    monkeypatch.setattr(threads, "_chosen", before + 1)
    try:
        passes.states_of(Network(config, pytest.fail), 16)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def late_encoder(tmp_path: Path) -> VectorEncoder:
    config = ModelConfig(architecture="bi", base_name="", max_context_tokens=40, max_candidate_tokens=16)
    made, _ = begin_from_base(str(write_base(tmp_path / "base", 0)), config)
    assert isinstance(made, VectorEncoder)
    return made.train()


def test_several_threads_read_it_once_and_only_where_they_need_it(late_encoder: VectorEncoder) -> None:
    reads = []

    def read() -> VectorEncoder:
        reads.append(threading.get_ident())
        time.sleep(0.05)
        return late_encoder

    network = Network(late_encoder.config, read, "a fingerprint")
    part = network.part("candidates")
    assert (part.name, part.identity, reads) == ("candidates", "a fingerprint", [])
    with ThreadPoolExecutor(4) as pool:
        found = [task.result() for task in [pool.submit(lambda: part.module().encoder) for _ in range(4)]]
    assert found == [late_encoder] * 4
    assert len(reads) == 1
    assert not any(module.training for module in late_encoder.modules())


def test_what_could_not_be_read_is_tried_again(late_encoder: VectorEncoder) -> None:
    mended: list[VectorEncoder] = []

    def read() -> VectorEncoder:
        if not mended:
            raise CheckpointInvalid("damaged")
        return mended[0]

    network = Network(late_encoder.config, read)
    with pytest.raises(CheckpointInvalid):
        _ = network.encoder
    mended.append(late_encoder)
    assert network.encoder is late_encoder
