"""Ranks against counts made by hand, with fake models whose scores are written in the texts."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import silent
from numpy.typing import NDArray
from tiny import write_checkpoint

import polyrank
from polyrank.model.errors import InvalidInput, ModelError
from polyrank.model.evaluation.rankings import RankedLists, gold_ties, rank_lists
from polyrank.model.rankers.networks import CrossRanker
from polyrank.model.representations import ContextEncoding, Representations
from polyrank.model.search.topk import scores_of
from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.sequences import Pairs


class Late:
    """Embeds a candidate as the number in its text; the context is the factor of the score."""

    name = "late"
    retrieves = True

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def tokenize_candidates(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        self.encoded += texts
        return [[at] for at in range(len(texts))], 0

    def represent_candidates(self, ids: list[list[int]], on_done: Callable[[int], None]) -> Representations:
        for _ in ids:
            on_done(1)
        return Representations(np.array([[float(text)] for text in self.encoded], np.float32))

    def tokenize_context(self, conversation: Conversation) -> tuple[list[int], Truncation]:
        return [int(conversation.turns[-1].text)], Truncation()

    def represent_contexts(self, contexts: list[list[int]]) -> list[ContextEncoding]:
        return [ContextEncoding(np.array([ids], np.float32)) for ids in contexts]

    def scores(self, context: ContextEncoding, candidates: Representations, additions: None) -> NDArray[np.float32]:
        return scores_of(candidates.first, context.codes, additions)

    def statistics(self, pool: Iterable[str]) -> None:
        """It has no evidence."""

    def list_additions(self, conversation: Conversation, table: None) -> None:
        """It has no evidence."""


class Cross(CrossRanker):
    """Gives the same scores as `Late`."""

    def __init__(self) -> None:
        self.name, self.evidence = "cross", None

    def tokenize_pairs(self, conversation: Conversation, texts: Sequence[str]) -> tuple[Pairs, Truncation]:
        factor = int(conversation.turns[-1].text)
        numbers = [[factor * float(text)] for text in texts]
        return Pairs([[]], numbers, [0] * len(texts)), Truncation()

    def score_pairs(self, pairs: Pairs) -> NDArray[np.float32]:
        return np.array(pairs.candidates, np.float32)[:, 0]


@pytest.fixture(params=[Late, Cross])
def ranker(request: pytest.FixtureRequest) -> Any:
    return request.param()


def example(factor: int, candidates: Sequence[str], label: int) -> Dialogue:
    return Dialogue(Conversation.of(["1000", str(factor)]), candidates[label], tuple(candidates), label)


TEN = [str(n) for n in range(10)]


def first(ranked: RankedLists) -> list[float]:
    """Return the chance of each list that a right text is first."""
    return [each.found(1) for each in ranked.ties]


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
    assert gold_ties(np.array(scores, np.float32), dialogue).found(1) == share


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
    late, told = Late(), []
    dialogues = [example(1, [str(n % 3), "7"], 0) for n in range(600)]
    ranked = rank_lists(late, dialogues, lambda *numbers: told.append(numbers))
    assert first(ranked) == [0] * 600
    assert sorted(late.encoded) == ["0", "1", "2", "7"]
    contexts = [("contexts", done, 600) for done in (0, 256, 512, 600)]
    assert told == [*(("candidates", done, 4) for done in range(5)), *contexts]


def test_progress_of_a_cross_encoder_counts_examples() -> None:
    told: list[tuple[str, int, int]] = []
    rank_lists(Cross(), [example(1, ["1", "2"], 0)] * 3, lambda *numbers: told.append(numbers))
    assert told == [("pairs", done, 3) for done in range(4)]
