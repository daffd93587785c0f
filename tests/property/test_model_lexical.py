"""The lexical score: tables in parts and whole, scores, and searches with them."""

import itertools
from typing import Any

import numpy as np
import pytest
from cases import cases
from fakes import silent
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny import write_checkpoint

import polyrank
import polyrank.model.lexical.words as words_module
from polyrank.model.config import LexicalConfig
from polyrank.model.evaluation.rankings import DEPTH, rank_lists, rerank, retrieve
from polyrank.model.lexical.score import FEATURES, LexicalScore
from polyrank.model.lexical.table import TableInParts, WordTable, joined
from polyrank.model.lexical.words import Statistics, normalised, words
from polyrank.model.rankers.load import load_cross
from polyrank.model.rankers.networks import CrossRanker, VectorRanker
from polyrank.model.text import folding
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.folding import folded

WORDS = st.sampled_from(["a", "lamp", "Lamp!", "boat", "ord-1-x", "v2.3", "?", "the", "sail", "über", "don't", "77"])
TEXT = st.lists(WORDS, max_size=8).map(" ".join)
CONVERSATION = st.builds(
    lambda turns, last, persona: Conversation.of([*turns, f"{last} x"], persona),
    st.lists(TEXT, max_size=5),
    TEXT,
    st.lists(TEXT, max_size=3),
)
WEIGHT = st.floats(-10, 10, allow_nan=False, width=32)
EVIDENCES = st.builds(
    lambda weights: LexicalScore(LexicalConfig(weights=dict(zip(FEATURES, weights, strict=True)))),
    st.lists(WEIGHT, min_size=len(FEATURES), max_size=len(FEATURES)),
)
PLAIN = st.text(st.characters(max_codepoint=0x600) | st.sampled_from(" .-'_1\u2018\u2019\u201c\u2014\u20ac\u2026"))
FILLERS = Statistics.of(["what is the common"] * 300)  # so that other words are rare


@settings(max_examples=cases(200), deadline=None)
@given(EVIDENCES, CONVERSATION, st.lists(TEXT, min_size=1, max_size=12), st.lists(TEXT, max_size=12))
def test_values_do_not_depend_on_the_other_rows(
    evidence: LexicalScore, conversation: Conversation, texts: list[str], others: list[str]
) -> None:
    statistics = FILLERS.plus(Statistics.of(texts + others))
    whole = evidence.values(conversation, WordTable.of(texts + others, statistics))
    alone = [evidence.values(conversation, WordTable.of([text], statistics))[0] for text in texts]
    backwards = evidence.values(conversation, WordTable.of([*reversed(texts)], statistics))[::-1]
    np.testing.assert_array_equal(whole[: len(texts)].view(np.uint32), np.array(alone, np.float32).view(np.uint32))
    np.testing.assert_array_equal(backwards.view(np.uint32), whole[: len(texts)].view(np.uint32))
    assert np.isfinite(whole).all()


@settings(max_examples=cases(100), deadline=None)
@given(EVIDENCES, CONVERSATION, st.lists(TEXT, min_size=1, max_size=12))
def test_words_that_the_rows_lack_may_be_left_out_of_the_statistics(
    evidence: LexicalScore, conversation: Conversation, texts: list[str]
) -> None:
    full = FILLERS.plus(Statistics.of([*texts, "other words 99", "and more"]))
    own = np.isin(full.keys, Statistics.of(texts).keys)
    fewer = Statistics(full.texts, full.words, full.keys[own], full.frequencies[own])
    found = [evidence.values(conversation, WordTable.of(texts, statistics)) for statistics in (full, fewer)]
    np.testing.assert_array_equal(found[0].view(np.uint32), found[1].view(np.uint32))
    assert len(found[0]) == len(texts)
    assert not any(words(text) for text in texts) or own.any()


@settings(max_examples=cases(500), deadline=None)
@given(PLAIN)
def test_the_fast_way_to_words_and_the_long_one_agree(text: str) -> None:
    """A zero-width space is ignored, and no plain text has one."""
    assert words(text) == words(f"{text} \u200b")


BLOCKS = [  # of spaces and signs, marks, scripts of each kind, letters of several forms, and emoji
    range(0x20, 0x7F), range(0xA0, 0x180), range(0x300, 0x330), range(0x590, 0x6FF), range(0x900, 0x97F),
    range(0xE00, 0xE60), range(0x1100, 0x1200), range(0x2000, 0x2070), range(0x3000, 0x3140), range(0x4E00, 0x4E20),
    range(0xAC00, 0xAC40), range(0xFF00, 0xFFF0), range(0x1F1E6, 0x1F200), range(0x1F3F0, 0x1F470),
]  # fmt: skip
LETTERS = st.one_of(*(st.sampled_from([*map(chr, block)]) for block in BLOCKS))
IN_ANY_SCRIPT = st.text(LETTERS | st.characters(max_codepoint=0xFFFF) | st.sampled_from(" .-'\u200d\ufe0f1l"))


@settings(max_examples=cases(500), deadline=None)
@given(IN_ANY_SCRIPT)
def test_near_texts_and_far_ones_are_read_alike(text: str) -> None:
    """What is spelt out for near texts is what `regex` finds by the properties of letters."""
    near = words(text), normalised(text), folded(text)
    with pytest.MonkeyPatch.context() as patch:
        for module in (words_module, folding):
            patch.setattr(module, "is_far", lambda _text: True)
        assert (words(text), normalised(text), folded(text)) == near


FEW_WORDS = st.sampled_from(["a", "lamp", "Lamp!", "boat", "ord-1-x", "v2.3", "?", "the", "über", "77"])
MANY = Statistics.of(["the a"] * 1000)  # beside them some words are rare, and some common
TEXTS = st.lists(st.lists(FEW_WORDS, max_size=6).map(" ".join), max_size=12)


def assert_equal(found: WordTable, expected: WordTable) -> None:
    for name, array in expected.arrays().items():
        assert found.arrays()[name].dtype == array.dtype, name
        np.testing.assert_array_equal(found.arrays()[name], array, name)


@settings(max_examples=cases(200), deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4), TEXTS)
def test_parts_make_the_whole(parts: list[list[str]], others: list[str]) -> None:
    texts = [text for part in parts for text in part]
    statistics, counted = MANY.plus(Statistics.of(texts + others)), Statistics.of(texts)
    tables = [WordTable.of(part, statistics) for part in parts]
    expected = WordTable.of(texts, statistics)
    assert_equal(joined(tables), expected)
    tells = statistics.rarity(counted.keys) > 0
    whole = TableInParts(counted.keys[tells], counted.frequencies[tells], len(texts))
    for table in tables:
        whole.add(table)
    found = whole.finished(statistics)
    assert_equal(found, expected)
    assert found.statistics is statistics


def test_what_was_joined_is_not_changed_by_joining() -> None:
    statistics = MANY.plus(Statistics.of(["a lamp", "a boat"]))
    first, second = (WordTable.of([text], statistics) for text in ("a lamp", "a boat"))
    before = {name: array.copy() for name, array in first.arrays().items()}
    assert len(joined([first, second])) == 2
    for name, array in before.items():
        np.testing.assert_array_equal(first.arrays()[name], array)
    assert [rows.tolist() for _, rows in joined([first]).rows_with(first.texts[:1])] == [[0]]


@pytest.mark.parametrize("texts", [[], [""], ["?", ""]])
def test_rows_without_words(texts: list[str]) -> None:
    statistics = Statistics.of(texts)
    table = WordTable.of(texts, statistics)
    assert_equal(joined([table, table]), WordTable.of(texts * 2, statistics))


FIELDS: dict[str, Any] = {"architecture": "poly", "n_codes": 4, "normalize": True, "score_scale": 5.0}
EVIDENCE = LexicalConfig(
    late_weight=0.7,
    weights={"persona": 0.5, "told": -0.4, "last": 0.6, "before": 0.3, "older": 0.2, "said": -3.0, "length": -0.3},
)
POOL = [f"w{n % 40} w{n * 7 % 33} W{n // 40} ord-{n % 130}" for n in range(260)]
CONTEXTS = [
    Conversation.of([POOL[5 * n], f"w{n} ord-{n + 1}", f"w{2 * n % 40} ord-{2 * n}"], [f"ord-{3 * n}"])
    for n in range(25)
]
NOTHING_RIGHT = [np.empty(0, np.int64)] * len(CONTEXTS)


@pytest.fixture(scope="module")
def rankers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, VectorRanker]:
    parent = tmp_path_factory.mktemp("evidence")
    given = {"plain": None, "with": EVIDENCE, "zero": LexicalConfig(weights=dict.fromkeys(FEATURES, 0.0))}
    for name, evidence in given.items():
        write_checkpoint(parent, name, 0, evidence=evidence, **FIELDS)
    return {name: polyrank.load(parent / name) for name in given}


def lexical(context: Conversation, texts: list[str], pool: list[str], are_list: bool) -> NDArray[np.float32]:
    evidence, table = LexicalScore(EVIDENCE), WordTable.of(texts, Statistics.of(pool))
    values = (evidence.in_list(context, table) if are_list else evidence).values(context, table)
    assert values.any()
    return values


def brute_force(
    ranker: VectorRanker, context: Conversation, texts: list[str], pool: list[str], are_list: bool = False
) -> NDArray[np.float32]:
    embeddings = ranker.encode_candidates(ranker.tokenize_candidates(texts)[0])
    [codes] = ranker.encode_contexts([ranker.tokenize_context(context)[0]])
    s = embeddings.astype(np.float64) @ codes.astype(np.float64).T
    powers = np.exp(s - s.max(axis=1, keepdims=True))
    late = (powers * s).sum(axis=1) / powers.sum(axis=1)
    values = lexical(context, texts, pool, are_list)
    return (EVIDENCE.late_weight * late + values.astype(np.float64)).astype(np.float32)


def test_rank_gives_the_scores_of_brute_force(rankers: dict[str, VectorRanker]) -> None:
    for context in CONTEXTS:
        found = rankers["with"].rank(context.turns, POOL, persona=context.persona)
        scores = brute_force(rankers["with"], context, POOL, POOL)
        np.testing.assert_allclose(
            [score for _, score in found], scores[[row for row, _ in found]], rtol=1e-5, atol=1e-5
        )
        assert sorted(row for row, _ in found) == list(range(len(POOL)))
        assert all(one >= other for (_, one), (_, other) in itertools.pairwise(found))


def test_lists_take_all_their_candidates_for_the_pool(rankers: dict[str, VectorRanker]) -> None:
    lists = [POOL[n : n + 20] for n in range(0, 250, 10)]
    dialogues = [Dialogue(context, own[0], tuple(own), 0) for context, own in zip(CONTEXTS, lists, strict=True)]
    ranked = rank_lists(rankers["with"], dialogues, silent)
    pool = list(dict.fromkeys(text for own in lists for text in own))
    for context, own, scores in zip(CONTEXTS, lists, ranked.scores, strict=True):
        expected = brute_force(rankers["with"], context, own, pool, are_list=True)
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def test_a_pool_is_searched_by_the_same_score(rankers: dict[str, VectorRanker]) -> None:
    found, _ = retrieve(rankers["with"], CONTEXTS, POOL, NOTHING_RIGHT, silent)
    for context, (best, *_) in zip(CONTEXTS, found, strict=True):
        scores = brute_force(rankers["with"], context, POOL, POOL)
        np.testing.assert_allclose(best.scores, scores[best.rows], rtol=1e-5, atol=1e-5)
        assert len(set(best.rows.tolist())) == DEPTH
        assert best.scores[-1] >= np.delete(scores, best.rows).max() - 1e-5


def test_weights_of_zero_change_no_bit(rankers: dict[str, VectorRanker]) -> None:
    for context in CONTEXTS:
        ranked = [rankers[name].rank(context.turns, POOL, persona=context.persona) for name in ("plain", "zero")]
        assert ranked[0] == ranked[1]
    plain, zero = (retrieve(rankers[name], CONTEXTS, POOL, NOTHING_RIGHT, silent)[0] for name in ("plain", "zero"))
    for (one, *_), (other, *_) in zip(plain, zero, strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_array_equal(one.scores.view(np.uint32), other.scores.view(np.uint32))


def test_evidence_is_part_of_the_fingerprint_where_there_is_some(rankers: dict[str, VectorRanker], tmp_path) -> None:
    assert len({ranker.fingerprint for ranker in rankers.values()}) == 3
    rankers["with"].save(tmp_path / "copy")
    copy = polyrank.load(tmp_path / "copy")
    assert copy.fingerprint == rankers["with"].fingerprint
    assert copy.config.evidence == EVIDENCE


# --- Cross-encoders


@pytest.fixture(scope="module")
def crosses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CrossRanker]:
    parent = tmp_path_factory.mktemp("crosses")
    given = {"plain": None, "with": EVIDENCE, "zero": LexicalConfig(weights=dict.fromkeys(FEATURES, 0.0))}
    return {
        name: load_cross(write_checkpoint(parent, name, 0, architecture="cross", evidence=evidence))
        for name, evidence in given.items()
    }


def by_hand(
    ranker: CrossRanker, context: Conversation, texts: list[str], pool: list[str], are_list: bool = True
) -> NDArray[np.float32]:
    pairs = ranker.score_texts(context, texts, None)
    values = lexical(context, texts, pool, are_list)
    return np.array(
        [EVIDENCE.late_weight * float(pair) + float(value) for pair, value in zip(pairs, values, strict=True)],
        np.float32,
    )


def test_a_cross_encoder_counts_words_beside_the_pair(crosses: dict[str, CrossRanker]) -> None:
    texts = POOL[:80]
    for context in CONTEXTS[:5]:
        found = crosses["with"].rank(context.turns, texts, persona=context.persona)
        scores = by_hand(crosses["with"], context, texts, texts)
        assert [row for row, _ in found] == np.argsort(-scores, kind="stable").tolist()
        assert [score for _, score in found] == np.sort(scores)[::-1].tolist()


def test_lists_of_a_cross_encoder_take_all_their_candidates_for_the_pool(crosses: dict[str, CrossRanker]) -> None:
    lists = [POOL[n : n + 20] for n in range(0, 250, 10)]
    dialogues = [Dialogue(context, own[0], tuple(own), 0) for context, own in zip(CONTEXTS, lists, strict=True)]
    ranked = rank_lists(crosses["with"], dialogues, silent)
    pool = list(dict.fromkeys(text for own in lists for text in own))
    for context, own, scores in zip(CONTEXTS, lists, ranked.scores, strict=True):
        np.testing.assert_array_equal(scores, by_hand(crosses["with"], context, own, pool))


def test_what_is_reranked_counts_words_as_the_pool_has_them_where_the_first_stage_counts_them(
    rankers: dict[str, VectorRanker], crosses: dict[str, CrossRanker]
) -> None:
    found, _ = retrieve(rankers["with"], CONTEXTS[:5], POOL, NOTHING_RIGHT[:5], silent)
    counted = rerank(crosses["with"], CONTEXTS[:5], POOL, found, 7, silent, counts_words=True)
    for context, (before, *_), (after, *_) in zip(CONTEXTS, found, counted, strict=False):
        first = before.rows[:7]
        scores = by_hand(crosses["with"], context, [POOL[row] for row in first], POOL, are_list=False)
        order = np.argsort(-scores, kind="stable")
        assert after.rows.tolist() == [*first[order], *before.rows[7:]]
        assert after.scores[:7].tolist() == scores[order].tolist()
    alone = rerank(crosses["with"], CONTEXTS[:5], POOL, found, 7, silent, counts_words=False)
    plain = rerank(crosses["plain"], CONTEXTS[:5], POOL, found, 7, silent, counts_words=True)
    for (one, *_), (other, *_) in zip(alone, plain, strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_array_equal(one.scores, other.scores)


def test_weights_of_zero_change_no_bit_of_a_cross_encoder(crosses: dict[str, CrossRanker]) -> None:
    for context in CONTEXTS[:5]:
        plain, zero = (
            crosses[name].rank(context.turns, POOL[:60], persona=context.persona) for name in ("plain", "zero")
        )
        assert plain == zero
    assert len({ranker.fingerprint for ranker in crosses.values()}) == 3


finite = st.floats(-1e6, 1e6, width=32)


@given(st.lists(st.tuples(finite, finite), min_size=1), st.floats(1e-3, 1e3))
def test_the_parts_are_added_in_float64(parts: list[tuple[float, float]], late_weight: float) -> None:
    late, values = (np.array(each, np.float32) for each in zip(*parts, strict=True))
    scores = LexicalScore(LexicalConfig(late_weight=late_weight)).scores(late, values)
    expected = [float(np.float32(late_weight * float(one) + float(other))) for one, other in parts]
    assert scores.dtype == np.float32
    assert scores.tolist() == expected
