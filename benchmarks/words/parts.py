"""Which reply comes first by the whole score of a model, and by parts of it: its vectors, its words, all but a feature.

The weights of a part are those of the checkpoint: nothing is fitted to the lists that are measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from polyrank.model.evaluation.rankings import candidate_representations, context_encodings, gold_ties
from polyrank.model.lexical.score import LexicalScore
from polyrank.model.lexical.table import WordTable
from polyrank.model.rankers.networks import VectorRanker
from polyrank.model.representations import Additions
from polyrank.model.search.topk import scores_of
from polyrank.model.text.dialogues import Dialogue

WHOLE, VECTORS, WORDS = "the whole score", "vectors alone", "words alone"

Firsts = Mapping[str, NDArray[np.float64]]
"""By part: the chance that it puts the right reply first, for each example, (examples,)."""


def all_but(feature: str) -> str:
    """Return the name of the part that leaves a feature out."""
    return f"all but {feature}"


def firsts_of(ranker: VectorRanker, dialogues: Sequence[Dialogue]) -> Firsts:
    """Rank each example's candidates by each part of the score; a model without evidence has only its vectors.

    Each distinct text is encoded once. How rare a word is follows from all candidates of all lists, as in
    `polyrank evaluate`.
    """
    scored = _scores(ranker, dialogues)
    found = [
        {part: gold_ties(scores, dialogue).recall_at(1) for part, scores in parts.items()}
        for dialogue, parts in zip(dialogues, scored, strict=True)
    ]
    return {part: np.array([each[part] for each in found], np.float64) for part in found[0]}


def _scores(ranker: VectorRanker, dialogues: Sequence[Dialogue]) -> Iterator[dict[str, NDArray[np.float32]]]:
    """Yield, for each example, the scores of its candidates by each part."""
    row_of = {text: row for row, text in enumerate(sorted({text for each in dialogues for text in each.candidates}))}
    embeddings = candidate_representations(ranker, list(row_of), _silent)[0].first
    codes = (each.codes for each in context_encodings(ranker, [each.conversation for each in dialogues], _silent))
    statistics, evidences = ranker.statistics(row_of), _evidences(ranker)
    for dialogue, vectors in zip(dialogues, codes, strict=True):
        rows = [row_of[text] for text in dialogue.candidates]
        own = embeddings[rows]
        parts = {VECTORS: scores_of(own, vectors)}
        for part, evidence in evidences.items():
            assert statistics is not None, "there is evidence"
            table = WordTable.of(dialogue.candidates, statistics)
            values = evidence.in_list(dialogue.conversation, table).values(dialogue.conversation, table)
            parts[part] = scores_of(own, vectors, Additions(evidence.late_weight, values))
            if part == WHOLE:
                parts[WORDS] = values
        yield {WHOLE: parts[VECTORS], **parts}


def _evidences(ranker: VectorRanker) -> dict[str, LexicalScore]:
    if ranker.evidence is None:
        return {}
    config = ranker.evidence.config
    features = [name for name, weight in config.weights.items() if weight]
    others = {name: {other: config.weights[other] for other in features if other != name} for name in features}
    less = {all_but(name): LexicalScore(replace(config, weights=weights)) for name, weights in others.items()}
    return {WHOLE: ranker.evidence, **less}


def _silent(_stage: str, _done: int, _total: int) -> None:
    pass
