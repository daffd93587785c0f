"""What tokens, codes and pairs of tokens contribute, against a reading of the weights in NumPy, in float64."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden.numpy_bert import Array, Weights, code_weights, reduced_terms, softmax, unit
from numpy.typing import NDArray
from tiny import CLS, SEP, word_ids, write_base, write_checkpoint

import polyrank
from polyrank.model.config import DenseConfig, ModelConfig
from polyrank.model.explanation import Explanation, relative
from polyrank.model.rankers.networks import VectorRanker
from polyrank.model.registry import ColbertConfig, DeformerConfig, MixConfig, VirtConfig
from polyrank.model.representations import ContextEncoding, Representations
from polyrank.model.search.topk import scores_of
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.reading import finish

CONTEXTS = ["w1", "w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15", "w9 w9 w8 w7 w1 w0 w2"]
REPLIES = ["w3", "w4 w5 w6 w7 w8 w9 w10", "w39 w38 w3"]
SCALED: dict[str, Any] = {"normalize": True, "code_scale": 7.0, "score_scale": 20.0}
IDENTITY = {"activation": "identity", "bias": False}

POLY = {
    f"poly {kind} of {codes}{' scaled' if fields else ''}": {
        "architecture": "poly", "context_vectors": kind, "n_codes": codes, "reduction": reduction, **fields,
    }
    for kind, codes, reduction in [
        ("codes", 4, "mean"), ("codes", 1, "first-m mean"), ("first", 4, "mean"),
        ("last", 4, "max"), ("last+first", 4, "weighted-mean"),
    ]
    for fields in ({}, SCALED)
}  # fmt: skip
BI = {
    f"bi {reduction}{' scaled' if fields else ''}": {
        "architecture": "bi", "reduction": reduction, "reduction_m": 4, "shared_encoder": True, **fields,
    }
    for reduction in (
        "first", "last", "mean", "first-m mean", "all-but-first mean", "max", "mean-sqrt-len", "weighted-mean",
    )
    for fields in ({}, {"normalize": True, "score_scale": 20.0})
}  # fmt: skip
DENSE = {
    "bi dense": {
        "architecture": "bi",
        "reduction": "mean",
        "normalize": True,
        "dense": (DenseConfig(inputs=16, outputs=6, **IDENTITY),),
    },
    "bi dense of max": {
        "architecture": "bi",
        "reduction": "max",
        "dense": (DenseConfig(inputs=16, outputs=6, **IDENTITY), DenseConfig(inputs=6, outputs=4, **IDENTITY)),
    },
}
FIRST_STAGES = {
    "deformer": {"architecture": "deformer", "own": DeformerConfig(upper=1), "reduction": "mean"},
    "mix": {"architecture": "mix", "own": MixConfig(layers=(-1,), rows=2), "reduction": "weighted-mean"},
    "virt": {"architecture": "virt", "own": VirtConfig(), "reduction": "first"},
}


SERVED = 1e-5  # by which a served score differs, relative to its size: the transformer runs in float32


def load(parent: Path, **fields: Any) -> tuple[VectorRanker, Weights]:
    """A model and its weights."""
    path = write_checkpoint(parent, "model", 5, **fields)
    loaded = polyrank.load(path)
    assert isinstance(loaded, VectorRanker)
    return loaded, Weights(path)


def explained(ranker: VectorRanker, context: str, replies: list[str]) -> tuple[list[Explanation], Representations]:
    """What the product says of each reply, as the service asks for it, with vectors as float16 stores them."""
    explainer = ranker.explainer
    tokens, _ = finish(explainer.context_steps(Conversation.of(context)))
    ids = [token.id for token in tokens]
    replies_ids = [[token.id for token in each] for each in finish(explainer.reply_steps(replies))]
    [encoding] = ranker.represent_contexts([ids])
    made = ranker.represent_candidates(replies_ids)
    late = None if made.late is None else made.late.astype(np.float16)
    made = made._replace(first=made.first.astype(np.float16), late=late)
    ranker.encoder.double()
    sums = (
        explainer.context_sums([ids, [CLS, *word_ids("w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16"), SEP]])[
            0
        ]
        if explainer.reads_context
        else None
    )
    reply_sums = explainer.reply_sums(replies_ids) if explainer.reads_replies else [None] * len(replies)
    found = [
        explainer.explain(encoding, sums, made.take([at]), of_reply, own)
        for at, (own, of_reply) in enumerate(zip(replies_ids, reply_sums, strict=True))
    ]
    ranker.encoder.float()
    return found, made


def context_terms(ranker: VectorRanker, weights: Weights, ids: list[int]) -> list[list[Array]]:
    """What each token adds to each context vector, by code and token, with all scales."""
    config = ranker.config
    states = weights.states("context", ids)
    if config.architecture == "poly":
        if config.normalize:
            states = np.stack([unit(h) for h in states])
        raw = [
            [share * h for share, h in zip(own, states, strict=True)] for own in code_weights(weights, config, states)
        ]
    else:
        kind = "mean" if config.architecture == "virt" else config.reduction
        raw = [through(weights, config, reduced_terms(kind, config.reduction_m, states))]
    return [[config.score_scale * term for term in one(config, terms)] for terms in raw]


def through(weights: Weights, config: Any, terms: list[Array]) -> list[Array]:
    for at in range(len(config.dense)):
        terms = [weights[f"dense.{at}.linear.weight"] @ term for term in terms]
    return terms


def one(config: Any, terms: list[Array]) -> list[Array]:
    """Terms divided by the length of their sum, where the model has unit vectors."""
    if not config.normalize and config.architecture in ("bi", "poly"):
        return terms
    length = math.sqrt(sum(float(x) ** 2 for x in np.sum(terms, axis=0)))
    return [term / length for term in terms]


def reply_terms(ranker: VectorRanker, weights: Weights, ids: list[int]) -> list[Array]:
    """What each token of a reply adds to its vector."""
    config = ranker.config
    states = weights.states("candidate", ids, segment=1 if config.architecture == "deformer" else 0)
    if config.architecture == "mix":
        rows = [softmax(states @ code) for code in weights["rows"]]
        return one(config, [sum(row[k] for row in rows) / len(rows) * states[k] for k in range(len(states))])
    kind = "mean" if config.architecture == "virt" else config.reduction
    return one(config, through(weights, config, reduced_terms(kind, config.reduction_m, states)))


def single(text: str) -> list[int]:
    return [CLS, *word_ids(text), SEP]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [*POLY.values(), *BI.values(), *DENSE.values(), *FIRST_STAGES.values()],
    ids=[*POLY, *BI, *DENSE, *FIRST_STAGES],
)
def test_contributions_are_those_of_the_weights_and_sum_to_the_score(tmp_path: Path, fields: dict[str, Any]) -> None:
    ranker, weights = load(tmp_path, **fields)
    for context in CONTEXTS:
        found, made = explained(ranker, context, REPLIES)
        terms = context_terms(ranker, weights, single(context))
        [encoding] = ranker.represent_contexts([single(context)])
        for at, each in enumerate(found):
            vector = made.first[at].astype(np.float64)
            s = np.array([sum(float(term @ vector) for term in own) for own in terms])
            w = softmax(s)
            expected = np.array([[w[i] * float(term @ vector) for term in own] for i, own in enumerate(terms)])
            score = float(w @ s)
            size = max(1.0, abs(score))
            assert each.tokens is not None
            np.testing.assert_allclose(each.codes.contributions, expected, rtol=0, atol=1e-9 * size)
            np.testing.assert_allclose(each.codes.weights, w, rtol=0, atol=1e-9)
            np.testing.assert_allclose(each.tokens, expected.sum(axis=0), rtol=0, atol=1e-9 * size)
            assert each.codes.effective == pytest.approx(math.exp(-sum(x * math.log(x) for x in w if x)), abs=1e-9)
            assert float(each.tokens.sum()) == pytest.approx(score, abs=1e-9 * size)
            assert score == pytest.approx(first_score(encoding, made.first[at]), abs=SERVED * size)
            without = [
                sum(float(v) * x for v, x in zip(softmax(np.delete(s, i)), np.delete(s, i), strict=True))
                for i in range(len(s) if len(s) > 1 else 0)
            ]
            np.testing.assert_allclose(each.codes.without_each()[: len(without)], without, atol=1e-9 * size)


def first_score(context: ContextEncoding, vector: NDArray[Any]) -> float:
    """As a scan scores: the closed form over context vectors that a back-end made in float32."""
    return float(scores_of(vector[None], context.codes, None)[0])


HAVE_PAIRS = {
    name: fields
    for name, fields in {**POLY, **BI, **DENSE, **FIRST_STAGES}.items()
    if fields["reduction"] not in ("first", "last") or fields["architecture"] == "virt"
}


@pytest.mark.parametrize("fields", HAVE_PAIRS.values(), ids=HAVE_PAIRS)
def test_pairs_are_those_of_the_weights_and_sum_to_the_score_but_for_the_rounding_of_the_vector(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    ranker, weights = load(tmp_path, **fields)
    found, made = explained(ranker, CONTEXTS[2], REPLIES)
    terms = context_terms(ranker, weights, single(CONTEXTS[2]))
    for at, each in enumerate(found):
        vector = made.first[at].astype(np.float64)
        w = softmax(np.array([sum(float(term @ vector) for term in own) for own in terms]))
        of_reply = reply_terms(ranker, weights, single(REPLIES[at]))
        expected = [
            [sum(float(w[i] * (terms[i][t] @ part)) for i in range(len(terms))) for part in of_reply]
            for t in range(len(terms[0]))
        ]
        assert each.pairs is not None
        assert each.tokens is not None
        np.testing.assert_allclose(each.pairs, expected, rtol=0, atol=1e-9 * max(1.0, np.abs(expected).max()))
        rounding = float(np.abs(np.sum(of_reply, axis=0) - vector).max())
        lengths = sum(float(w[i]) * float(np.abs(np.sum(own, axis=0)).sum()) for i, own in enumerate(terms))
        assert float(each.pairs.sum()) == pytest.approx(float(each.tokens.sum()), abs=1.001 * rounding * lengths)


MARKED = ("[MASK]", "[unused0]", "[unused1]", ".")  # the vocabulary's ids from 44 on


@pytest.mark.parametrize("more", [(), MARKED])
def test_best_pairs_of_colbert(tmp_path: Path, more: tuple[str, ...]) -> None:
    config = ModelConfig(
        architecture="colbert", base_name="tiny", score_scale=20.0, max_context_tokens=40, max_candidate_tokens=16
    )
    made_of = polyrank.from_base(str(write_base(tmp_path / "base", 5, more)), config)
    made_of.save(tmp_path / "model")
    ranker, weights = polyrank.load(tmp_path / "model"), Weights(tmp_path / "model")
    assert isinstance(ranker, VectorRanker)
    block = ranker.config.block(ColbertConfig)
    assert (block.mask_id, block.query_marker, block.dropped) == ((44, 45, (47,)) if more else (0, None, ()))
    replies = ["w3 . w4", *REPLIES] if more else REPLIES
    projection = weights["projection.weight"]
    for context in CONTEXTS:
        found, made = explained(ranker, context, replies)
        query = single(context) if block.query_marker is None else [CLS, 45, *single(context)[1:]]
        filled = [*query, *[44] * (block.query_tokens - len(query))]
        states = weights.states("context", filled, visible=len(query))
        rows = [unit(projection @ h) for h in states]
        starts = np.cumsum([0, *made.counts])
        [encoding] = ranker.represent_contexts([single(context)])
        scores = ranker.late_scores(encoding, made)
        for at, each in enumerate(found):
            stored = made.late[starts[at] : starts[at + 1]].astype(np.float64)
            read = [CLS, *(47 if word == "." else word_ids(word)[0] for word in replies[at].split()), SEP]
            reply = read if block.candidate_marker is None else [CLS, 46, *read[1:]]
            kept = [k for k, id_ in enumerate(reply) if id_ not in block.dropped]
            expected = np.zeros((len(rows), len(reply)))
            for t, row in enumerate(rows):
                similarities = [float(row @ other) for other in stored]
                best = max(range(len(stored)), key=similarities.__getitem__)
                expected[t, kept[best]] = 20.0 / len(rows) * similarities[best]
            assert each.pairs is not None
            np.testing.assert_allclose(each.pairs, expected, rtol=0, atol=1e-4)
            np.testing.assert_allclose(each.tokens, expected.sum(axis=1), rtol=0, atol=1e-4)
            assert float(each.tokens.sum()) == pytest.approx(float(scores[at]), abs=2e-5)
        tokens, _ = finish(ranker.explainer.context_steps(Conversation.of(context)))
        assert [token.id for token in ranker.explainer.context_tokens(tokens)] == filled


@pytest.mark.parametrize(("fields", "left_out"), [
    (BI["bi first"], {"reply_tokens"}),
    (BI["bi last"], {"reply_tokens"}),
    (BI["bi max"], set()),
    ({"architecture": "bi", "dense": (DenseConfig(inputs=16, outputs=6),)}, {"tokens", "reply_tokens"}),
    (
        {"architecture": "bi", "dense": (DenseConfig(inputs=16, outputs=6, activation="identity"),)},
        {"tokens", "reply_tokens"},
    ),
    ({"architecture": "virt", "own": VirtConfig()}, {"second_stage"}),
    ({"architecture": "virt", "own": VirtConfig(residual=False)}, {"second_stage", "tokens", "reply_tokens"}),
    ({"architecture": "deformer", "own": DeformerConfig()}, {"second_stage", "reply_tokens"}),
    ({"architecture": "mix", "own": MixConfig()}, {"second_stage"}),
    ({"architecture": "mix", "own": MixConfig(strategy="inputs")}, {"second_stage", "reply_tokens"}),
    ({"architecture": "mix", "own": MixConfig(residual=False)}, {"second_stage", "tokens", "reply_tokens"}),
    ({"architecture": "colbert", "own": ColbertConfig()}, set()),
])  # fmt: skip
def test_what_is_no_sum_is_named_and_left_out(tmp_path: Path, fields: dict[str, Any], left_out: set[str]) -> None:
    ranker, _ = load(tmp_path, **fields)
    assert ranker.explainer.unexplained.keys() == left_out
    [found, *_], _ = explained(ranker, CONTEXTS[2], REPLIES)
    assert (found.tokens is None) == ("tokens" in left_out)
    assert (found.pairs is None) == ("reply_tokens" in left_out)


def test_relative_contributions_speak_for_a_reply_beside_the_others() -> None:
    contributions = np.array([[3.0, 1.0], [1.0, 1.0], [2.0, 4.0]])
    assert relative(contributions, None).tolist() == [[1.0, -1.0], [-1.0, -1.0], [0.0, 2.0]]
    assert relative(contributions, 2).tolist() == [[1.0, -3.0], [-1.0, -3.0], [0.0, 0.0]]
