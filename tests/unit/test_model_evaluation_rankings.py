"""Ranks against counts made by hand, with fake models whose scores are written in the texts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import silent
from numbered import NumberCross, NumberLate
from tiny import write_checkpoint

import polyrank
from polyrank.model.errors import InvalidInput, ModelError
from polyrank.model.evaluation.rankings import RankedLists, gold_ties, rank_lists
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue


@pytest.fixture(params=[NumberLate, NumberCross])
def ranker(request: pytest.FixtureRequest) -> Any:
    return request.param()


def example(factor: int, candidates: Sequence[str], label: int) -> Dialogue:
    return Dialogue(Conversation.of(["1000", str(factor)]), candidates[label], tuple(candidates), label)


TEN = [str(n) for n in range(10)]


def first(ranked: RankedLists) -> list[float]:
    """Return the chance of each list that a right text is first."""
    return [each.recall_at(1) for each in ranked.ties]


def test_ranks_are_those_of_sorting_by_score_and_ties_are_shared(ranker: Any) -> None:
    dialogues = [
        example(1, ["1", "3", "2"], 1), example(1, ["1", "3", "2"], 2),
        example(-1, ["1", "3", "2"], 1), example(1, ["2", "2.0", "5", "2"], 0),
        example(1, ["2", "2.0", "5", "2"], 3), example(0, TEN, 7), example(1, ["4"], 0),
    ]  # fmt: skip
    ranked = rank_lists(ranker, dialogues, silent)
    places = [each.first_right for each in ranked.ties]
    assert places == [(0, 1, 1), (1, 1, 1), (2, 1, 1), (1, 3, 2), (1, 3, 2), (0, 10, 1), (0, 1, 1)]
    assert [scores.tolist() for scores in ranked.scores[1:4]] == [[1, 3, 2], [-1, -3, -2], [2, 2, 5, 2]]


def test_examples_without_candidates_are_left_out(ranker: Any) -> None:
    bare = Dialogue(Conversation.of("1"), "yes")
    assert rank_lists(ranker, [bare, example(1, ["1", "2"], 0), bare], silent).ties[0].first_right == (1, 1, 1)
    for nothing in ([], [bare]):
        with pytest.raises(InvalidInput, match="candidates"):
            rank_lists(ranker, nothing, silent)


@pytest.mark.parametrize("score", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("label", [0, 1])
def test_a_score_that_is_no_number_is_no_rank(ranker: Any, score: str, label: int) -> None:
    good = example(1, ["1", "2"], 0)
    with pytest.raises(ModelError, match=f"{ranker.name} gives scores that are not finite"):
        rank_lists(ranker, [good, example(1, [score, "2"], label)], silent)


@pytest.mark.parametrize("gold", range(4))
def test_a_constant_model_is_as_good_as_chance_wherever_the_gold_reply_stands(ranker: Any, gold: int) -> None:
    assert first(rank_lists(ranker, [example(0, ["1", "2", "3", "4"], gold)], silent)) == [1 / 4]


@pytest.mark.parametrize(("scores", "share"), [([2, 3, 2], 0), ([3, 3, 2], 1 / 2), ([2, 1, 3], 1), ([3, 1, 3], 1)])
def test_a_text_that_equals_the_gold_reply_is_right(scores: list[float], share: float) -> None:
    dialogue = Dialogue(Conversation.of(["1"]), "Yes.", ("Yes.", "No.", "YES. "), 0)
    assert gold_ties(np.array(scores, np.float32), dialogue).recall_at(1) == share


def test_what_a_model_reads_alike_ties_and_no_order_matters(tmp_path: Path) -> None:
    """Texts of many lengths, encoded beside different others: a rounding would break ties and move scores."""
    for name, architecture in (("poly", "poly"), ("cross", "cross"), ("colbert", "colbert")):
        model = polyrank.load(write_checkpoint(tmp_path, name, 1, architecture=architecture))
        texts = [" ".join(f"w{(n * k) % 40}" for k in range(n % 9 + 1)) for n in range(60)]
        texts += [text.replace(" ", "  ") for text in texts]
        dialogues = [Dialogue(Conversation.of([f"w{n} w3"]), texts[n], tuple(texts), n) for n in range(3)]
        before = [dict(zip(texts, own.tolist(), strict=True)) for own in rank_lists(model, dialogues, silent).scores]
        order = np.random.default_rng(0).permutation(len(texts))
        shuffled = tuple(texts[at] for at in order)
        moved = [replace(each, candidates=shuffled, label=shuffled.index(each.response)) for each in dialogues]
        after = [dict(zip(shuffled, own.tolist(), strict=True)) for own in rank_lists(model, moved, silent).scores]
        assert after == before
        assert all(own[text] == own[text.replace("  ", " ")] for own in before for text in texts)


def test_each_text_is_encoded_once_and_progress_reaches_the_end() -> None:
    late, told = NumberLate(), []
    dialogues = [example(1, [str(n % 3), "7"], 0) for n in range(600)]
    ranked = rank_lists(late, dialogues, lambda *numbers: told.append(numbers))
    assert first(ranked) == [0] * 600
    assert sorted(late.encoded) == ["0", "1", "2", "7"]
    contexts = [("contexts", done, 600) for done in (0, 256, 512, 600)]
    assert told == [*(("candidates", done, 4) for done in range(5)), *contexts]


def test_progress_of_a_cross_encoder_counts_examples() -> None:
    told: list[tuple[str, int, int]] = []
    rank_lists(NumberCross(), [example(1, ["1", "2"], 0)] * 3, lambda *numbers: told.append(numbers))
    assert told == [("pairs", done, 3) for done in range(4)]
