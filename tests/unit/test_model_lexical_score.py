"""The lexical part of the score."""

import numpy as np
import pytest
from numpy.typing import NDArray

from polyrank.model.config import LexicalConfig
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.lexical.score import FEATURES, TURN_FEATURES, LexicalScore
from polyrank.model.lexical.table import WordTable
from polyrank.model.lexical.words import Statistics
from polyrank.model.text.assembly import COUNTED_LETTERS, Conversation

TEXTS = ["I sell lamps", "we have ORD-77-A in stock", "my boat is blue", "yes", "the lamp?", "no idea"]


def values(weights: dict[str, float], *turns: str, persona: tuple[str, ...] = ()) -> NDArray[np.float32]:
    evidence = LexicalScore(LexicalConfig(weights=weights))
    table = WordTable.of(TEXTS, Statistics.of([*TEXTS, *["what is common"] * 500]))
    return evidence.values(Conversation.of(turns, persona), table)


@pytest.mark.parametrize(("feature", "turns", "persona", "best"), [
    ("persona", ("hi",), ("I like my boat",), 2),
    ("last", ("hi", "ord-77-a please"), (), 1),
    ("before", ("hello", "a lamp please", "sure"), (), 4),
    ("older", ("a blue boat", "x", "y"), (), 2),
    ("names", ("is ord-77-a in your lamps and boat shop", "x", "hello"), (), 1),
    ("said", ("YES!", "x"), (), 3),
])  # fmt: skip
def test_each_feature_finds_its_reply(
    feature: str, turns: tuple[str, ...], persona: tuple[str, ...], best: int
) -> None:
    found = values({feature: 1.0}, *turns, persona=persona)
    assert found.argmax() == best
    assert found.dtype == np.float32
    np.testing.assert_array_equal(values({feature: -1.0}, *turns, persona=persona), -found)


def test_longer_texts_have_a_larger_length() -> None:
    assert values({"length": 1.0}, "hi").argmax() == 1


def test_no_weight_is_no_evidence() -> None:
    assert not values({}, *TEXTS, persona=tuple(TEXTS)).any()
    assert not values(dict.fromkeys(FEATURES, 0.0), *TEXTS, persona=tuple(TEXTS)).any()


def test_features_add_up() -> None:
    parts = [values({name: 0.5}, *TEXTS, persona=("lamps",)) for name in FEATURES]
    together = values(dict.fromkeys(FEATURES, 0.5), *TEXTS, persona=("lamps",))
    np.testing.assert_allclose(together, np.sum(parts, axis=0, dtype=np.float64), rtol=1e-6)


def test_what_lies_far_back_is_not_read() -> None:
    far = values({"older": 1.0}, "boat", "x " * COUNTED_LETTERS, "hello", "hi")
    near = values({"older": 1.0}, "boat", "x", "hello", "hi")
    assert not far[2]
    assert near[2]


def test_the_largest_weights_stay_finite() -> None:
    weights = dict.fromkeys(FEATURES, 1e6)
    assert np.isfinite(values(weights, *["boat " * 5_000] * 3, persona=("boat " * 5_000,))).all()


def test_a_feature_of_a_newer_release_is_refused() -> None:
    with pytest.raises(CheckpointInvalid, match=r"evidence\.weights has unknown rhyme; written by a newer release"):
        LexicalScore(LexicalConfig(weights={"rhyme": 1.0}))


# --- lists whose candidates share the words of the conversation

WORDS = [f"word{n}" for n in range(300)]
POOL = Statistics.of([" ".join(WORDS[n : n + 8]) for n in range(290)] * 2)
SAID = Conversation.of("what of WORD5 and word200?")


def share(evidence: LexicalScore, *texts: str) -> float:
    return evidence.turns_share(SAID, [WordTable.of(texts, POOL)])


def test_words_of_turns_tell_less_where_all_candidates_share_them() -> None:
    evidence = LexicalScore(LexicalConfig(weights={"last": 1.0}))
    drawn = ["word77 word78", "word200 lamp", "word100 word101", "word9"]
    assert share(evidence, *drawn) == 1, "one candidate alone has the words, and who has most of them is left out"
    few, many = share(evidence, *drawn, "word5"), share(evidence, "word5 word200", "word5 one", "two word200 word5")
    assert 0 < many < few < 1
    assert share(evidence) == share(evidence, "word5 word200") == 1
    assert evidence.turns_share(SAID, [WordTable.of([text], POOL) for text in (*drawn, "word5")]) == few


def test_a_lexical_model_has_nothing_else_to_go_by() -> None:
    evidence = LexicalScore(LexicalConfig(weights={"last": 1.0}), has_network=False)
    assert evidence.sharing(share(evidence, "word5 word200", "word5 one", "two word200 word5")) is evidence


def test_only_words_of_turns_count_less() -> None:
    evidence = LexicalScore(LexicalConfig(late_weight=0.7, weights=dict.fromkeys(FEATURES, 0.5)))
    shared = evidence.sharing(0.25)
    assert shared.late_weight == 0.7
    lower = dict.fromkeys(TURN_FEATURES, 0.125)
    assert shared.config.weights == {**dict.fromkeys(FEATURES, 0.5), **lower}
    assert evidence.sharing(1.0) is evidence


def test_a_turn_that_says_little_else_asks_for_a_name() -> None:
    table = WordTable.of(["A-4711 is on its way", "no idea"], POOL)
    evidence = LexicalScore(LexicalConfig(weights={"asked": 1.0}))
    short, long = (
        evidence.values(Conversation.of(turn), table)[0] for turn in ("A-4711?", "A-4711 is what I have, and no idea")
    )
    assert short > 2 * long > 0
    assert not evidence.values(Conversation.of(["A-4711", "sure", "and now?"]), table).any(), "the newest asks"
