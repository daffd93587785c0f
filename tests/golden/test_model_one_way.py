"""A one-way Cross-encoder's scores, from text to number, against outputs that were computed without its code."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from golden import one_way_oracle
from numpy.typing import NDArray
from tiny import CLS, SEP, word_ids, write_base

import model
from model import Conversation, CrossRanker, ModelConfig
from model.one_way import CONTEXT_LOGIT
from model.pairs import Pairs

CONTEXTS = ["w1", "w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16 w17 w18 w19", "w9 w9 w8 w7 w1 w0 w2"]
CANDIDATES = ["w1 w2", "w3", "w4 w5 w6 w7 w8 w9 w10 w11", "w3", "w39 w38 w37"]
PLACES = [(context, candidate) for context in range(len(CONTEXTS)) for candidate in range(len(CANDIDATES))]
SCALED = {"normalize": True, "code_scale": 7.0, "score_scale": 20.0}
KINDS = pytest.mark.parametrize("kind", ["codes", "first", "last", "last+first"])
REDUCTIONS = pytest.mark.parametrize("reduction", ["first", "mean", "first-m mean"])
NORMALIZED = pytest.mark.parametrize("fields", [{}, SCALED], ids=["plain", "normalize"])
Build = Callable[..., Any]


def single(text: str) -> list[int]:
    return [CLS, *word_ids(text), SEP]


PAIRS = Pairs(
    [single(text) for text in CONTEXTS],
    [single(CANDIDATES[candidate]) for _, candidate in PLACES],
    [context for context, _ in PLACES],
)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds a model, the same weights each time: two towers that are not alike, a head that is not zero."""
    base = write_base(tmp_path_factory.mktemp("one way") / "base", seed=7)

    def make(architecture: str = "cross", **fields: Any) -> Any:
        given = {"reduction_m": 4, "n_codes": 4, **fields}
        if architecture == "cross":
            given["attention"] = "one-way"
        torch.manual_seed(11)
        sizes: Any = {"max_context_tokens": 40, "max_candidate_tokens": 16}
        ranker = model.from_base(str(base), ModelConfig(architecture=architecture, base_name="tiny", **sizes, **given))  # type: ignore[arg-type]
        torch.manual_seed(12)
        with torch.no_grad():
            if not ranker.config.shared_encoder:
                for parameter in ranker.encoder.candidate.parameters():
                    parameter += 0.05 * torch.randn_like(parameter)
            if architecture == "cross":
                ranker.encoder.head.weight += torch.randn_like(ranker.encoder.head.weight)
        return ranker

    return make


Outputs = list[one_way_oracle.States]


@pytest.fixture(scope="module")
def shared_outputs(build: Build) -> Outputs:
    transformer = build(shared_encoder=True).encoder.context.transformer
    return [
        one_way_oracle.joint(transformer, PAIRS.contexts[owner], candidate, CONTEXT_LOGIT)
        for owner, candidate in zip(PAIRS.owners, PAIRS.candidates, strict=True)
    ]


@pytest.fixture(scope="module")
def separate_outputs(build: Build) -> Outputs:
    encoder = build().encoder
    towers = (encoder.context.transformer, encoder.candidate.transformer)
    return [
        one_way_oracle.by_layers(towers, PAIRS.contexts[owner], candidate, CONTEXT_LOGIT)
        for owner, candidate in zip(PAIRS.owners, PAIRS.candidates, strict=True)
    ]


def expected(ranker: CrossRanker, outputs: Outputs) -> list[float]:
    encoder: Any = ranker.encoder
    unread = {tuple(each): one_way_oracle.alone(encoder.candidate.transformer, each) for each in PAIRS.candidates}
    texts = map(tuple, PAIRS.candidates)
    return [one_way_oracle.score(encoder, unread[text], pair) for text, pair in zip(texts, outputs, strict=True)]


def agree(ranker: CrossRanker, scores: list[float]) -> None:
    """All pairs at once, and context by context from text."""
    tolerance = 1e-5 * max(1.0, np.abs(scores).max())
    np.testing.assert_allclose(ranker.score_pairs(PAIRS), scores, rtol=0, atol=tolerance)
    by_context = [ranker.tokenize_pairs(Conversation.of(text), CANDIDATES)[0] for text in CONTEXTS]
    np.testing.assert_allclose(
        np.concatenate([ranker.score_pairs(pairs) for pairs in by_context]), scores, rtol=0, atol=tolerance
    )


def test_the_two_ways_to_the_outputs_are_one(build: Build, shared_outputs: Outputs) -> None:
    transformer = build(shared_encoder=True).encoder.context.transformer
    for at in (0, 7, 14):
        context, candidate = PAIRS.contexts[PAIRS.owners[at]], PAIRS.candidates[at]
        found = one_way_oracle.by_layers((transformer, transformer), context, candidate, CONTEXT_LOGIT)
        for one, other in zip(found, shared_outputs[at], strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)


@NORMALIZED
@REDUCTIONS
@KINDS
def test_with_a_shared_transformer(
    build: Build, shared_outputs: Outputs, kind: str, reduction: str, fields: dict[str, Any]
) -> None:
    ranker = build(shared_encoder=True, context_vectors=kind, reduction=reduction, **fields)
    agree(ranker, expected(ranker, shared_outputs))


@NORMALIZED
@REDUCTIONS
@KINDS
def test_with_two_transformers(
    build: Build, separate_outputs: Outputs, kind: str, reduction: str, fields: dict[str, Any]
) -> None:
    ranker = build(context_vectors=kind, reduction=reduction, **fields)
    agree(ranker, expected(ranker, separate_outputs))


@KINDS
@pytest.mark.parametrize("shared", [False, True])
def test_without_its_correction_it_is_the_poly_encoder(build: Build, kind: str, shared: bool) -> None:
    fields = {"context_vectors": kind, "shared_encoder": shared, "reduction": "mean", **SCALED}
    ranker, poly = build(**fields), build("poly", **fields)
    scores = [score for text in CONTEXTS for _, score in sorted(poly.rank(text, CANDIDATES))]
    assert np.abs(ranker.score_pairs(PAIRS) - scores).max() > 0.1
    torch.nn.init.zeros_(ranker.encoder.head.weight)
    agree(ranker, scores)


def test_the_correction_differs_from_context_to_context(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of what was read: of candidates that read nothing it is the same whatever the context."""

    def corrections(ranker: CrossRanker) -> NDArray[np.float32]:
        whole = ranker.score_pairs(PAIRS)
        torch.nn.init.zeros_(ranker.encoder.head.weight)
        return (whole - ranker.score_pairs(PAIRS)).reshape(len(CONTEXTS), -1)

    assert np.ptp(corrections(build()), axis=0).min() > 0.01
    monkeypatch.setattr("model.one_way.CONTEXT_LOGIT", -1e9)
    assert np.ptp(corrections(build()), axis=0).max() < 1e-4


def test_the_context_does_not_read(build: Build) -> None:
    """Its vectors are the Poly-encoder's whatever the candidates are: what the context is encoded once for."""
    ranker = build()
    seen: list[torch.Tensor] = []
    ranker.encoder.context.register_forward_hook(lambda *given: seen.append(given[-1]))
    for texts in (["w1"], CANDIDATES):
        ranker.rank(CONTEXTS[1], texts)
    one, other = seen
    assert one.shape == (1, 20, 16)
    assert torch.equal(one, other)
