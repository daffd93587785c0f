"""The rules of mining, one by one, with fake models whose scores are written in the texts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import silent
from numbered import NumberCross, NumberLate
from numpy.typing import NDArray

import polyrank.model.evaluation.mining
from polyrank.model.errors import InvalidInput, ModelError
from polyrank.model.evaluation.mining import Miner, MiningRules, TextPool
from polyrank.model.rankers.networks import CrossRanker
from polyrank.model.representations import ContextEncoding, LateRows, Representations
from polyrank.model.search.scan import Query
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.conversations import Positives
from polyrank.model.text.dialogues import Dialogue


def example(response: str, *context: str) -> Dialogue:
    return Dialogue(Conversation.of(context or ["1"]), response)


def miner(texts: Iterable[str], dialogues: Iterable[Dialogue], check: CrossRanker | None, **rules: Any) -> Miner:
    late: Any = NumberLate()
    pool = TextPool.encode(late, texts, silent)
    every_text_is_left = {"skip": 0, "margin": None, "negatives": 1000}
    return Miner(late, pool, Positives(dialogues), MiningRules(**{**every_text_is_left, **rules}), check)


def mined(texts: Iterable[str], *dialogues: Dialogue, check: CrossRanker | None = None, **rules: Any) -> list[Any]:
    """Return the negatives of each example; also checks the tally."""
    used = miner(texts, dialogues, check, **rules)
    found = [each.negatives for each in used.mine(dialogues)]
    assert used.tally.examples == len(found)
    assert used.tally.negatives == sum(map(len, found))
    assert used.tally.without == sum(not each for each in found)
    return [list(each) for each in found]


TEN = [str(n) for n in range(10)]


class TwoStages(NumberLate):
    """Finds texts by their first number, and places those that it found by their last one."""

    name, late_rows = "two stages", LateRows(1, 1)

    def __init__(self) -> None:
        super().__init__()
        self.placed: list[int] = []

    def tokenize_candidates(self, texts: Sequence[str]) -> tuple[list[Any], int]:
        return [[float(text.split()[0]), float(text.split()[-1])] for text in texts], 0

    def represent_candidates(self, numbers: list[Any]) -> Representations:
        both = np.array(numbers, np.float32)
        return Representations(both[:, :1], both[:, 1:], np.ones(len(both), np.int64))

    def scores(self, context: ContextEncoding, candidates: Representations, additions: None) -> NDArray[np.float32]:
        self.placed.append(len(candidates.first))
        return candidates.late[:, 0] * context.codes[0, 0]


def test_a_second_stage_places_what_the_first_one_found() -> None:
    """The bound is the gold reply's score by the second stage, 150, not by the first, -7."""
    texts, late = [f"{n} {300 - n}" for n in range(300)], TwoStages()
    pool, gold = TextPool.encode(late, texts, silent), example("-7 150")

    def negatives(**rules: Any) -> tuple[str, ...]:
        used = Miner(late, pool, Positives([gold]), MiningRules(**{"skip": 0, "margin": None, **rules}))
        [after] = used.mine([gold])
        return after.negatives

    assert negatives(negatives=3) == ("100 200", "101 199", "102 198"), "the best of the 200 that a server retrieves"
    assert late.placed == [200]
    assert negatives(negatives=1, depth=300, skip=1) == ("1 299",)
    assert negatives(negatives=2, depth=200, margin=0.0) == ("151 149", "152 148")


def test_only_the_negatives_of_an_example_change() -> None:
    before = Dialogue(Conversation.of(["hello", "1"], ["I sell lamps."]), "9", ("1", "9"), 1, ("2",), "17")
    used = miner(TEN, [before], None, negatives=2)
    [after] = used.mine([before])
    assert after == replace(before, negatives=("8", "7"))


@pytest.mark.parametrize("gold", ["9 yes", " 9  YES "])
def test_the_gold_reply_is_no_negative(gold: str) -> None:
    assert mined(["9 Yes", "8", "9 YES", "9 yes."], example(gold)) == [["9 yes.", "8"]]


def test_the_gold_reply_in_another_encoding_is_no_negative() -> None:
    assert mined(["9 gru\u0308n", "8", "9 gr\u00fc\u00adn\u200b", "7"], example("9 Gr\u00fcn")) == [["8", "7"]]


def test_the_rank_window_begins_after_the_positives() -> None:
    assert mined(TEN, example("8"), skip=2, negatives=2) == [["6", "5"]]
    assert mined(TEN, example("8"), skip=9, negatives=2) == [[]]
    dialogues = [example("8", "a", "1"), example("20", "b", "1")]
    used = miner(TEN, dialogues, None, skip=9, depth=10)
    assert [each.negatives for each in used.mine(dialogues)] == [(), ("0",)]
    assert used.tally.filtered == {"positive": 1, "rank": 18, "margin": 0, "check": 0}


def test_a_gold_reply_that_scores_below_random_texts_is_still_a_bound() -> None:
    used = miner(TEN, [], None, margin=0.5)
    [after] = used.mine([example("2.5")])
    assert after.negatives == ("2", "1", "0")
    assert used.tally.filtered["margin"] == 7


def test_the_cross_encoder_reads_no_more_than_it_takes() -> None:
    pool = [f"{9 - n} {'99' if n in (1, 2) else '0'}" for n in range(10)]
    cross = NumberCross()
    used = miner(pool, [], cross, negatives=3)
    [after] = used.mine([example("50")])
    assert list(after.negatives) == [pool[0], pool[3], pool[4]]
    assert cross.read == pool[:6]
    assert used.tally.filtered["check"] == 2


def test_what_the_other_filters_leave_out_is_not_read_by_the_cross_encoder() -> None:
    cross = NumberCross()
    mined(TEN, example("8"), check=cross, skip=1, margin=0.1, depth=5)
    assert cross.read == ["7", "6", "5"]


def test_a_draw_is_from_the_whole_window_and_repeats_with_its_seed() -> None:
    dialogues = [example("20", str(n), "1") for n in range(300)]
    drawn = mined(TEN, *dialogues, sample=True, negatives=3, skip=2, depth=9)
    assert {text for each in drawn for text in each} == set(TEN[1:8])
    assert all(each == sorted(set(each), reverse=True) and len(each) == 3 for each in drawn), "hardest first"
    counts = np.bincount([int(text) for each in drawn for text in each], minlength=8)[1:]
    assert counts.min() > 80, "uniform: 900 draws of 7 texts"
    assert counts.max() < 180
    assert mined(TEN, *dialogues, sample=True, negatives=3, skip=2, depth=9) == drawn
    assert mined(TEN, *dialogues, sample=True, negatives=3, skip=2, depth=9, seed=1) != drawn


def test_a_draw_that_the_cross_encoder_checks_is_filled_up() -> None:
    pool = [f"{n} {'99' if n % 2 else '0'}" for n in range(20)]
    for seed in range(20):
        [found] = mined(pool, example("50"), check=NumberCross(), sample=True, negatives=4, seed=seed)
        assert len(found) == 4
        assert all(text.endswith(" 0") for text in found)


def test_each_text_is_encoded_once_and_progress_reaches_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polyrank.model.evaluation.mining, "_TEXTS_AT_ONCE", 4)
    late: Any = NumberLate()
    told: list[tuple[str, int, int]] = []
    pool = TextPool.encode(late, ["1", "2 a", "1 ", "2 A", *TEN], lambda *numbers: told.append(numbers))
    assert pool.texts == late.encoded == ["1", "2 a", *(text for text in TEN if text != "1")]
    assert pool.representations.first[:, 0].tolist() == [float(text.split()[0]) for text in pool.texts]
    assert pool.scan.top_k([Query(np.ones((1, pool.representations.first.shape[1]), np.float32), 1)])[
        0
    ].rows.tolist() == [int(pool.representations.first.sum(axis=1).argmax())]
    assert told == [("encode", done, 11) for done in (0, 4, 8, 11)]


def test_examples_are_read_a_few_hundred_at_a_time() -> None:
    read = 0

    def examples() -> Iterator[Dialogue]:
        nonlocal read
        for _ in range(1000):
            read += 1
            yield example("20")

    used = miner(TEN, [], None)
    next(used.mine(examples()))
    assert read == 256
    assert used.tally.examples == 1


def test_a_pool_without_texts_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the pool holds no text"):
        TextPool.encode(NumberLate(), [], silent)


@pytest.mark.parametrize("score", ["nan", "inf", "-inf"])
def test_scores_that_are_no_numbers_are_refused(score: str) -> None:
    with pytest.raises(ModelError, match="late gives scores that are not finite"):
        mined([score, "1"], example("2"))
    with pytest.raises(ModelError, match="late gives scores that are not finite"):
        mined(["1"], example(score))
    with pytest.raises(ModelError, match="cross gives scores that are not finite"):
        mined([f"1 {score}"], example("2"), check=NumberCross())


def test_a_context_that_gives_no_number_is_refused() -> None:
    with pytest.raises(ModelError, match="late gives scores that are not finite"):
        mined(TEN, example("2", "inf"), margin=0.1)
