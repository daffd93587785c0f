"""An endless, shuffled, reproducible stream of training rows from several files."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from polyrank.model.text.dialogues import Dialogue
from polyrank.model.training.data.corpus import Corpus

SHUFFLE_BUFFER = 50_000  # examples held to draw from: files of any size are streamed


Take = Callable[[Iterator[Dialogue]], list[Dialogue]]
"""Takes the rows of one batch from a stream of examples."""


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
    take: Take | None = None,
) -> Iterator[Rows]:
    """Draw the rows of one batch after another, without end; the same arguments give the same rows.

    A batch comes from one file, chosen by weight: replies of another domain would be negatives too easy to learn from.
    All processes of a run draw the same `n_ranks` batches of one file at a time, and each takes its own. So an epoch is
    one pass over the examples, however many processes share it.

    `extra_replies` is how many others join a batch. They are drawn apart from the rows, which remain a pass over the
    file. `rank` is the number of this process, from 0; `buffer`, how many examples are held to draw from. `take` takes
    the rows of a batch; None: the next `batch_size`.
    """
    take = take or (lambda stream: list(islice(stream, batch_size)))
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
        drawn = [(take(rows), list(islice(others, extra_replies))) for _ in range(n_ranks)]
        yield Rows(*drawn[rank])


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
