"""How well a model finds the gold reply in each example's own list: R@k/C and MRR (Humeau et al. 5)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from polyrank.model.errors import InvalidInput
from polyrank.model.evaluation.encoding import (
    ReportProgress,
    candidate_representations,
    context_encodings,
    require_finite,
)
from polyrank.model.evaluation.metrics import equal_to
from polyrank.model.evidence.table import WordTable
from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.rankers.networks import Ranker, Retriever
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.ties import Ties


@dataclass(frozen=True, slots=True)
class RankedLists:
    """The ranking of each list, where texts that equal the gold reply are right; and its scores, in its order."""

    ties: Sequence[Ties]
    scores: Sequence[NDArray[np.float32]]


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
    return RankedLists([gold_ties(own, dialogue) for own, dialogue in zip(scores, listed, strict=True)], scores)


def gold_ties(scores: NDArray[np.float32], dialogue: Dialogue) -> Ties:
    """Group the candidates of a dialogue with these scores, (C,); texts that equal the gold reply are right."""
    return Ties.of(scores, equal_to(dialogue.candidates[dialogue.label], dialogue.candidates))


def _late_scores(ranker: Retriever, dialogues: Sequence[Dialogue], report: ReportProgress) -> list[NDArray[np.float32]]:
    """Encode each distinct candidate once, then score each list.

    A model with evidence takes all candidates of all lists for the pool that says how rare a word is. A score can
    depend on the texts beside it, by a rounding. So texts are in an order of their own, not in that of the lists.
    """
    texts = sorted({text for dialogue in dialogues for text in dialogue.candidates})
    row_of = {text: row for row, text in enumerate(texts)}
    made, _ = candidate_representations(ranker, texts, report)
    contexts = context_encodings(ranker, [dialogue.conversation for dialogue in dialogues], report)
    statistics, scores = ranker.statistics(texts), []
    for dialogue, context in zip(dialogues, contexts, strict=True):
        rows, first, places = np.unique(
            [row_of[text] for text in dialogue.candidates], return_index=True, return_inverse=True
        )
        table = None if statistics is None else WordTable.of(dialogue.candidates, statistics)
        additions = ranker.list_additions(dialogue.conversation, table)
        own = None if additions is None else replace(additions, values=additions.values[first])
        scores.append(ranker.scores(context, made.take(rows), own)[places])
    return scores


def _cross_scores(
    ranker: CrossRanker, dialogues: Sequence[Dialogue], report: ReportProgress
) -> list[NDArray[np.float32]]:
    """Score each list; where words count, how rare one is follows from the same pool as for a late model."""
    statistics = ranker.statistics(sorted({text for dialogue in dialogues for text in dialogue.candidates}))
    scores = []
    for done, dialogue in enumerate(dialogues, 1):
        scores.append(ranker.score_texts(dialogue.conversation, dialogue.candidates, statistics))
        report("pairs", done, len(dialogues))
    return scores
