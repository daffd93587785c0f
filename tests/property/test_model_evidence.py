"""A text's evidence is the same to the bit in whatever table it lies, and wherever its statistics come from."""

import numpy as np
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrank.model.config import EvidenceConfig
from polyrank.model.lexical.features import FEATURES
from polyrank.model.lexical.score import Evidence
from polyrank.model.lexical.table import WordTable
from polyrank.model.lexical.words import Statistics, words
from polyrank.model.text.assembly import Conversation

WORDS = st.sampled_from(["a", "lamp", "Lamp!", "boat", "ord-1-x", "v2.3", "?", "the", "sail", "über", "don't", "77"])
TEXT = st.lists(WORDS, max_size=8).map(" ".join)
CONVERSATION = st.builds(
    lambda turns, last, persona: Conversation.of([*turns, f"{last} x"], persona),
    st.lists(TEXT, max_size=5),
    TEXT,
    st.lists(TEXT, max_size=3),
)
WEIGHT = st.floats(-10, 10, allow_nan=False, width=32)
EVIDENCE = st.builds(
    lambda weights: Evidence(EvidenceConfig(weights=dict(zip(FEATURES, weights, strict=True)))),
    st.lists(WEIGHT, min_size=len(FEATURES), max_size=len(FEATURES)),
)
PLAIN = st.text(st.characters(max_codepoint=0x600) | st.sampled_from(" .-'_1\u2018\u2019\u201c\u2014\u20ac\u2026"))
FILLERS = Statistics.of(["what is the common"] * 300)  # so that other words are rare


@settings(max_examples=cases(200), deadline=None)
@given(EVIDENCE, CONVERSATION, st.lists(TEXT, min_size=1, max_size=12), st.lists(TEXT, max_size=12))
def test_values_do_not_depend_on_the_other_rows(
    evidence: Evidence, conversation: Conversation, texts: list[str], others: list[str]
) -> None:
    statistics = FILLERS.plus(Statistics.of(texts + others))
    whole = evidence.values(conversation, WordTable.of(texts + others, statistics))
    alone = [evidence.values(conversation, WordTable.of([text], statistics))[0] for text in texts]
    backwards = evidence.values(conversation, WordTable.of([*reversed(texts)], statistics))[::-1]
    np.testing.assert_array_equal(whole[: len(texts)].view(np.uint32), np.array(alone, np.float32).view(np.uint32))
    np.testing.assert_array_equal(backwards.view(np.uint32), whole[: len(texts)].view(np.uint32))
    assert np.isfinite(whole).all()


@settings(max_examples=cases(100), deadline=None)
@given(EVIDENCE, CONVERSATION, st.lists(TEXT, min_size=1, max_size=12))
def test_words_that_the_rows_lack_may_be_left_out_of_the_statistics(
    evidence: Evidence, conversation: Conversation, texts: list[str]
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
