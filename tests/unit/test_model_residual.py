"""What a residual Cross-encoder does beside adding two scores (tests/golden)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny import CLS, SEP, write_checkpoint

from polyrank.model.architectures.attention import poly_scores
from polyrank.model.architectures.batching import pad
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.inference import openvino_backend, passes
from polyrank.model.inference.passes import LateForwards
from polyrank.model.rankers.load import load_cross
from polyrank.model.text.sequences import Pairs

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
    assert poly is not None
    codes = poly.encode_contexts(pad(pairs.contexts, poly.context.pad_id)).first
    first = poly_scores(codes, poly.encode_candidates(pad(pairs.candidates, poly.candidate.pad_id)).first)
    return first[pairs.owners, rows] + encoder.joint_scores(CrossEncoder.join(pairs, encoder.encoder.pad_id))


def test_no_gradient_and_no_dropout_reach_the_poly_encoder(encoder: CrossEncoder) -> None:
    encoder.train()
    assert encoder.encoder.training
    assert not any(each.training for each in encoder.poly.modules())
    score(encoder, PAIRS).sum().backward()  # type: ignore[no-untyped-call]
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


def test_a_context_is_encoded_once_for_all_batches_of_its_candidates(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, seen = load_cross(checkpoint), list[list[int]]()
    encode = LateForwards.encode_contexts

    def counted(forwards: LateForwards, contexts: list[list[int]]) -> list[NDArray[np.float32]]:
        seen.extend(contexts)
        return encode(forwards, contexts)

    monkeypatch.setattr(LateForwards, "encode_contexts", counted)
    monkeypatch.setattr(passes, "_KNOWN_CONTEXTS", 2)
    for position in (0, 1, 2, 3):
        served.score_pairs(PAIRS.take([position]))
    assert seen == PAIRS.contexts
    others = [Pairs([[CLS, number, SEP]], [[CLS, 7, SEP]], [0], prefix=1) for number in (30, 31)]
    for each in (*others, PAIRS.take([0])):
        served.score_pairs(each)
    assert seen[2:] == [*(each.contexts[0] for each in others), PAIRS.contexts[0]], "only the last two are remembered"
