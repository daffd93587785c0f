"""ColBERT's scores, from text to number, against loops in float64 over the transformer's outputs."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import silent
from golden import oracle
from golden.second_stage import all_ways_agree, contexts_of
from tiny import CLS, SEP, VOCABULARY, word_ids, write_base

import polyrank
from polyrank.model.architectures.backbone import Backbone
from polyrank.model.architectures.colbert import max_sim
from polyrank.model.architectures.vector import CandidateState
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.evaluation.rankings import retrieve
from polyrank.model.rankers.networks import VectorRanker
from polyrank.model.registry import ColbertConfig
from polyrank.model.representations import ContextEncoding, Representations
from polyrank.model.text.assembly import Conversation

MORE = ["[MASK]", "[unused0]", "[unused1]", ",", "."]
MASK, QUERY, CANDIDATE, COMMA, DOT = range(len(VOCABULARY), len(VOCABULARY) + len(MORE))
LONG = " ".join(f"w{n}" for n in range(36))  # longer than what short contexts are filled up to
CONTEXTS = ["w1", "w2 w3 w4 w5", LONG, "w30 w31"]
CANDIDATES = ["w1 w2", "w3 , w4 .", "w4 w5 w6 w7 w8 w9 w10 w11", ", .", "w3", "w39 w38 w37"]
SCALE = 20.0
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=[False, True], ids=["apart", "shared"])
def ranker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VectorRanker:
    base = write_base(tmp_path_factory.mktemp("colbert") / "base", 7, MORE)
    sizes: dict[str, Any] = {"max_context_tokens": 40, "max_candidate_tokens": 16}
    config = ModelConfig(architecture="colbert", base_name="", shared_encoder=request.param, score_scale=SCALE, **sizes)
    torch.manual_seed(11)
    made = polyrank.from_base(str(base), config)
    assert isinstance(made, VectorRanker)
    if not request.param:
        with torch.no_grad():
            for parameter in made.encoder.candidate.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
    return made


def rows(ranker: VectorRanker, backbone: Backbone, ids: list[int], attended: int) -> list[list[float]]:
    """The unit vectors of one sequence of which the first `attended` tokens are attended to, without padding."""
    weight = ranker.encoder.projection.weight.detach().double()
    with torch.inference_mode():
        states = backbone.transformer(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.tensor([[1] * attended + [0] * (len(ids) - attended)]),
            token_type_ids=torch.zeros(1, len(ids), dtype=torch.long),
        ).last_hidden_state[0]
    return [oracle.unit(row) for row in (states.double() @ weight.T).tolist()]


def ids_of(text: str) -> list[int]:
    named = {",": COMMA, ".": DOT}
    return [named[word] if word in named else word_ids(word)[0] for word in text.split()]


def context_rows(ranker: VectorRanker, text: str) -> list[list[float]]:
    ids = [CLS, QUERY, *ids_of(text), SEP]
    return rows(ranker, ranker.encoder.context, ids + [MASK] * (32 - len(ids)), len(ids))


def candidate_rows(ranker: VectorRanker, text: str) -> list[list[float]]:
    ids = [CLS, CANDIDATE, *ids_of(text), SEP]
    made = rows(ranker, ranker.encoder.candidate, ids, len(ids))
    return [row for token, row in zip(ids, made, strict=True) if token not in (COMMA, DOT)]


def loops(query: list[list[float]], document: list[list[float]]) -> float:
    """The mean over the query's vectors of the largest dot product, by the definition."""
    total = 0.0
    for q in query:
        best = -math.inf
        for d in document:
            best = max(best, sum(a * b for a, b in zip(q, d, strict=True)))
        total += best
    return total / len(query)


@pytest.fixture(scope="module")
def expected(ranker: VectorRanker) -> np.ndarray:
    documents = [candidate_rows(ranker, text) for text in CANDIDATES]
    return np.array([[SCALE * loops(context_rows(ranker, text), each) for each in documents] for text in CONTEXTS])


def test_all_ways_to_a_score_agree_with_the_loops(ranker: VectorRanker, expected: np.ndarray) -> None:
    all_ways_agree(ranker, CONTEXTS, CANDIDATES, expected, TOLERANCE)


def test_retrieval_orders_what_it_found_by_the_second_stage(ranker: VectorRanker, expected: np.ndarray) -> None:
    right = [np.array([0])] * len(CONTEXTS)
    found, cut = retrieve(ranker, [Conversation.of(text) for text in CONTEXTS], CANDIDATES, right, silent)
    assert cut == 0
    for (best, *_), scores in zip(found, expected, strict=True):
        np.testing.assert_array_equal(best.rows, np.argsort(-scores, kind="stable"))
        np.testing.assert_allclose(best.scores, np.sort(scores)[::-1], rtol=0, atol=TOLERANCE)


def test_the_first_stage_is_the_unit_mean_of_the_rows(ranker: VectorRanker) -> None:
    made = ranker.represent_candidates(ranker.tokenize_candidates(CANDIDATES)[0])
    assert made.late is not None
    assert made.counts is not None
    assert (ranker.dim, ranker.late_rows.dim, ranker.late_rows.count) == (128, 128, None)
    wanted = [candidate_rows(ranker, text) for text in CANDIDATES]
    assert made.counts.tolist() == [len(each) for each in wanted] == [5, 5, 11, 3, 4, 6]
    np.testing.assert_allclose(made.late, np.concatenate(wanted), atol=1e-5)
    np.testing.assert_allclose(made.first, [oracle.unit(np.mean(each, axis=0).tolist()) for each in wanted], atol=1e-5)
    for text, context in zip(CONTEXTS, ranker.represent_contexts(contexts_of(ranker, CONTEXTS)), strict=True):
        own = context_rows(ranker, text)
        assert context.late[0].shape == (max(32, len(text.split()) + 3), 128)
        np.testing.assert_allclose(context.late[0], own, atol=1e-5)
        np.testing.assert_allclose(
            context.codes, [SCALE * np.array(oracle.unit(np.mean(own, axis=0).tolist()))], atol=2e-4
        )


def test_scoring_stored_rows_makes_no_encoder_call(ranker: VectorRanker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ranker.represent_candidates(ranker.tokenize_candidates(CANDIDATES)[0])
    context = ranker.represent_contexts(contexts_of(ranker, CONTEXTS)[:1])[0]
    before = ranker.late_scores(context, made)

    def fail(*_: object) -> None:
        raise AssertionError("the transformer ran")

    monkeypatch.setattr(Backbone, "forward", fail)
    np.testing.assert_array_equal(ranker.late_scores(context, made), before)
    np.testing.assert_allclose(ranker.late_scores(context, made.take([4, 2])), before[[4, 2]], atol=1e-5)
    assert ranker.late_scores(context, made.take([])).shape == (0,)
    foreign = ContextEncoding(context.codes, (context.late[0][::-1, ::-1].copy(),))
    assert np.argsort(ranker.late_scores(foreign, made)).tolist() != np.argsort(before).tolist()


def test_padding_does_not_beat_negative_similarities() -> None:
    query = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    late = torch.tensor([[[-1.0, -0.5], [0.0, 0.0]], [[-0.25, -1.0], [-0.5, -0.75]]])
    mask = torch.tensor([[True, False], [True, True]])
    scores = max_sim(query, CandidateState(torch.empty(2, 2), late, mask))
    assert scores.tolist() == [(-1.0 - 0.5) / 2, (-0.25 - 0.75) / 2]


def test_the_cost_is_that_of_all_dot_products(ranker: VectorRanker) -> None:
    short, long = (ranker.late_tokens(tokens, np.array([5, 7])) for tokens in (3, 60))
    one_token = 12 * 2 * 16**2
    assert short == math.ceil(128 * 32 * 12 / one_token)
    assert long == math.ceil(128 * 61 * 12 / one_token)
    assert ranker.late_tokens(3, np.empty(0, np.int64)) == 0


def test_a_checkpoint_keeps_it(ranker: VectorRanker, tmp_path: Path, expected: np.ndarray) -> None:
    if ranker.config.weights == "full":
        ranker.save(tmp_path / "saved")
        scores = dict(polyrank.load(str(tmp_path / "saved")).rank(CONTEXTS[1], CANDIDATES))
        if ranker.config.shared_encoder:  # the other one was changed after it was made from its files
            np.testing.assert_allclose([scores[at] for at in range(len(CANDIDATES))], expected[1], atol=TOLERANCE)
    raw = ranker.config.to_json()
    assert ModelConfig.from_json({**raw, "colbert": {**raw["colbert"], "dropped": [COMMA, DOT]}}) == ranker.config
    for broken in ({"dropped": 5}, {"dropped": ["a"]}, {"dim": 0}, {"mask_id": -1}, {"other": 1}):
        with pytest.raises(CheckpointInvalid, match="colbert"):
            ModelConfig.from_json({**raw, "colbert": {**raw["colbert"], **broken}})


def test_a_base_without_a_mask_token_fills_nothing(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", 7)
    config = ModelConfig(architecture="colbert", base_name="", max_context_tokens=40, max_candidate_tokens=16)
    ranker = polyrank.from_base(str(base), config)
    assert isinstance(ranker, VectorRanker)
    assert ranker.config.block(ColbertConfig).query_tokens == 0
    assert ranker.represent_contexts([[CLS, 5, SEP]])[0].late[0].shape == (3, 128)


def test_representations_are_joined_and_taken_by_their_rows(ranker: VectorRanker) -> None:
    made = ranker.represent_candidates(ranker.tokenize_candidates(CANDIDATES)[0])
    parts = [made.take([at]) for at in (2, 0, 5)]
    joined, taken = Representations.join(parts), made.take([2, 0, 5])
    for one, other in zip(joined, taken, strict=True):
        np.testing.assert_array_equal(one, other)
