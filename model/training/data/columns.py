"""The candidates of a batch: gold replies and negatives, and which of them count for which row."""

import random
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.positives import context_key, text_key


class Columns(NamedTuple):
    """The N candidates of a batch, each distinct text once, and what they are to each row.

    gold: column of each row's gold reply, (B,). allowed: (B, N), False where the column is another correct reply of the
    row, which must not count as a negative. listed: (B, N), True for the row's gold reply and the negatives that its
    own example names.
    """

    texts: list[str]
    gold: Tensor
    allowed: Tensor
    listed: Tensor


def columns(examples: Sequence[Dialogue], others: Sequence[Dialogue], negatives: int, draw: random.Random) -> Columns:
    """Collect the gold reply and up to `negatives` listed negatives of each example, and the replies of `others`.

    Of more listed ones so many are drawn, so that in the course of a training all of them are met.

    Where two examples have the same context, the gold reply of one is no negative of the other.
    """
    listed_of = [_drawn(example.negatives, negatives, draw) for example in examples]
    texts: dict[int, str] = {}  # each distinct text as it was first written, by its key
    for text in chain(
        (example.response for example in examples),
        *listed_of,
        (other.response for other in others),
    ):
        texts.setdefault(text_key(text), text)
    place = {key: column for column, key in enumerate(texts)}
    gold = [place[text_key(example.response)] for example in examples]
    named = [[place[text_key(text)] for text in own] for own in listed_of]
    lent = [place[text_key(other.response)] for other in others]
    contexts = [context_key(example.conversation) for example in (*examples, *others)]
    allowed = torch.ones(len(examples), len(texts), dtype=torch.bool)
    listed = torch.zeros(len(examples), len(texts), dtype=torch.bool)
    correct: dict[int, set[int]] = {}
    for context, column in zip(contexts, gold + lent, strict=True):
        correct.setdefault(context, set()).add(column)
    for row, context in enumerate(contexts[: len(examples)]):
        for column in correct[context] - {gold[row]}:
            allowed[row, column] = False
        listed[row, [gold[row], *named[row]]] = True
    return Columns(list(texts.values()), torch.tensor(gold), allowed, listed & allowed)


def _drawn(negatives: Sequence[str], count: int, draw: random.Random) -> Sequence[str]:
    return negatives if len(negatives) <= count else draw.sample(negatives, count)
