"""Every encoder's scores, from text to number, against the oracle fed with the transformer's outputs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden import oracle
from tiny import CLS, DIM, SEP, word_ids

import polyrank
from polyrank.model.architectures.attention import poly_scores
from polyrank.model.architectures.backbone import TensorBatch
from polyrank.model.architectures.batching import joined, pad
from polyrank.model.config import ModelConfig
from polyrank.model.rankers.networks import CrossRanker, VectorRanker
from polyrank.model.search.topk import top_k
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.sequences import Pairs

BASE_SEED = 7
CONTEXTS = [
    "w1", "w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16 w17 w18 w19 w20 w21 w22",
    "w30 w31", "w9 w9 w8 w7 w1 w0 w2", "w5 w15 w25 w35 w6 w16",
]  # fmt: skip
CANDIDATES = ["w1 w2", "w3", "w4 w5 w6 w7 w8 w9 w10 w11", "w12 w1", "w3", "w39 w38 w37"]
SHORT: dict[str, Any] = {"max_context_tokens": 40, "max_candidate_tokens": 16}
Build = Callable[..., Any]  # a VectorRanker, or a CrossRanker where the architecture says so


@pytest.fixture(scope="module")
def build(base: Path) -> Build:
    """Builds a model; the two towers of separate encoders are told apart by moving the candidate's weights."""

    def make(**fields: Any) -> VectorRanker | CrossRanker:
        torch.manual_seed(11)
        ranker = polyrank.from_base(str(base), ModelConfig(base_name="tiny", **SHORT, **fields))
        if isinstance(ranker, VectorRanker) and not ranker.config.shared_encoder:
            with torch.no_grad():
                for parameter in ranker.encoder.candidate.parameters():
                    parameter += 0.05 * torch.randn_like(parameter)
        return ranker

    return make


def outputs(backbone: Any, ids: list[int], segments: list[int] | None = None) -> list[list[float]]:
    """The transformer's outputs over one sequence, without padding and without the code under test."""
    with torch.inference_mode():
        states = backbone.transformer(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            token_type_ids=torch.tensor([segments or [0] * len(ids)]),
        ).last_hidden_state[0]
    return states.double().tolist()


def single(text: str) -> list[int]:
    return [CLS, *word_ids(text), SEP]


@dataclass
class Scores:
    """Scores (contexts, candidates) by three ways: padded batches, one at a time, and top-k over the embeddings."""

    batched: np.ndarray
    alone: np.ndarray
    topk: np.ndarray

    @classmethod
    def of(cls, ranker: VectorRanker) -> "Scores":
        contexts, candidates = [single(text) for text in CONTEXTS], [single(text) for text in CANDIDATES]
        encoder = ranker.encoder
        with torch.inference_mode():
            batched = poly_scores(
                encoder.encode_contexts(TensorBatch.of(pad(contexts, 0))).first,
                encoder.encode_candidates(TensorBatch.of(pad(candidates, 0))).first,
            )
            one_by_one = [
                encoder.encode_candidates(TensorBatch.of(pad([candidate], 0))).first for candidate in candidates
            ]
            alone = [
                [poly_scores(codes, candidate).item() for candidate in one_by_one]
                for codes in (encoder.encode_contexts(TensorBatch.of(pad([context], 0))).first for context in contexts)
            ]
        embeddings = ranker.encode_candidates(candidates)
        found = [top_k(embeddings, codes, len(candidates)) for codes in ranker.encode_contexts(contexts)]
        return cls(batched.numpy(), np.array(alone), np.array([f.scores[f.rows.argsort()] for f in found]))

    def agree_with(self, expected: list[list[float]]) -> None:
        tolerance = 1e-5 * max(1.0, np.abs(expected).max())
        for way in (self.batched, self.alone, self.topk):
            assert way.shape == (len(CONTEXTS), len(CANDIDATES))
            np.testing.assert_allclose(way, expected, rtol=0, atol=tolerance)


def poly_oracle(config: ModelConfig, encoder: Any) -> list[list[float]]:
    codes = None if encoder.code_vectors is None else encoder.code_vectors.detach().double().tolist()
    candidates = [
        oracle.reduce(outputs(encoder.candidate, single(text)), config.reduction, config.reduction_m)
        for text in CANDIDATES
    ]
    if config.normalize:
        candidates = [oracle.unit(candidate) for candidate in candidates]
    scores = []
    for text in CONTEXTS:
        vectors = oracle.context_vectors(
            outputs(encoder.context, single(text)), config.context_vectors, config.n_codes, codes,
            config.code_scale, config.normalize,
        )  # fmt: skip
        scores.append([oracle.candidate_attention(vectors, each, config.score_scale) for each in candidates])
    return scores


SCALED = {"normalize": True, "code_scale": 7.0, "score_scale": 20.0}


@pytest.mark.parametrize("fields", [{}, SCALED, {"normalize": True}, {"code_scale": 0.25, "score_scale": 0.5}])
@pytest.mark.parametrize("n_codes", [1, 4, 16])
@pytest.mark.parametrize("kind", ["codes", "first", "last", "last+first"])
def test_poly_encoder(build: Build, kind: str, n_codes: int, fields: dict[str, object]) -> None:
    """Contexts have 3 to 23 tokens, so 4 and 16 vectors are more than the shortest have, 4 exactly what one has."""
    ranker = build(architecture="poly", context_vectors=kind, n_codes=n_codes, **fields)
    Scores.of(ranker).agree_with(poly_oracle(ranker.config, ranker.encoder))


@pytest.mark.parametrize(
    ("reduction", "m"),
    [("first", 1), ("mean", 1), ("all-but-first mean", 1), *[("first-m mean", m) for m in (1, 4, 30)]],
)
@pytest.mark.parametrize("fields", [{}, {"normalize": True, "score_scale": 20.0}])
@pytest.mark.parametrize("shared", [False, True])
def test_bi_encoder(build: Build, reduction: str, m: int, fields: dict[str, object], shared: bool) -> None:
    ranker = build(architecture="bi", reduction=reduction, reduction_m=m, shared_encoder=shared, **fields)
    encoder, config = ranker.encoder, ranker.config
    candidates = [outputs(encoder.candidate, single(text)) for text in CANDIDATES]
    expected = [
        [
            oracle.bi_score(context, candidate, reduction, m, config.normalize, config.score_scale)
            for candidate in candidates
        ]
        for context in (outputs(encoder.context, single(text)) for text in CONTEXTS)
    ]
    Scores.of(ranker).agree_with(expected)


@pytest.mark.parametrize(("reduction", "m"), [("mean", 1), ("first-m mean", 4), ("all-but-first mean", 1)])
def test_poly_encoder_reduces_candidates_as_the_bi_encoder(build: Build, reduction: str, m: int) -> None:
    ranker = build(architecture="poly", n_codes=4, reduction=reduction, reduction_m=m)
    Scores.of(ranker).agree_with(poly_oracle(ranker.config, ranker.encoder))


def test_cross_encoder(build: Build) -> None:
    ranker = build(architecture="cross")
    weight, bias = ranker.encoder.head.weight[0].double().tolist(), ranker.encoder.head.bias.item()
    for text in CONTEXTS:
        expected = []
        for candidate in CANDIDATES:
            front, back = single(text), [*word_ids(candidate), SEP]
            joint = outputs(ranker.encoder.encoder, front + back, [0] * len(front) + [1] * len(back))
            expected.append(oracle.cross_score(joint, weight, bias))
        pairs, _ = ranker.tokenize_pairs(Conversation.of(text), CANDIDATES)
        np.testing.assert_allclose(ranker.score_pairs(pairs), expected, rtol=0, atol=1e-5)
        alone = [score for candidate in CANDIDATES for _, score in ranker.rank(text, [candidate])]
        np.testing.assert_allclose(alone, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shared", [False, True])
def test_residual_cross_encoder(build: Build, shared: bool) -> None:
    ranker = build(architecture="cross", residual=True, n_codes=4, shared_encoder=shared, **SCALED)
    encoder = ranker.encoder
    with torch.no_grad():
        for parameter in [*encoder.encoder.parameters(), *encoder.poly.candidate.parameters()]:
            parameter += 0.05 * torch.randn_like(parameter)
    weight, bias = encoder.head.weight[0].double().tolist(), encoder.head.bias.item()
    for text, poly in zip(CONTEXTS, poly_oracle(ranker.config, encoder.poly), strict=True):
        expected = []
        for candidate, score in zip(CANDIDATES, poly, strict=True):
            front, back = single(text), [*word_ids(candidate), SEP]
            joint = outputs(encoder.encoder, front + back, [0] * len(front) + [1] * len(back))
            expected.append(score + oracle.cross_score(joint, weight, bias))
        pairs, _ = ranker.tokenize_pairs(Conversation.of(text), CANDIDATES)
        np.testing.assert_allclose(ranker.score_pairs(pairs), expected, rtol=0, atol=2e-4)


def test_rank_is_the_oracles_order(build: Build) -> None:
    ranker = build(architecture="poly", n_codes=4, shared_encoder=True, **SCALED)
    for text, expected in zip(CONTEXTS, poly_oracle(ranker.config, ranker.encoder), strict=True):
        ranked = ranker.rank(text, CANDIDATES)
        assert sorted(at for at, _ in ranked) == list(range(len(CANDIDATES)))
        np.testing.assert_allclose([score for _, score in ranked], sorted(expected, reverse=True), atol=2e-4)
        np.testing.assert_allclose([score for _, score in ranked], [expected[at] for at, _ in ranked], atol=2e-4)
        assert ranker.rank(text, CANDIDATES, top_k=2) == ranked[:2]


def test_one_constant_code_over_one_token_is_the_bi_encoder(build: Build) -> None:
    """One context vector gets all the attention whatever its logit, and one output is its own weighted sum."""
    bi = build(architecture="bi", reduction="first", shared_encoder=True)
    poly = build(architecture="poly", n_codes=1, context_vectors="first", reduction="first", shared_encoder=True)
    np.testing.assert_allclose(Scores.of(poly).batched, Scores.of(bi).batched, rtol=1e-6)


def test_codes_start_around_zero_with_the_intended_deviation(build: Build) -> None:
    codes = build(architecture="poly", n_codes=4096).encoder.code_vectors.detach()
    assert codes.shape == (4096, DIM)
    assert abs(codes.mean().item()) < 0.01 * DIM**-0.5 * 2
    assert codes.std().item() == pytest.approx(DIM**-0.5, rel=0.02)
    assert torch.unique(codes, dim=0).shape == codes.shape, "no two codes are alike"


def test_only_learnt_codes_are_parameters(build: Build) -> None:
    assert build(architecture="poly", context_vectors="last").encoder.code_vectors is None
    assert build(architecture="poly").encoder.code_vectors.requires_grad


def test_separate_encoders_start_equal_and_are_two(base: Path) -> None:
    ranker = polyrank.from_base(str(base), ModelConfig(architecture="bi", base_name="", **SHORT))
    one, other = ranker.encoder.context, ranker.encoder.candidate
    assert one is not other
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, other.state_dict()[name])
        assert weight.data_ptr() != other.state_dict()[name].data_ptr()


def test_a_shared_encoder_is_one(base: Path) -> None:
    config = ModelConfig(architecture="poly", base_name="", shared_encoder=True, **SHORT)
    ranker = polyrank.from_base(str(base), config)
    assert ranker.encoder.context is ranker.encoder.candidate


def test_the_candidate_is_segment_one(build: Build) -> None:
    ranker = build(architecture="cross")
    seen = []
    ranker.encoder.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    ranker.rank("w1 w2", ["w3", "w4 w5 w6"])
    (batch,) = seen
    assert batch.ids.tolist() == [[CLS, 5, 6, SEP, 8, 9, 10, SEP], [CLS, 5, 6, SEP, 7, SEP, 0, 0]]
    assert batch.segments.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 0, 0]]
    assert batch.mask.tolist() == [[True] * 8, [True] * 6 + [False] * 2]


def test_segments_matter(build: Build) -> None:
    encoder = build(architecture="cross").encoder
    ids = [*single("w1 w2"), *word_ids("w3"), SEP]
    splits = [Pairs([ids[:start]], [ids[start:]], [0]) for start in (4, 6, 2)]
    with torch.inference_mode():
        batches = [joined(pairs, encoder.encoder.pad_id) for pairs in splits]
        right, none, early = (encoder.joint_scores(TensorBatch.of(batch)).item() for batch in batches)
    assert min(abs(right - none), abs(right - early), abs(none - early)) > 1e-3


def test_contexts_and_candidates_are_segment_zero(build: Build) -> None:
    """Both sides of a Bi-encoder (4.2); the oracle's outputs are those of segment 0 too."""
    assert not pad([single("w1"), single("w1 w2")], 0).segments.any()
