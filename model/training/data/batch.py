"""From examples to what a training step needs: token ids, gold columns, and which columns count as negatives."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyrank.model.text.assembly import Assembler
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.pairs import Pairs
from polyrank.model.text.positives import context_key, text_key
from polyrank.model.training.errors import TrainingDataInvalid


class Columns(NamedTuple):
    """The candidates of a batch, each distinct text once, and what they are to each row.

    texts: N distinct candidate texts.
    gold: column of each row's gold reply, (B,).
    allowed: (B, N), False where the column is another correct reply of the row: it must not count as a negative.
    listed: (B, N), True for the row's gold reply and the negatives that its own example names.
    """

    texts: list[str]
    gold: Tensor
    allowed: Tensor
    listed: Tensor


def columns(examples: Sequence[Dialogue], others: Sequence[Dialogue], negatives: int) -> Columns:
    """Collect the gold replies and up to `negatives` listed negatives of each example, and the replies of `others`.

    Two examples of the same context have several correct replies between them: each other's gold reply is no negative.
    """
    place: dict[int, int] = {}
    texts: list[str] = []

    def column_of(text: str) -> int:
        key = text_key(text)
        if key not in place:
            place[key] = len(texts)
            texts.append(text)
        return place[key]

    gold = [column_of(example.response) for example in examples]
    named = [[column_of(text) for text in example.negatives[:negatives]] for example in examples]
    lent = [column_of(other.response) for other in others]
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
    return Columns(texts, torch.tensor(gold), allowed, listed & allowed)


class LateBatch(NamedTuple):
    """Token ids of B contexts and N candidates, and the columns' meaning."""

    contexts: list[list[int]]
    candidates: list[list[int]]
    columns: Columns
    examples: Sequence[Dialogue]


def late_batch(
    assembler: Assembler, examples: Sequence[Dialogue], others: Sequence[Dialogue], negatives: int
) -> LateBatch:
    """Tokenise a batch for a Bi- or Poly-encoder."""
    found = columns(examples, others, negatives)
    contexts = [assembler.context(example.conversation)[0] for example in examples]
    return LateBatch(contexts, assembler.candidates(found.texts)[0], found, examples)


class CrossBatch(NamedTuple):
    """B contexts with 1 + k candidates each, row after row, the gold reply first in its row.

    width: 1 + k.
    """

    pairs: Pairs
    width: int


Scores = Callable[[Sequence[Dialogue], Sequence[str]], Tensor]
"""A retriever's scores (B, N) of N texts as replies to each of B examples."""


def cross_batch(
    assembler: Assembler,
    examples: Sequence[Dialogue],
    others: Sequence[Dialogue],
    negatives: int,
    draw: random.Random,
    score: Scores | None = None,
) -> CrossBatch:
    """Pair each context with its gold reply and `negatives` more: those it lists first, then others of the batch.

    These are drawn; or, where a retriever scores them, all but one are its best. The one keeps easy negatives known.
    A batch that leaves the retriever no place is not scored.

    Raises TrainingDataInvalid where a batch of one has no negative: nothing would be learnt, and nobody would notice.
    """
    found = columns(examples, others, negatives)
    width = 1 + min(negatives, int(found.allowed.sum(dim=1).min()) - 1)
    if width == 1 and len(examples) + len(others) == 1:
        raise TrainingDataInvalid("an example has no negatives, and in a batch of one no others; raise --batch-size")
    most_open = width - int(found.listed.sum(dim=1).min())  # places of a row that its own negatives do not fill
    scores = score(examples, found.texts) if score and most_open > 1 else None
    rows: list[Pairs] = []
    for row, example in enumerate(examples):
        gold = int(found.gold[row])
        hardness = None if scores is None else scores[row]
        chosen = [gold, *_negatives_of_row(found, row, width - 1, draw, hardness)]
        own, _ = assembler.pairs(example.conversation, [found.texts[column] for column in chosen])
        rows.append(own)
    contexts = [context for own in rows for context in own.contexts]
    candidates = [candidate for own in rows for candidate in own.candidates]
    owners = [row for row in range(len(rows)) for _ in range(width)]
    return CrossBatch(Pairs(contexts, candidates, owners, rows[0].prefix), width)


def _negatives_of_row(found: Columns, row: int, count: int, draw: random.Random, hardness: Tensor | None) -> list[int]:
    gold = int(found.gold[row])
    chosen = [column for column in found.listed[row].nonzero()[:, 0].tolist() if column != gold][:count]
    others = [column for column in found.allowed[row].nonzero()[:, 0].tolist() if column not in (gold, *chosen)]
    if hardness is not None:
        others.sort(key=lambda column: -hardness[column].item())
        hardest = max(0, count - len(chosen) - 1)
        chosen += others[:hardest]
        del others[:hardest]
    return chosen + draw.sample(others, count - len(chosen))
