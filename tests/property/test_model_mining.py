"""Mining with real models against brute force over all texts, for any setting of the rules."""

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from brute_force import paper_scores
from cases import cases
from fakes import EVIDENCE
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import write_checkpoint

import polyrank
from polyrank.model.evaluation.mining import REASONS, Miner, MiningRules, TextPool, score_bound
from polyrank.model.lexical.table import WordTable
from polyrank.model.lexical.words import Statistics
from polyrank.model.rankers.networks import CrossRanker, VectorRanker
from polyrank.model.representations import Additions
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.conversations import Positives
from polyrank.model.text.dialogues import Dialogue

MODELS: dict[str, dict[str, object]] = {
    "bi": {"architecture": "bi"},
    "poly": {"architecture": "poly", "n_codes": 4, "normalize": True, "score_scale": 5.0},
    "cross": {"architecture": "cross"},
    "words": {"architecture": "poly", "n_codes": 4, "normalize": True, "score_scale": 5.0, "evidence": EVIDENCE},
    "cross of words": {"architecture": "cross", "evidence": EVIDENCE},
}


@cache
def ranker(name: str) -> VectorRanker | CrossRanker:
    with TemporaryDirectory() as directory:
        return polyrank.load(write_checkpoint(Path(directory), name, len(name), **MODELS[name]))


def said(rng: np.random.Generator) -> str:
    """Draw one to three words that the models know, with varying white space."""
    return str(rng.choice([" ", "  "])).join(f"w{word}" for word in rng.integers(12, size=rng.integers(1, 4)))


def drawn(seed: int) -> tuple[list[str], list[Dialogue]]:
    """Draw a pool with texts in several spellings, and examples that may share their context."""
    rng = np.random.default_rng(seed)
    pool = [said(rng) for _ in range(int(rng.integers(1, 120)))]
    contexts = [[said(rng)] for _ in range(4)]
    golds = [str(rng.choice(pool)) if rng.random() < 0.7 else said(rng) for _ in range(8)]
    return pool, [
        Dialogue(Conversation.of(contexts[rng.integers(4)], ["w7"] * int(rng.integers(2))), gold) for gold in golds
    ]


def same(text: str) -> str:
    return " ".join(text.split())


def context_of(dialogue: Dialogue) -> tuple[list[str], tuple[str, ...]]:
    return [same(turn.text) for turn in dialogue.conversation.turns], dialogue.conversation.persona


def additions(late: VectorRanker, dialogue: Dialogue, texts: list[str], pool: list[str]) -> Additions | None:
    """What words add to the scores of texts, where the model counts them."""
    if late.evidence is None:
        return None
    return late.evidence.additions(dialogue.conversation, WordTable.of(texts, Statistics.of(pool)))


def by_hand(pool: list[str], dialogues: list[Dialogue], late: VectorRanker, rules: MiningRules) -> list[list[str]]:
    """Compute the hardest negatives of each example from the scores of all texts."""
    texts = [text for at, text in enumerate(pool) if same(text) not in map(same, pool[:at])]
    embeddings = late.encode_candidates(late.tokenize_candidates(texts)[0])
    golds = late.encode_candidates(late.tokenize_candidates([each.response for each in dialogues])[0])
    all_codes = late.encode_contexts([late.tokenize_context(each.conversation)[0] for each in dialogues])
    found = []
    for dialogue, gold, codes in zip(dialogues, golds, all_codes, strict=True):
        scores = paper_scores(embeddings, codes, additions(late, dialogue, texts, texts))
        right = {same(other.response) for other in dialogues if context_of(other) == context_of(dialogue)}
        best = sorted(range(len(texts)), key=lambda row: (-scores[row], row))[: rules.depth]
        left = [row for row in best if same(texts[row]) not in right][rules.skip :]
        if rules.margin is not None:
            of_gold = additions(late, dialogue, [dialogue.response], texts)
            gold_score = float(paper_scores(gold[None], codes, of_gold)[0])
            random = float(scores.mean(dtype=np.float64))
            left = [row for row in left if scores[row] < gold_score - rules.margin * max(gold_score - random, 0.0)]
        found.append([texts[row] for row in left])
    return found


def mined(
    pool: list[str], dialogues: list[Dialogue], late: VectorRanker, rules: MiningRules, check: CrossRanker | None = None
) -> list[list[str]]:
    miner = Miner(late, TextPool.encode(late, pool, lambda *_: None), Positives(dialogues), rules, check)
    return [list(each.negatives) for each in miner.mine(dialogues)]


RULES = st.builds(
    MiningRules, depth=st.integers(1, 150), skip=st.integers(0, 8), margin=st.none() | st.floats(0, 1),
    check_margin=st.floats(-1, 1), negatives=st.integers(1, 20), seed=st.integers(0, 9),
)  # fmt: skip


@pytest.mark.parametrize("name", ["bi", "poly", "words"])
@settings(max_examples=cases(60))
@given(st.integers(0, 10_000), RULES)
def test_the_hardest_are_those_of_brute_force(name: str, seed: int, rules: MiningRules) -> None:
    pool, dialogues = drawn(seed)
    late = ranker(name)
    assert isinstance(late, VectorRanker)
    expected = by_hand(pool, dialogues, late, rules)
    assert mined(pool, dialogues, late, rules) == [each[: rules.negatives] for each in expected]


@settings(max_examples=cases(60))
@given(st.integers(0, 10_000), RULES)
def test_a_draw_is_from_what_brute_force_leaves(seed: int, rules: MiningRules) -> None:
    pool, dialogues = drawn(seed)
    late = ranker("poly")
    assert isinstance(late, VectorRanker)
    found = mined(pool, dialogues, late, replace(rules, sample=True))
    for negatives, window in zip(found, by_hand(pool, dialogues, late, rules), strict=True):
        assert len(negatives) == min(rules.negatives, len(window))
        assert negatives == [text for text in window if text in negatives]


@pytest.mark.parametrize(("name", "check"), [("poly", "cross"), ("words", "cross of words"), ("bi", "cross of words")])
@settings(max_examples=cases(10))
@given(st.integers(0, 10_000), RULES)
def test_the_cross_encoder_filters_as_if_it_read_everything(
    name: str, check: str, seed: int, rules: MiningRules
) -> None:
    pool, dialogues = drawn(seed)
    late, cross = ranker(name), ranker(check)
    assert isinstance(late, VectorRanker)
    assert isinstance(cross, CrossRanker)
    found = mined(pool, dialogues, late, rules, cross)
    texts = {same(text): text for text in reversed(pool)}.values()
    counted = Statistics.of(texts) if late.evidence else None
    for dialogue, negatives, window in zip(dialogues, found, by_hand(pool, dialogues, late, rules), strict=True):
        [gold, *scores] = (
            float(cross.score_texts(dialogue.conversation, [text], counted)[0]) for text in (dialogue.response, *window)
        )
        passed = [text for text, score in zip(window, scores, strict=True) if score < gold - rules.check_margin]
        assert negatives == passed[: rules.negatives]


def test_the_drawn_cases_reach_every_rule() -> None:
    filtered, several = Counter[str](), 0
    late, cross = ranker("poly"), ranker("cross")
    assert isinstance(late, VectorRanker)
    assert isinstance(cross, CrossRanker)
    for seed in range(20):
        pool, dialogues = drawn(seed)
        positives = Positives(dialogues)
        several += any(len(set(positives.of(each.conversation).tolist())) > 1 for each in dialogues)
        miner = Miner(late, TextPool.encode(late, pool, lambda *_: None), positives, MiningRules(), cross)
        assert len(list(miner.mine(dialogues))) == 8
        filtered.update(miner.tally.filtered)
    assert several > 10
    assert all(filtered[reason] > 20 for reason in REASONS), filtered


NUMBERS = st.floats(-100, 100)


@given(NUMBERS, NUMBERS, st.floats(0, 1), st.floats(0.01, 100), NUMBERS)
def test_the_bound_moves_with_the_scores(gold: float, random: float, margin: float, scale: float, shift: float) -> None:
    moved = score_bound(scale * gold + shift, scale * random + shift, margin)
    assert moved == pytest.approx(scale * score_bound(gold, random, margin) + shift, abs=1e-6)


@given(NUMBERS, NUMBERS, st.floats(0, 1), st.floats(0, 1))
def test_the_bound_lies_between_random_and_gold_and_falls_with_the_margin(
    gold: float, random: float, one: float, other: float
) -> None:
    lower, higher = sorted([one, other], reverse=True)
    assert score_bound(gold, random, lower) <= score_bound(gold, random, higher) <= gold
    assert score_bound(gold, random, one) >= min(gold, random) - 1e-9
    assert score_bound(gold, 0.0, one) == pytest.approx(min(gold, (1 - one) * gold)), "a share of the gold score"
