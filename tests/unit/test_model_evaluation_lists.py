"""Ranks against counts made by hand, with fake models whose scores are written in the texts."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polyrank.model.errors import InvalidInput, ModelError
from polyrank.model.evaluation.lists import gold_rank, rank_lists
from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.representations import ContextEncoding, Representations
from polyrank.model.search.topk import scores_of
from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.pairs import Pairs


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
        return [factor * float(text) for text in texts], Truncation()  # type: ignore[return-value]

    def score_pairs(self, pairs: Any) -> NDArray[np.float32]:
        return np.array(pairs, np.float32)


@pytest.fixture(params=[Late, Cross])
def ranker(request: pytest.FixtureRequest) -> Any:
    return request.param()


def example(factor: int, candidates: Sequence[str], label: int) -> Dialogue:
    return Dialogue(Conversation.of(["1000", str(factor)]), candidates[label], tuple(candidates), label)


def silent(_stage: str, _done: int, _total: int) -> None:
    pass


TEN = [str(n) for n in range(10)]


def test_ranks_are_those_of_sorting_by_score_then_place(ranker: Any) -> None:
    dialogues = [
        example(1, ["1", "3", "2"], 1),
        example(1, ["1", "3", "2"], 2),
        example(-1, ["1", "3", "2"], 1),
        example(1, ["2", "2.0", "5", "2"], 0),
        example(1, ["2", "2.0", "5", "2"], 3),
        example(0, TEN, 7),
        example(1, ["4"], 0),
    ]
    ranked = rank_lists(ranker, dialogues, silent)
    assert ranked.ranks.tolist() == [1, 2, 3, 2, 4, 8, 1]
    assert [scores.tolist() for scores in ranked.scores[1:4]] == [[1, 3, 2], [-1, -3, -2], [2, 2, 5, 2]]


def test_examples_without_candidates_are_left_out(ranker: Any) -> None:
    bare = Dialogue(Conversation.of("1"), "yes")
    assert rank_lists(ranker, [bare, example(1, ["1", "2"], 0), bare], silent).ranks.tolist() == [2]
    for nothing in ([], [bare]):
        with pytest.raises(InvalidInput, match="candidates"):
            rank_lists(ranker, nothing, silent)


@pytest.mark.parametrize("score", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("label", [0, 1])
def test_a_score_that_is_no_number_is_no_rank(ranker: Any, score: str, label: int) -> None:
    good = example(1, ["1", "2"], 0)
    with pytest.raises(ModelError, match=f"{ranker.name} gives scores that are not finite"):
        rank_lists(ranker, [good, example(1, [score, "2"], label)], silent)


@pytest.mark.parametrize(
    ("scores", "label", "rank"),
    [
        ([2, 3, 2], 0, 2),
        ([2, 3, 2], 1, 1),
        ([2, 3, 2], 2, 3),
        ([1, 1, 1], 0, 1),
        ([1, 1, 1], 2, 3),
        ([0, -1], 1, 2),
    ],
)
def test_equal_scores_rank_in_their_order(scores: list[float], label: int, rank: int) -> None:
    assert gold_rank(np.array(scores, np.float32), label) == rank


def test_each_text_is_encoded_once_and_progress_reaches_the_end() -> None:
    late, told = Late(), []
    dialogues = [example(1, [str(n % 3), "7"], 0) for n in range(600)]
    ranked = rank_lists(late, dialogues, lambda *numbers: told.append(numbers))  # type: ignore[arg-type]
    assert ranked.ranks.tolist() == [2] * 600
    assert sorted(late.encoded) == ["0", "1", "2", "7"]
    contexts = [("contexts", done, 600) for done in (256, 512, 600)]
    assert told == [*(("candidates", done, 4) for done in (1, 2, 3, 4)), *contexts]


def test_progress_of_a_cross_encoder_counts_examples() -> None:
    told: list[tuple[str, int, int]] = []
    rank_lists(Cross(), [example(1, ["1", "2"], 0)] * 3, lambda *numbers: told.append(numbers))
    assert told == [("pairs", 1, 3), ("pairs", 2, 3), ("pairs", 3, 3)]
