"""What the golden tests of models with a second stage share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden.oracle import Vector, dot, weighted_sum
from tiny import write_base

import polyrank
from polyrank.model.architectures.backbone import Backbone, TensorBatch
from polyrank.model.architectures.batching import pad
from polyrank.model.config import ModelConfig, Reduction
from polyrank.model.evaluation.rankings import rank_lists
from polyrank.model.rankers.networks import VectorRanker
from polyrank.model.representations import ContextEncoding
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue

TOLERANCE = 2e-4
CONTEXTS = ["w1", "w2 w3 w4 w5", "w30 w31 w32 w33 w34 w35 w36 w37 w38"]
CANDIDATES = ["w1 w2", "w3", "w4 w5 w6 w7 w8 w9 w10", "w39 w38 w37", "w3"]
SCALE, LAYERS = 20.0, 2


def made(directory: Path, architecture: str, block: Any, reduction: Reduction = "mean", **runner: Any) -> VectorRanker:
    """One of the architecture whose second stage is begun from the same numbers each time."""
    if not (base := directory / "base").exists():
        write_base(base, 7)
    sizes = {"max_context_tokens": 40, "max_candidate_tokens": 16}
    config = ModelConfig(
        architecture=architecture, base_name="", reduction=reduction, score_scale=SCALE, own=block, **sizes
    )
    torch.manual_seed(11)
    ranker = polyrank.from_base(str(base), config, **runner)
    assert isinstance(ranker, VectorRanker)
    return ranker


def applied(linear: Any, vector: Vector) -> Vector:
    rows = linear.weight.detach().double().tolist()
    return [dot(row, vector) + bias for row, bias in zip(rows, linear.bias.detach().double().tolist(), strict=True)]


def mean(vectors: list[Vector]) -> Vector:
    return weighted_sum([1 / len(vectors)] * len(vectors), vectors)


def hidden(backbone: Backbone, ids: list[int], layer: int | None) -> list[Vector]:
    with torch.inference_mode():
        outputs = backbone.transformer(**backbone.inputs(TensorBatch.of(pad([ids], 0))), output_hidden_states=True)
    states = outputs.last_hidden_state if layer is None else outputs.hidden_states[layer]
    return states[0].double().tolist()


def contexts_of(ranker: VectorRanker, texts: Sequence[str]) -> list[list[int]]:
    return [ranker.tokenize_context(Conversation.of(text))[0] for text in texts]


def all_ways_agree(
    ranker: VectorRanker,
    texts: Sequence[str],
    replies: Sequence[str],
    expected: np.ndarray,
    tolerance: float = TOLERANCE,
) -> None:
    """The training matrix, stored rows together and alone, `rank` and `evaluate` give the expected scores."""
    encoder, contexts = ranker.encoder, contexts_of(ranker, texts)
    candidates = ranker.tokenize_candidates(replies)[0]
    with torch.inference_mode():
        trained = encoder.late_scores(
            encoder.encode_contexts(TensorBatch.of(encoder.context_batch(ranker.config, contexts, 0))),
            encoder.encode_candidates(TensorBatch.of(encoder.candidate_batch(ranker.config, candidates, 0))),
        ).numpy()
    np.testing.assert_allclose(trained, expected, rtol=0, atol=tolerance)
    cached = ranker.represent_candidates(candidates)
    together = [ranker.late_scores(context, cached) for context in ranker.represent_contexts(contexts)]
    np.testing.assert_allclose(together, expected, rtol=0, atol=tolerance)
    for own, ids in zip(expected, contexts, strict=True):  # alone, made anew
        [context] = ranker.represent_contexts([ids])
        alone = [ranker.late_scores(context, ranker.represent_candidates([each]))[0] for each in candidates]
        np.testing.assert_allclose(alone, own, rtol=0, atol=tolerance)
    ranked = [dict(ranker.rank(text, replies)) for text in texts]
    np.testing.assert_allclose(
        [[own[at] for at in range(len(replies))] for own in ranked], expected, rtol=0, atol=tolerance
    )
    lists = [Dialogue(Conversation.of(text), replies[0], candidates=tuple(replies)) for text in texts]
    measured = rank_lists(ranker, lists, lambda *_: None)
    np.testing.assert_allclose(measured.scores, expected, rtol=0, atol=tolerance)


def no_encoder_call_scores(
    ranker: VectorRanker, texts: Sequence[str], replies: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored rows are scored where every forward pass raises. The texts 1 and 4 of `replies` are equal."""
    stored = ranker.represent_candidates(ranker.tokenize_candidates(replies)[0])
    contexts = ranker.represent_contexts(contexts_of(ranker, texts))
    before = [ranker.late_scores(context, stored) for context in contexts]

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the transformer ran")

    monkeypatch.setattr(Backbone, "forward", fail)
    monkeypatch.setattr(Backbone, "hidden", fail)
    monkeypatch.setattr(Backbone, "beginning_with", fail)
    for context, scores in zip(contexts, before, strict=True):
        np.testing.assert_array_equal(ranker.late_scores(context, stored), scores)
        assert scores[1] == pytest.approx(scores[4], abs=1e-5)  # equal texts
        np.testing.assert_allclose(ranker.late_scores(context, stored.take([3, 0])), scores[[3, 0]], atol=1e-5)
    foreign = ContextEncoding(contexts[1].codes, contexts[2].late)
    assert np.abs(ranker.late_scores(foreign, stored) - before[1]).max() > 0.01
