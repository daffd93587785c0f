"""Properties of every score: its bounds, and its independence of the rest of a batch."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import polyrank
from polyrank.model.architectures.attention import ContextCodes, poly_scores
from polyrank.model.architectures.backbone import TensorBatch
from polyrank.model.architectures.batching import pad
from polyrank.model.config import ModelConfig
from polyrank.model.rankers.networks import VectorRanker
from polyrank.model.search.topk import top_k

pytestmark = pytest.mark.quick

TOLERANCE = 1e-5
KINDS = [
    {"architecture": "bi", "reduction": "mean"},
    {"architecture": "bi", "reduction": "first-m mean", "reduction_m": 3},
    {"architecture": "bi", "reduction": "all-but-first mean"},
    *({"architecture": "poly", "context_vectors": kind, "n_codes": 6} for kind in ("codes", "first", "last")),
    {"architecture": "poly", "context_vectors": "last+first", "n_codes": 6, "normalize": True, "score_scale": 20.0},
]


def late(base: Path, fields: dict[str, object]) -> VectorRanker:
    torch.manual_seed(0)
    config = ModelConfig(base_name="", max_context_tokens=40, max_candidate_tokens=16, **fields)
    ranker = polyrank.from_base(str(base), config)
    assert isinstance(ranker, VectorRanker)
    return ranker


def sequences(rng: np.random.Generator, count: int, longest: int) -> list[list[int]]:
    """Draw token ids of random texts, one of them as short as possible."""
    texts = [[2, *rng.integers(4, 44, size=rng.integers(1, longest - 2)).tolist(), 3] for _ in range(count - 1)]
    return [*texts, [2, int(rng.integers(4, 44)), 3]]


def lambert_w(x: float) -> float:
    """Solve w e^w = x for x >= 0 by Newton's method."""
    w = math.log1p(x)
    for _ in range(50):
        w -= (w * math.exp(w) - x) / (math.exp(w) * (w + 1.0))
    return w


def largest_gap(m: int) -> float:
    """Compute how far a score can be below the largest of its m products."""
    return lambert_w((m - 1) / math.e)


def test_lambert_w() -> None:
    assert lambert_w(0.0) == 0.0
    assert lambert_w(math.e) == pytest.approx(1.0)
    assert largest_gap(64) == pytest.approx(2.31, abs=0.005)


@pytest.mark.parametrize("m", [1, 2, 4, 16, 64])
@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0, 30.0])
def test_a_score_lies_within_its_bounds(m: int, spread: float) -> None:
    rng = np.random.default_rng(m)
    codes = (rng.normal(size=(m, 8)) * spread).astype(np.float32)
    matrix = rng.normal(size=(500, 8)).astype(np.float32)
    found = top_k(matrix, codes, 500)
    context = ContextCodes(torch.from_numpy(codes)[None], torch.ones(1, m, dtype=torch.bool))
    scored = poly_scores(context, torch.from_numpy(matrix))
    largest = (matrix.astype(np.float64) @ codes.T.astype(np.float64)).max(axis=1)
    for scores, highest in ((found.scores, largest[found.rows]), (scored[0].numpy(), largest)):
        slack = 1e-5 * np.maximum(1.0, np.abs(highest))
        assert (scores <= highest + slack).all()
        assert (scores >= highest - largest_gap(m) - slack).all()


@pytest.mark.parametrize("m", [2, 4, 16, 64])
def test_the_lower_bound_is_attained(m: int) -> None:
    """The distance is largest if one product is ahead of all others by 1 + W((m - 1)/e)."""
    ahead = 1.0 + largest_gap(m)
    codes = np.zeros((m, 1), np.float32)
    codes[0] = ahead
    found = top_k(np.ones((1, 1), np.float32), codes, 1)
    assert ahead - found.scores[0] == pytest.approx(largest_gap(m), abs=1e-5)


@pytest.mark.parametrize("fields", KINDS, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_padding_changes_nothing(base: Path, fields: dict[str, object], seed: int) -> None:
    """Up to 20 padding positions, with any ids in them."""
    rng = np.random.default_rng(seed)
    encoder = late(base, fields).encoder
    batch = TensorBatch.of(pad(sequences(rng, 4, 16), 0))
    more = int(rng.integers(1, 21))
    junk = torch.from_numpy(rng.integers(0, 44, size=(4, more)))
    wide = TensorBatch(
        torch.cat([batch.ids, junk], dim=1),
        torch.cat([batch.mask, torch.zeros(4, more, dtype=torch.bool)], dim=1),
        torch.cat([batch.segments, torch.zeros_like(junk)], dim=1),
    )
    with torch.inference_mode():
        candidates, padded = encoder.encode_candidates(batch).first, encoder.encode_candidates(wide).first
        scores = poly_scores(encoder.encode_contexts(batch).first, candidates)
        padded_scores = poly_scores(encoder.encode_contexts(wide).first, candidates)
    torch.testing.assert_close(padded, candidates, rtol=0, atol=TOLERANCE)
    bound = TOLERANCE * max(1.0, scores.abs().max().item())
    torch.testing.assert_close(padded_scores, scores, rtol=0, atol=bound)


@pytest.mark.parametrize("fields", KINDS, ids=str)
def test_company_in_a_batch_changes_nothing(base: Path, fields: dict[str, object]) -> None:
    """Texts encoded alone, together, in another order, and among longer ones."""
    rng = np.random.default_rng(9)
    ranker = late(base, fields)
    texts = sequences(rng, 12, 16)
    order = rng.permutation(12)
    together = ranker.encode_candidates(texts)
    alone = np.concatenate([ranker.encode_candidates([text]) for text in texts])
    permuted = ranker.encode_candidates([texts[at] for at in order])
    among = ranker.encode_candidates([*texts, *sequences(rng, 5, 40)])[:12]
    for made in (alone, permuted[order.argsort()], among):
        np.testing.assert_allclose(made, together, rtol=0, atol=TOLERANCE)
    codes = ranker.encode_contexts(texts)
    for text, vectors, crowded in zip(texts, codes, ranker.encode_contexts([*texts, list(range(4, 44))]), strict=False):
        np.testing.assert_allclose(ranker.encode_contexts([text])[0], vectors, rtol=0, atol=20 * TOLERANCE)
        np.testing.assert_allclose(crowded, vectors, rtol=0, atol=20 * TOLERANCE)


def test_many_texts_make_several_batches_and_keep_their_order(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = sequences(np.random.default_rng(1), 60, 16)
    expected = late(base, KINDS[0]).encode_candidates(texts)
    batches: list[int] = []
    monkeypatch.setattr("polyrank.model.inference.torch_backend.TOKEN_BUDGET", 48)
    np.testing.assert_allclose(
        late(base, KINDS[0]).encode_candidates(texts, batches.append), expected, rtol=0, atol=TOLERANCE
    )
    assert sum(batches) == 60
    assert len(batches) > 10


def test_cross_encoder_scores_do_not_depend_on_the_other_candidates(base: Path) -> None:
    config = ModelConfig(architecture="cross", base_name="", max_context_tokens=40, max_candidate_tokens=16)
    ranker = polyrank.from_base(str(base), config)
    rng = np.random.default_rng(2)
    texts = [" ".join(f"w{n}" for n in rng.integers(0, 40, size=rng.integers(1, 12))) for _ in range(15)]
    together = dict(ranker.rank(["w1", "w2 w3"], texts))
    order = rng.permutation(15)
    permuted = dict(ranker.rank(["w1", "w2 w3"], [texts[at] for at in order]))
    for place, at in enumerate(order.tolist()):
        assert permuted[place] == pytest.approx(together[at], abs=TOLERANCE)
        assert dict(ranker.rank(["w1", "w2 w3"], [texts[at]]))[0] == pytest.approx(together[at], abs=TOLERANCE)


@pytest.mark.parametrize("fields", KINDS, ids=str)
def test_permuting_candidate_texts_permutes_the_ranking(base: Path, fields: dict[str, object]) -> None:
    ranker = late(base, fields)
    texts = [f"w{n} w{n + 1} w{39 - n}" for n in range(20)]
    order = np.random.default_rng(3).permutation(20)
    plain = ranker.rank(["w5 w6", "w7"], texts)
    permuted = ranker.rank(["w5 w6", "w7"], [texts[at] for at in order])
    assert [int(order[at]) for at, _ in permuted] == [at for at, _ in plain]
