"""The selection slice: held-out dialogues of the training files, by which the best checkpoint is chosen."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from polyrank.model.text.dialogues import Dialogue
from polyrank.model.training.data.corpus import Corpus
from polyrank.model.training.objectives.objective import CrossObjective, LateObjective

_SEED = 0  # the same batches in every run: runs are compared by them


class Look(NamedTuple):
    """One look at the slice: mean loss, share of gold replies ranked first in their batch, mean cosine of the codes."""

    loss: float
    recall_at_1: float
    code_cosine: float

    def figures(self) -> dict[str, float]:
        """The same by name."""
        return self._asdict()


def selection_batches(corpora: Sequence[Corpus], n_replies: int) -> list[list[Dialogue]]:
    """Cut each file's slice into batches; a rest too small to be one joins the last.

    n_replies: how many replies a batch of training has, its rows' and those lent by others: its rows are each other's
    negatives, so that a look is as hard as a step.
    """
    found: list[list[Dialogue]] = []
    for corpus in corpora:
        examples = list(corpus.examples(selection=True))
        random.Random(_SEED).shuffle(examples)  # neighbours in a file are turns of one dialogue
        cuts = range(0, max(1, len(examples) - n_replies // 2), n_replies)
        ends = [*cuts[1:], len(examples)]
        found += [examples[start:end] for start, end in zip(cuts, ends, strict=True)]
    return found


def look(encoder: nn.Module, objective: LateObjective | CrossObjective, batches: Sequence[Sequence[Dialogue]]) -> Look:
    """Measure all batches with dropout off; larger batches count for more."""
    draw = random.Random(_SEED)
    encoder.eval()
    measured = [objective.measure(batch, draw) for batch in batches]
    encoder.train()
    rows = sum(each.rows for each in measured)
    return Look(
        loss=sum(each.loss * each.rows for each in measured) / rows,
        recall_at_1=sum(each.first for each in measured) / rows,
        code_cosine=sum(each.code_cosine * each.rows for each in measured) / rows,
    )
