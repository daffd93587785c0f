"""An endless, shuffled, reproducible stream of batches from several files."""

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from polyrank.model.text.dialogues import Dialogue
from polyrank.model.training.data.corpus import Corpus

SHUFFLE_BUFFER = 50_000  # examples held to draw from: files of any size are streamed


class Batch(NamedTuple):
    """What one file gives for a step.

    examples: the rows. others: examples whose replies alone are used, as further negatives of every row; they may be
    rows of this or another batch too.
    """

    examples: list[Dialogue]
    others: list[Dialogue]


def batches(
    corpora: Sequence[Corpus],
    batch_size: int,
    seed: int,
    *,
    extra_replies: int = 0,
    rank: int = 0,
    n_ranks: int = 1,
    buffer: int = SHUFFLE_BUFFER,
) -> Iterator[Batch]:
    """Draw batches for ever; the same arguments give the same batches.

    A batch comes from one file, chosen by weight: replies of another domain would be negatives too easy to learn from.
    All processes of a run draw the same `n_ranks` batches of one file at a time, and each takes its own of them: an
    epoch is one pass over the examples, however many share it.

    Args:
        corpora: where examples come from.
        batch_size: B.
        extra_replies: how many others go with a batch; drawn apart from the rows, which stay a pass over the file.
        seed: of every draw.
        rank: number of the process, from 0.
        n_ranks: how many processes there are.
        buffer: how many examples to shuffle among.
    """
    draw = random.Random(f"{seed}")
    streams = [
        (
            _shuffled(corpus, random.Random(f"{seed}-{at}"), buffer),
            _shuffled(corpus, random.Random(f"{seed}-{at}-others"), buffer),
        )
        for at, corpus in enumerate(corpora)
    ]
    weights = [corpus.weight for corpus in corpora]
    while True:
        [(rows, others)] = draw.choices(streams, weights)
        yield Batch(_share(rows, batch_size, rank, n_ranks), _share(others, extra_replies, rank, n_ranks))


def _share(stream: Iterator[Dialogue], count: int, rank: int, n_ranks: int) -> list[Dialogue]:
    """A process's own of the next examples; where it wants none, the stream's file is never opened."""
    return list(islice(stream, n_ranks * count))[rank * count : (rank + 1) * count]


def _shuffled(corpus: Corpus, draw: random.Random, buffer: int) -> Iterator[Dialogue]:
    """Examples for ever, each drawn from a buffer that the file refills."""
    held: list[Dialogue] = []
    while True:
        for example in corpus.examples():
            if len(held) < buffer:
                held.append(example)
                continue
            at = draw.randrange(buffer)
            held[at], example = example, held[at]
            yield example
        draw.shuffle(held)
        yield from held
        held.clear()
