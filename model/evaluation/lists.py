"""How well a model finds the gold reply in each example's own list: R@k/C and MRR (Humeau et al. 5)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyrank.model.errors import InvalidInput
from polyrank.model.evaluation.encoding import (
    ReportProgress,
    candidate_representations,
    context_encodings,
    require_finite,
)
from polyrank.model.evidence.table import WordTable
from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.rankers.networks import Ranker, Retriever
from polyrank.model.text.dialogues import Dialogue


@dataclass(frozen=True, slots=True)
class RankedLists:
    """The rank of each example's gold reply, (examples,), 1 is best; and the scores of each list, in its order."""

    ranks: NDArray[np.int64]
    scores: Sequence[NDArray[np.float32]]


def gold_rank(scores: NDArray[np.float32], label: int) -> int:
    """Rank the gold reply; of equal scores the one listed first is ahead, as in every ranking.

    >>> gold_rank(np.array([2.0, 3.0, 2.0], np.float32), 2)
    3
    """
    gold = scores[label]
    return 1 + int((scores > gold).sum()) + int((scores[:label] == gold).sum())


def rank_lists(ranker: Ranker, dialogues: Sequence[Dialogue], report: ReportProgress) -> RankedLists:
    """Rank the candidates of each example that has some.

    The stages reported are "candidates" and "contexts", or "pairs" for a Cross-encoder.

    Raises InvalidInput where no example has candidates, ModelError for scores that are not finite.
    """
    listed = [dialogue for dialogue in dialogues if dialogue.candidates]
    if not listed:
        raise InvalidInput("no example has `candidates`; there is nothing to rank")
    scores = _late_scores(ranker, listed, report) if ranker.retrieves else _cross_scores(ranker, listed, report)
    require_finite(ranker.name, scores)
    ranks = [gold_rank(own, dialogue.label) for own, dialogue in zip(scores, listed, strict=True)]
    return RankedLists(np.array(ranks, np.int64), scores)


def _late_scores(ranker: Retriever, dialogues: Sequence[Dialogue], report: ReportProgress) -> list[NDArray[np.float32]]:
    """Encode each distinct candidate once, then score each list.

    A model with evidence takes all candidates of all lists for the pool that says how rare a word is.
    """
    row_of: dict[str, int] = {}
    for dialogue in dialogues:
        for text in dialogue.candidates:
            row_of.setdefault(text, len(row_of))
    made, _ = candidate_representations(ranker, list(row_of), report)
    contexts = context_encodings(ranker, [dialogue.conversation for dialogue in dialogues], report)
    statistics, scores = ranker.statistics(row_of), []
    for dialogue, context in zip(dialogues, contexts, strict=True):
        table = None if statistics is None else WordTable.of(dialogue.candidates, statistics)
        additions = ranker.list_additions(dialogue.conversation, table)
        scores.append(ranker.scores(context, made.take([row_of[text] for text in dialogue.candidates]), additions))
    return scores


def _cross_scores(
    ranker: CrossRanker, dialogues: Sequence[Dialogue], report: ReportProgress
) -> list[NDArray[np.float32]]:
    """Score each list; where words count, how rare one is follows from the same pool as for a late model."""
    statistics = ranker.statistics(dict.fromkeys(text for dialogue in dialogues for text in dialogue.candidates))
    scores = []
    for done, dialogue in enumerate(dialogues, 1):
        scores.append(ranker.score_texts(dialogue.conversation, dialogue.candidates, statistics))
        report("pairs", done, len(dialogues))
    return scores
