"""A pair's score is its own, whatever it is scored beside; and batches are what the budget allows."""

from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import write_base

import model
from model import CrossRanker, ModelConfig
from model.one_way import ROW_TOKENS, OneWayEncoder, _rows
from model.pairs import Pairs

KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "codes": {"attention": "one-way", "n_codes": 3, "reduction": "mean"},
    "last+first": {
        "attention": "one-way",
        "n_codes": 6,
        "context_vectors": "last+first",
        "shared_encoder": True,
        "normalize": True,
        "score_scale": 5.0,
        "reduction": "first-m mean",
        "reduction_m": 3,
    },
}
ONE_WAY = ("codes", "last+first")


@cache
def ranker(kind: str) -> CrossRanker:
    torch.manual_seed(5)
    with TemporaryDirectory() as directory:
        base = write_base(Path(directory) / "base", seed=5)
        config = ModelConfig(
            architecture="cross", base_name="", max_context_tokens=40, max_candidate_tokens=24, **KINDS[kind]
        )
        made = model.from_base(str(base), config)
    assert isinstance(made, CrossRanker)
    torch.nn.init.normal_(made.encoder.head.weight)  # zero before training: nothing that was read would count
    return made


def one_way(kind: str) -> OneWayEncoder:
    encoder = ranker(kind).encoder
    assert isinstance(encoder, OneWayEncoder)
    return encoder


tokens = st.integers(4, 43)
contexts_of = st.lists(st.lists(tokens, min_size=1, max_size=20), min_size=1, max_size=4)
candidates_of = st.lists(st.lists(tokens, min_size=1, max_size=24), min_size=1, max_size=10)


@st.composite
def pairs_of(draw: st.DrawFn) -> Pairs:
    """Any number of candidates a context, none included, in any order."""
    contexts, candidates = draw(contexts_of), draw(candidates_of)
    places = st.integers(0, len(contexts) - 1)
    return Pairs(contexts, candidates, draw(st.lists(places, min_size=len(candidates), max_size=len(candidates))))


def alone(kind: str, pairs: Pairs) -> list[float]:
    scores = []
    with torch.inference_mode():
        for owner, candidate in zip(pairs.owners, pairs.candidates, strict=True):
            scores += ranker(kind).encoder.score_pairs(Pairs([pairs.contexts[owner]], [candidate], [0])).tolist()
    return scores


def assert_close(found: torch.Tensor, expected: list[float]) -> None:
    bound = 1e-5 * max(1.0, *map(abs, expected))
    torch.testing.assert_close(found, torch.tensor(expected), rtol=0, atol=bound)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(pairs_of(), st.sampled_from([1, 7, ROW_TOKENS]), st.integers(1, 80), st.randoms(use_true_random=False))
def test_company_changes_no_score(kind: str, pairs: Pairs, row_tokens: int, budget: int, draw: Any) -> None:
    """Rows of 1 and 7 tokens are shorter than most candidates, rows of 64 hold many."""
    encoder, expected = ranker(kind).encoder, alone(kind, pairs)
    order = list(range(len(expected)))
    draw.shuffle(order)
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr("model.one_way.ROW_TOKENS", row_tokens)
        assert_close(encoder.score_pairs(pairs), expected)
        assert_close(encoder.score_pairs(pairs.take(order)), [expected[at] for at in order])
        for positions in encoder.batches(pairs, budget):
            assert_close(encoder.score_pairs(pairs.take(positions)), [expected[at] for at in positions])


@pytest.mark.parametrize("kind", KINDS)
def test_a_ranker_gives_scores_in_the_order_given(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several batches, of contexts of several lengths."""
    numbers = range(30)
    contexts = [[2, *range(4, 4 + length), 3] for length in (3, 30, 1, 12)]
    pairs = Pairs(contexts, [[2, *range(40 - n % 17, 40), 3] for n in numbers], [n % 4 for n in numbers])
    monkeypatch.setattr("model.cross_ranker.TOKEN_BUDGET", 100)
    assert len(ranker(kind).encoder.batches(pairs, 100)) > 4
    assert_close(torch.from_numpy(ranker(kind).score_pairs(pairs)), alone(kind, pairs))


@given(pairs_of(), st.integers(1, 30))
def test_rows_are_of_one_context_and_of_as_many_tokens_as_are_allowed(pairs: Pairs, row_tokens: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("model.one_way.ROW_TOKENS", row_tokens)
        rows = _rows(pairs)
    assert Counter(pair for row in rows for pair in row) == Counter(range(len(pairs.owners)))
    for row in rows:
        assert len({pairs.owners[pair] for pair in row}) == 1
        assert len(row) == 1 or sum(len(pairs.candidates[pair]) for pair in row) <= row_tokens


@given(pairs_of(), st.integers(1, 120))
def test_batches_hold_every_pair_once_and_keep_to_the_budget(pairs: Pairs, budget: int) -> None:
    """The tokens of a row are its candidates' and, as all of them attend to it, its context's."""
    batches = one_way("codes").batches(pairs, budget)
    assert Counter(position for batch in batches for position in batch) == Counter(range(len(pairs.owners)))
    for batch in batches:
        taken = pairs.take(batch)
        rows = _rows(taken)
        used = sum(len(taken.contexts[taken.owners[row[0]]]) for row in rows) + sum(map(len, taken.candidates))
        assert used <= budget or len(rows) == 1


@given(pairs_of())
def test_a_context_is_encoded_once_however_many_candidates_it_has(pairs: Pairs) -> None:
    encoder, shapes = one_way("codes"), []
    hook = encoder.context.register_forward_hook(lambda *given: shapes.append(tuple(given[-1].shape[:2])))
    with torch.inference_mode():
        encoder.score_pairs(pairs)
    hook.remove()
    assert shapes == [(len(pairs.contexts), max(map(len, pairs.contexts)))]


@pytest.mark.parametrize("kind", ONE_WAY)
def test_no_pairs_have_no_batches_and_no_scores(kind: str) -> None:
    nothing = Pairs([[2, 5, 3]], [], [])
    assert one_way(kind).batches(nothing, 100) == []
    assert ranker(kind).score_pairs(nothing).shape == (0,)
