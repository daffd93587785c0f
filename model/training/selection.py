"""The selection slice: held-out dialogues of the training files, which choose the best checkpoint."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from polyrank.model.text.dialogues import Dialogue
from polyrank.model.training.data.corpus import Corpus
from polyrank.model.training.objectives.objective import Batch, Objective

_SEED = 0  # the same in every run, so that runs can be compared


class Look(NamedTuple):
    """Figures of the slice: mean loss, share of gold replies ranked first in their batch, mean cosine of the codes."""

    loss: float
    recall_at_1: float
    code_cosine: float


def selection_batches(corpora: Sequence[Corpus], n_replies: int) -> list[list[Dialogue]]:
    """Cut each file's slice into batches of `n_replies`; a rest of less than half a batch joins the last one.

    n_replies: how many replies a training batch has, its rows' and those of others. Here rows are each other's
    negatives, so a look is then as hard as a step.
    """
    found: list[list[Dialogue]] = []
    for corpus in corpora:
        examples = list(corpus.examples(selection=True))
        random.Random(_SEED).shuffle(examples)  # neighbours in a file may be turns of one dialogue
        cuts = range(0, max(1, len(examples) - n_replies // 2), n_replies)
        ends = [*cuts[1:], len(examples)]
        found += [examples[start:end] for start, end in zip(cuts, ends, strict=True)]
    return found


def look(encoder: nn.Module, objective: Objective, batches: Sequence[Sequence[Dialogue]]) -> Look:
    """Measure all batches with dropout off; larger batches count for more."""
    draw = random.Random(_SEED)
    encoder.eval()
    measured = [objective.measure(Batch(batch, (), draw)) for batch in batches]
    encoder.train()
    rows = sum(batch.rows for batch in measured)
    return Look(
        loss=sum(batch.loss * batch.rows for batch in measured) / rows,
        recall_at_1=sum(batch.first for batch in measured) / rows,
        code_cosine=sum(batch.code_cosine * batch.rows for batch in measured) / rows,
    )
