"""Deformer's scores, from text to number, against one pass of the transformer in float64 with a mask."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden.oracle import dot, unit
from golden.second_stage import (
    CANDIDATES,
    CONTEXTS,
    LAYERS,
    SCALE,
    TOLERANCE,
    all_ways_agree,
    applied,
    contexts_of,
    hidden,
    made,
    mean,
    no_encoder_call_scores,
)
from tiny import CLS, DIM, SEP, word_ids
from torch import Tensor

import polyrank
from polyrank.model.architectures import deformer
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.deformer import DeformerEncoder
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.rankers.networks import VectorRanker
from polyrank.model.registry import DeformerConfig

KINDS = {"one": DeformerConfig(upper=1), "paper": DeformerConfig(upper=1, residual=False), "all": DeformerConfig()}


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def ranker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VectorRanker:
    ranker = made(tmp_path_factory.mktemp("deformer"), "deformer", request.param)
    torch.manual_seed(12)
    with torch.no_grad():  # else both sides are equal, and a residual head is zero
        for parameter in (*own(ranker).context.parameters(), *own(ranker).candidate.parameters()):
            parameter += 0.05 * torch.randn_like(parameter)
        own(ranker).begin()
        for parameter in own(ranker).head.parameters():
            parameter += torch.randn_like(parameter)
    return ranker


def own(ranker: VectorRanker) -> DeformerEncoder:
    assert isinstance(ranker.encoder, DeformerEncoder)
    return ranker.encoder


def embedded(transformer: Any, ids: list[int], segment: int) -> Tensor:
    """What enters the first layer, (1, T, D): positions begin at 0."""
    segments = torch.full((1, len(ids)), segment)
    states: Tensor = transformer.embeddings(input_ids=torch.tensor([ids]), token_type_ids=segments)
    return states


def one_pass(encoder: DeformerEncoder, context: list[int], candidate: list[int]) -> Tensor:
    """The first output of all layers over both texts; below the split a mask keeps them apart.

    Both towers are the same here but for the noise, so each half goes through its own one's layers.
    """
    sides = [encoder.context.transformer, encoder.candidate.transformer]
    halves = [embedded(side, ids, at) for at, (side, ids) in enumerate(zip(sides, (context, candidate), strict=True))]
    for place in range(LAYERS - len(encoder.upper)):
        joint = torch.cat(halves, dim=1)
        allowed = torch.zeros(1, 1, joint.shape[1], joint.shape[1])
        allowed[..., : len(context), len(context) :] = allowed[..., len(context) :, : len(context)] = float("-inf")
        read = [layer_of(side, place)(joint, attention_mask=allowed) for side in sides]
        whole = [each[0] if isinstance(each, tuple) else each for each in read]
        halves = [whole[0][:, : len(context)], whole[1][:, len(context) :]]
    states = torch.cat(halves, dim=1)
    for place in range(LAYERS - len(encoder.upper), LAYERS):
        read = layer_of(sides[0], place)(states, attention_mask=None)
        states = read[0] if isinstance(read, tuple) else read
    return states[0, 0]


def layer_of(transformer: Any, place: int) -> Any:
    return transformer.encoder.layer[place]


def expected_score(ranker: VectorRanker, context: str, candidate: str) -> float:
    encoder, block = own(ranker), ranker.config.block(DeformerConfig)
    x, y = ([CLS, *word_ids(text), SEP] for text in (context, candidate))
    with torch.inference_mode():
        [score] = applied(encoder.head, one_pass(encoder, x, y).double().tolist())
    if not block.residual:
        return score
    segment_1 = candidate_states(encoder, y)
    return score + SCALE * dot(unit(mean(hidden(encoder.context, x, None))), unit(mean(segment_1)))


def candidate_states(encoder: DeformerEncoder, ids: list[int]) -> list[list[float]]:
    with torch.inference_mode():
        states = embedded(encoder.candidate.transformer, ids, 1)
        for place in range(LAYERS):
            read = layer_of(encoder.candidate.transformer, place)(states, attention_mask=None)
            states = read[0] if isinstance(read, tuple) else read
    found: list[list[float]] = states[0].double().tolist()
    return found


@pytest.fixture(scope="module")
def expected(ranker: VectorRanker) -> np.ndarray:
    return np.array([[expected_score(ranker, text, each) for each in CANDIDATES] for text in CONTEXTS])


def test_all_ways_to_a_score_agree_with_one_pass(ranker: VectorRanker, expected: np.ndarray) -> None:
    assert np.ptp(expected, axis=1).min() > 10 * TOLERANCE
    all_ways_agree(ranker, CONTEXTS, CANDIDATES, expected)


def test_one_whose_layers_are_all_upper_ones_is_a_cross_encoder_with_positions_from_0_on_both_sides(tmp_path) -> None:
    ranker = made(tmp_path, "deformer", DeformerConfig(upper=LAYERS, residual=False))
    sizes: dict[str, Any] = {"max_context_tokens": 40, "max_candidate_tokens": 16}
    config = ModelConfig(architecture="cross", base_name="", **sizes)
    cross = polyrank.from_base(str(tmp_path / "base"), config).encoder
    assert isinstance(cross, CrossEncoder)
    with torch.no_grad():
        for parameter, other in zip(cross.head.parameters(), own(ranker).head.parameters(), strict=True):
            parameter.copy_(other)
    for text in CONTEXTS:
        scores = dict(ranker.rank(text, CANDIDATES))
        for at, candidate in enumerate(CANDIDATES):
            x, y = ([CLS, *word_ids(each), SEP] for each in (text, candidate))
            places, segments = [*range(len(x)), *range(len(y))], [0] * len(x) + [1] * len(y)
            with torch.inference_mode():
                states = cross.encoder.transformer(
                    input_ids=torch.tensor([[*x, *y]]),
                    token_type_ids=torch.tensor([segments]),
                    position_ids=torch.tensor([places]),
                ).last_hidden_state
                assert scores[at] == pytest.approx(float(cross.head_scores(states)), abs=1e-5)


def test_scoring_stored_rows_makes_no_encoder_call(ranker: VectorRanker, monkeypatch: pytest.MonkeyPatch) -> None:
    no_encoder_call_scores(ranker, CONTEXTS, CANDIDATES, monkeypatch)


def test_parts_of_the_candidates_give_what_all_give(ranker: VectorRanker, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = ranker.represent_candidates(ranker.tokenize_candidates(CANDIDATES)[0])
    [context] = ranker.represent_contexts(contexts_of(ranker, CONTEXTS[1:2]))
    together = ranker.late_scores(context, stored)
    monkeypatch.setattr(deformer, "_TOKENS_AT_ONCE", 40)
    np.testing.assert_allclose(ranker.late_scores(context, stored), together, atol=1e-5)


def test_a_candidate_keeps_a_row_for_each_token(ranker: VectorRanker) -> None:
    assert (ranker.late_rows.dim, ranker.late_rows.count) == (DIM, None)
    kept = ranker.represent_candidates(ranker.tokenize_candidates(CANDIDATES)[0])
    assert kept.counts.tolist() == [len(text.split()) + 2 for text in CANDIDATES]


def test_a_residual_one_begins_as_its_first_stage(tmp_path: Path) -> None:
    ranker = made(tmp_path, "deformer", DeformerConfig())
    candidates = ranker.represent_candidates(ranker.tokenize_candidates(CANDIDATES)[0])
    [context] = ranker.represent_contexts(contexts_of(ranker, CONTEXTS[1:2]))
    np.testing.assert_allclose(ranker.late_scores(context, candidates), candidates.first @ context.codes[0], atol=1e-4)


def test_more_upper_layers_than_there_are_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointInvalid, match="deformer: 3 upper layers are more than the transformer's 2"):
        made(tmp_path, "deformer", DeformerConfig(upper=3))
