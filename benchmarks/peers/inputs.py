"""The texts that all sides get: contexts of mixed length, replies, and pairs of both."""

import random
from collections.abc import Sequence
from pathlib import Path

from polyrank.index_builder.pool.rows import Candidate, read_pool
from polyrank.model.text.dialogues import read_dialogues

MOST_TURNS = 6
PAIR_TURNS = 3


def contexts(data: Path, count: int, seed: int) -> list[str]:
    """Draw dialogues; returns the last one to six turns of each as one text, so that all sides see the same tokens."""
    draw = random.Random(seed)
    dialogues = list(read_dialogues(data))
    chosen = [draw.choice(dialogues).conversation.turns for _ in range(count)]
    return [" ".join(turn.text for turn in turns[-draw.randint(1, MOST_TURNS) :]) for turns in chosen]


def replies(pool: Sequence[Path], count: int | None = None) -> list[str]:
    """Read the texts of a pool: all, or so many spread evenly over it."""
    texts = [row.text for row in read_pool(pool) if isinstance(row, Candidate)]
    if count is None or count >= len(texts):
        return texts
    return [texts[number * len(texts) // count] for number in range(count)]


def pairs(data: Path, pool: Sequence[Path], count: int, seed: int) -> list[tuple[str, str]]:
    """Draw one context of a few turns and so many replies to pair with it."""
    draw = random.Random(seed)
    turns = draw.choice([each for each in read_dialogues(data) if len(each.conversation.turns) >= PAIR_TURNS])
    context = " ".join(turn.text for turn in turns.conversation.turns[-PAIR_TURNS:])
    texts = replies(pool)
    return [(context, draw.choice(texts)) for _ in range(count)]
