"""VIRT's scores, from text to number, against loops in float64 over the transformer's outputs."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from golden.oracle import Vector, dot, softmax, unit, weighted_sum
from golden.second_stage import (
    CANDIDATES,
    CONTEXTS,
    SCALE,
    TOLERANCE,
    all_ways_agree,
    applied,
    hidden,
    made,
    mean,
    no_encoder_call_scores,
)
from tiny import CLS, DIM, SEP, word_ids

from polyrank.model.architectures.virt import VirtEncoder
from polyrank.model.rankers.networks import VectorRanker
from polyrank.model.registry import VirtConfig


@pytest.fixture(scope="module", params=[True, False], ids=["residual", "paper"])
def ranker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VectorRanker:
    ranker = made(tmp_path_factory.mktemp("virt"), "virt", VirtConfig(residual=request.param), "first")
    torch.manual_seed(12)
    with torch.no_grad():  # else both sides are equal, and a residual head is zero
        for parameter in ranker.encoder.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
        for parameter in (*reader(ranker).join.parameters(), *reader(ranker).head.parameters()):
            parameter += 0.5 * torch.randn_like(parameter)
    return ranker


def reader(ranker: VectorRanker) -> VirtEncoder:
    assert isinstance(ranker.encoder, VirtEncoder)
    return ranker.encoder


def read(own: list[Vector], other: list[Vector]) -> Vector:
    """The mean over the rows of `own` of what each finds in `other`."""
    found = []
    for row in own:
        weights = softmax([dot(row, each) / math.sqrt(DIM) for each in other])
        found.append(weighted_sum(weights, other))
    return mean(found)


def loops(encoder: VirtEncoder, context: str, candidate: str) -> float:
    """The score of one pair, by the equations."""
    block = encoder.config.block(VirtConfig)
    x = hidden(encoder.context, [CLS, *word_ids(context), SEP], None)
    y = hidden(encoder.candidate, [CLS, *word_ids(candidate), SEP], None)
    u, v = read(x, y), read(y, x)
    apart = [abs(a - b) for a, b in zip(u, v, strict=True)]
    largest = [max(a, b) for a, b in zip(u, v, strict=True)]
    inner = [0.5 * z * (1 + math.erf(z / math.sqrt(2))) for z in applied(encoder.join, [*u, *v, *apart, *largest])]
    [score] = applied(encoder.head, inner)
    return score + SCALE * dot(unit(mean(x)), unit(mean(y))) if block.residual else score


@pytest.fixture(scope="module")
def expected(ranker: VectorRanker) -> np.ndarray:
    return np.array([[loops(reader(ranker), text, each) for each in CANDIDATES] for text in CONTEXTS])


def test_all_ways_to_a_score_agree_with_the_loops(ranker: VectorRanker, expected: np.ndarray) -> None:
    assert np.ptp(expected, axis=1).min() > 10 * TOLERANCE
    all_ways_agree(ranker, CONTEXTS, CANDIDATES, expected)


def test_scoring_stored_rows_makes_no_encoder_call(ranker: VectorRanker, monkeypatch: pytest.MonkeyPatch) -> None:
    no_encoder_call_scores(ranker, CONTEXTS, CANDIDATES, monkeypatch)


def test_a_candidate_keeps_a_row_for_each_token(ranker: VectorRanker) -> None:
    assert (ranker.late_rows.dim, ranker.late_rows.count) == (DIM, None)
    kept = ranker.represent_candidates(ranker.tokenize_candidates(CANDIDATES)[0])
    assert kept.counts.tolist() == [len(text.split()) + 2 for text in CANDIDATES]


def test_a_residual_one_begins_as_its_first_stage(tmp_path: Path) -> None:
    ranker = made(tmp_path, "virt", VirtConfig(residual=True), "first")
    candidates = ranker.represent_candidates(ranker.tokenize_candidates(CANDIDATES)[0])
    [context] = ranker.represent_contexts([[CLS, *word_ids(CONTEXTS[1]), SEP]])
    first = candidates.first @ context.codes[0]
    np.testing.assert_allclose(ranker.late_scores(context, candidates), first, atol=1e-4)
