"""An endless, shuffled, reproducible stream of batches from several files."""

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from model.dialogues import Dialogue
from model.training.corpus import Corpus

SHUFFLE_BUFFER = 50_000  # examples held to draw from: files of any size are streamed


class Batch(NamedTuple):
    """What one file gives for a step.

    examples: the rows. others: examples whose replies alone are used, as further negatives of every row.
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
    buffer: int = SHUFFLE_BUFFER,
) -> Iterator[Batch]:
    """Draw batches for ever; the same arguments give the same batches.

    A batch comes from one file, chosen by weight: replies of another domain would be negatives too easy to learn from.

    Args:
        corpora: where examples come from.
        batch_size: B.
        extra_replies: how many others go with a batch.
        seed: of every draw.
        rank: number of the process; each draws batches of its own.
        buffer: how many examples to shuffle among.
    """
    draw = random.Random(f"{seed}-{rank}")
    streams = [_shuffled(corpus, random.Random(f"{seed}-{rank}-{at}"), buffer) for at, corpus in enumerate(corpora)]
    weights = [corpus.weight for corpus in corpora]
    while True:
        [stream] = draw.choices(streams, weights)
        yield Batch(list(islice(stream, batch_size)), list(islice(stream, extra_replies)))


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
