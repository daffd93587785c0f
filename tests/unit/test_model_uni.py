"""The Uni-Encoder: its layers against other people's, what training does with them, and what is kept of contexts."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny import CLS, SEP, write_base
from tiny_training import run, settings, trained, write_examples, write_first_stage
from torch import Tensor
from transformers import BertConfig, CamembertConfig, ElectraConfig, MPNetConfig, RobertaConfig, XLMRobertaConfig

import polyrank
from polyrank.model.architectures.backbone import Backbone
from polyrank.model.architectures.batching import shared_lengths
from polyrank.model.architectures.uni import UniEncoder
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.explanation import Occluded
from polyrank.model.inference import openvino_backend
from polyrank.model.inference.uni import ContextCache
from polyrank.model.rankers.networks import UniRanker
from polyrank.model.registry import UniConfig
from polyrank.model.text.sequences import Pairs
from polyrank.model.training.student import start

SIZES = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 48, "initializer_range": 0.3,
}  # fmt: skip
FAMILIES: dict[str, Callable[..., Any]] = {
    "bert": BertConfig, "camembert": CamembertConfig, "electra": partial(ElectraConfig, embedding_size=8),
    "roberta": partial(RobertaConfig, pad_token_id=1), "xlm-roberta": partial(XLMRobertaConfig, pad_token_id=1),
}  # fmt: skip
CONTEXTS = [[CLS, 20, SEP], [CLS, *range(5, 14), SEP]]
CANDIDATES = [[7, 8, SEP], [9, SEP], [30, 31, 32, 33, 34, SEP]]
PAIRS = Pairs(CONTEXTS, [*CANDIDATES, CANDIDATES[1]], [1, 1, 1, 0])


def encoder_of(shape: Any, **block: Any) -> UniEncoder:
    config = ModelConfig(architecture="uni", base_name="", own=UniConfig(**block))
    torch.manual_seed(3)
    return UniEncoder(config, Backbone(shape)).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_one_candidate_gets_what_the_familys_own_forward_gives_under_the_mask(family: str) -> None:
    encoder = encoder_of(FAMILIES[family](**SIZES))
    backbone, heads = encoder.encoder, encoder.head
    assert backbone.transformer.config.model_type == family
    assert heads is not None
    backbone.transformer.set_attn_implementation("eager")
    with torch.inference_mode():
        scores = encoder.own_scores(PAIRS).tolist()
        for at, owner in enumerate(PAIRS.owners):
            context, own = PAIRS.contexts[owner], PAIRS.candidates[at]
            ids = torch.tensor([[*context, *own]])
            segments = torch.tensor([[0] * len(context) + [int(backbone._has_segments)] * len(own)])
            sees = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool)
            sees[: len(context), len(context) :] = False
            mask = torch.zeros(1, 1, *sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)
            states = backbone.transformer(input_ids=ids, attention_mask=mask, token_type_ids=segments).last_hidden_state
            expected = heads(states[0, len(context) :].mean(dim=0)).item()
            assert scores[at] == pytest.approx(expected, abs=2e-5)


def test_a_family_whose_layers_are_others_is_refused() -> None:
    with pytest.raises(CheckpointInvalid, match=r"a uni runs the layers of bert, .*, which mpnet does not have"):
        encoder_of(MPNetConfig(**SIZES))


def test_a_published_head_is_refused(tmp_path: Path) -> None:
    config = ModelConfig(architecture="uni", base_name="", own=UniConfig(), head="published")
    with pytest.raises(CheckpointInvalid, match="a published head is for a cross, not for a uni"):
        UniEncoder(config, Backbone(BertConfig(**SIZES)))


@pytest.mark.parametrize("mask", ["one-way", "arrow"])
def test_candidates_in_another_order_have_the_same_scores(mask: str) -> None:
    encoder = encoder_of(BertConfig(**SIZES), mask=mask)
    with torch.inference_mode():
        scores, turned = encoder.own_scores(PAIRS), encoder.own_scores(PAIRS.take([3, 2, 0, 1]))
    torch.testing.assert_close(turned, scores[[3, 2, 0, 1]], rtol=0, atol=1e-5)


@pytest.mark.parametrize("mask", ["one-way", "arrow"])
def test_batches_read_contexts_once_and_only_arrow_goes_beyond_the_budget(mask: str) -> None:
    encoder, several = encoder_of(BertConfig(**SIZES), mask=mask), PAIRS.take([0, 1, 2, 0, 1, 2, 3])
    assert sorted(encoder.batches(several, 1000)[0]) == [*range(7)]
    cut = encoder.batches(several, 11 + 2 * 6)
    assert sorted(at for batch in cut for at in batch) == [*range(7)]
    assert [len(batch) for batch in cut if 6 not in batch] == ([6] if mask == "arrow" else [2, 2, 2])
    with torch.inference_mode():
        whole = encoder.own_scores(several)
        for batch in cut:
            torch.testing.assert_close(encoder.own_scores(several.take(batch)), whole[batch], rtol=0, atol=1e-5)


def test_the_tokens_of_pairs_are_those_that_are_read() -> None:
    lengths = shared_lengths(PAIRS)
    assert sum(lengths) == sum(map(len, CONTEXTS)) + sum(map(len, PAIRS.candidates))
    assert lengths == [3 + 4, 2 + 4, 6 + 3, 2 + 3]


def test_what_is_left_out_of_a_context_is_not_seen_and_moves_nothing() -> None:
    encoder = encoder_of(BertConfig(**SIZES))
    left_out = [[2, 3], [], [10], [1]]
    with torch.inference_mode():
        scores = encoder.own_scores(PAIRS, left_out).tolist()
        for at, places in enumerate(left_out):
            [context], [own] = PAIRS.take([at]).contexts, PAIRS.take([at]).candidates
            told = encoder.own_scores(PAIRS.take([at]), [places]).item()
            assert scores[at] == pytest.approx(told, abs=1e-5)
            # Other words there change nothing, and one more word behind them does: it moves the candidate.
            other = [40 if place in places else id_ for place, id_ in enumerate(context)]
            same = encoder.own_scores(Pairs([other], [own], [0]), [places]).item()
            assert same == pytest.approx(told, abs=1e-6)
            longer = encoder.own_scores(Pairs([[*other, 41]], [own], [0]), [[*places, len(other)]]).item()
            assert abs(longer - told) > 1e-4


def gradients(encoder: UniEncoder) -> list[Tensor]:
    encoder.zero_grad()
    torch.manual_seed(1)
    encoder.own_scores(PAIRS).square().sum().backward()
    return [parameter.grad.clone() for parameter in encoder.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("mask", ["one-way", "arrow"])
def test_gradient_checkpointing_changes_no_gradient_even_with_dropout(mask: str) -> None:
    encoder = encoder_of(BertConfig(**SIZES), mask=mask).train()
    plain = gradients(encoder)
    torch.manual_seed(2)
    with torch.no_grad():
        assert not torch.equal(encoder.own_scores(PAIRS), encoder.eval().own_scores(PAIRS)), "dropout is at work"
    encoder.train()
    encoder.encoder.transformer.activation_checkpointing_enable()
    for one, other in zip(plain, gradients(encoder), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("mask", ["one-way", "arrow"])
def test_layers_run_under_the_autocast_of_training(mask: str) -> None:
    encoder = encoder_of(BertConfig(**SIZES), mask=mask)
    exact = encoder.own_scores(PAIRS)
    encoder.encoder.autocast = lambda: torch.autocast("cpu", torch.bfloat16)
    coarse = encoder.own_scores(PAIRS)
    assert coarse.dtype == torch.float32
    assert 0 < (coarse - exact).abs().max() < 0.1


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("uni")
    return trained(write_base(parent / "base", 3), parent / "model", architecture="uni")


def loaded(checkpoint: Path, **runner: Any) -> UniRanker:
    ranker = polyrank.load(checkpoint, **runner)
    assert isinstance(ranker, UniRanker)
    return ranker


FIFTY = [[5 + (3 * at + step) % 30 for step in range(1 + at % 9)] + [SEP] for at in range(50)]
AMONG = Pairs([CONTEXTS[1]], FIFTY, [0] * 50)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_a_candidate_alone_or_among_fifty_has_the_score_of_the_encoder(checkpoint: Path, backend: str) -> None:
    if backend != "torch" and not openvino_backend.is_installed():
        pytest.skip("OpenVINO is not installed")
    ranker = loaded(checkpoint, backend=backend)
    with torch.inference_mode():
        expected = ranker.encoder.own_scores(AMONG).numpy()
    assert ranker.backend == backend
    np.testing.assert_allclose(ranker.score_pairs(AMONG), expected, rtol=0, atol=1e-5)
    alone = np.concatenate([ranker.score_pairs(AMONG.take([at])) for at in range(50)])
    np.testing.assert_allclose(alone, expected, rtol=0, atol=1e-5)


def test_torch_in_16_bits_gives_nearly_the_same(checkpoint: Path) -> None:
    exact, coarse = loaded(checkpoint).score_pairs(AMONG), loaded(checkpoint, precision="bfloat16").score_pairs(AMONG)
    assert 0 < np.abs(coarse - exact).max() < 0.1 * exact.std() + 0.05


def test_texts_in_another_order_have_the_same_scores_to_the_bit(checkpoint: Path) -> None:
    texts = [" ".join(f"w{id_ - 4}" for id_ in ids[:-1]) for ids in FIFTY]
    scores = dict(loaded(checkpoint).rank("w1 w2", texts))
    turned = dict(loaded(checkpoint).rank("w1 w2", texts[::-1]))
    assert all(turned[len(texts) - 1 - at] == score for at, score in scores.items())


def test_a_context_is_read_once_while_it_is_kept_and_read_anew_it_gives_the_same(checkpoint: Path, monkeypatch) -> None:
    ranker, seen = loaded(checkpoint), list[tuple[int, ...]]()
    run_ = ranker._contexts.run

    def counted(batch: Any) -> tuple[NDArray[Any], ...]:
        seen.append(tuple(batch.ids[0].tolist()))
        return run_(batch)

    ranker._contexts = ranker._contexts._replace(run=counted)
    first = ranker.score_pairs(PAIRS)
    assert np.array_equal(ranker.score_pairs(PAIRS), first)
    assert len(seen) == 2
    ranker._cache = ContextCache(0)
    assert np.array_equal(ranker.score_pairs(PAIRS), first)
    assert np.array_equal(ranker.score_pairs(PAIRS), first)
    assert len(seen) == 2 + 4


def test_the_kept_contexts_are_the_last_ones_that_fit() -> None:
    kept = ContextCache(3 * 8)
    for key in range(4):
        kept.put((key,), np.array([key, key], np.float32))
        assert kept.get((0,)) is not None or key == 3, "what was asked for last stays"
        kept.get((1,))
    assert [key for key in range(4) if kept.get((key,)) is not None] == [0, 1, 3]
    kept.put((9,), np.zeros(100, np.float32))
    assert [key for key in (*range(4), 9) if kept.get((key,)) is not None] == [9]


def test_a_residual_one_adds_to_the_first_stage_and_begins_as_it(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", 3)
    poly = write_first_stage(base)
    ranker, _ = run(
        settings(
            base,
            architecture="uni",
            first_stage=str(poly),
            n_codes=None,
            max_context_tokens=None,
            max_candidate_tokens=None,
            steps=1,
            learning_rate=1e-9,
            code_learning_rate=1e-9,
        ),
        write_examples(tmp_path / "examples.jsonl"),
        tmp_path / "model",
    )
    texts = ["w4", "w5 w6", "w7 w8"]
    scores, first = dict(ranker.rank("w1 w2", texts)), dict(polyrank.load(poly).rank("w1 w2", texts))
    assert scores == pytest.approx(first, abs=1e-4)


def test_it_learns(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", 3)
    config = settings(base, architecture="uni", negatives=3, gradient_cache=True, chunk_tokens=200, steps=20)
    _, seen = run(config, write_examples(tmp_path / "examples.jsonl"), tmp_path / "model")
    assert seen.looks[-1][1] < 0.5 * seen.looks[0][1]


def test_occlusion_tells_what_a_score_loses(checkpoint: Path) -> None:
    ranker = loaded(checkpoint)
    occluded = [Occluded(PAIRS.take([at]), places) for at in (0, 1) for places in ((), (2, 3))]
    found = ranker.explainer.scores(occluded)
    whole = ranker.score_pairs(PAIRS)
    np.testing.assert_allclose(found[::2, 0], whole[:2], rtol=0, atol=1e-5)
    with torch.inference_mode():
        without = ranker.encoder.own_scores(PAIRS.take([0, 1]), [[2, 3], [2, 3]]).numpy()
    np.testing.assert_allclose(found[1::2, 0], without, rtol=0, atol=1e-5)
    assert not found[:, 1].any()


def test_a_checkpoint_goes_on_as_a_uni_from_a_cross_encoders_weights(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", 3)
    cross = trained(base, tmp_path / "cross", architecture="cross")
    student = start(settings(cross, architecture="uni"))
    own, other = student.encoder.state_dict(), polyrank.load(cross).encoder.state_dict()
    assert all(torch.equal(own[name], other[name]) for name in other)
