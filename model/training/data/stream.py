"""An endless, shuffled, reproducible stream of training rows from several files."""

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from polyrank.model.text.dialogues import Dialogue
from polyrank.model.training.data.corpus import Corpus

SHUFFLE_BUFFER = 50_000  # examples held to draw from: files of any size are streamed


class Rows(NamedTuple):
    """Examples of one file for one batch.

    examples: the rows. others: examples whose replies alone are used, as further negatives of every row; they may also
    be rows of this or another batch.
    """

    examples: list[Dialogue]
    others: list[Dialogue]


def draw_rows(
    corpora: Sequence[Corpus],
    batch_size: int,
    seed: int,
    *,
    extra_replies: int = 0,
    rank: int = 0,
    n_ranks: int = 1,
    buffer: int = SHUFFLE_BUFFER,
) -> Iterator[Rows]:
    """Draw the rows of one batch after another, without end; the same arguments give the same rows.

    A batch comes from one file, chosen by weight: replies of another domain would be negatives too easy to learn from.
    All processes of a run draw the same `n_ranks` batches of one file at a time, and each takes its own. So an epoch is
    one pass over the examples, however many processes share it.

    `extra_replies` is how many others join a batch. They are drawn apart from the rows, which remain a pass over the
    file. `rank` is the number of this process, from 0; `buffer`, how many examples are held to draw from.
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
        yield Rows(_share(rows, batch_size, rank, n_ranks), _share(others, extra_replies, rank, n_ranks))


def _share(stream: Iterator[Dialogue], count: int, rank: int, n_ranks: int) -> list[Dialogue]:
    """Take this process's share of the next examples; where `count` is 0, the file is never opened."""
    return list(islice(stream, n_ranks * count))[rank * count : (rank + 1) * count]


def _shuffled(corpus: Corpus, draw: random.Random, buffer: int) -> Iterator[Dialogue]:
    """Yield examples without end, each drawn from a buffer that the file refills."""
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
