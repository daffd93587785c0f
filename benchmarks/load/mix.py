"""Requests like those of a support chat: distinct contexts of one to six turns, some with their own candidates."""

import random
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from polyrank.index_builder.pool.rows import Candidate, read_pool
from polyrank.model.text.dialogues import read_dialogues

SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "support"
MOST_TURNS = 6
SENT = (20, 100)


class Mix:
    """Draws requests that all differ, so that no cache can answer them.

    Args:
        dialogues: file of dialogues whose contexts are cut and mixed.
        pool: file of the texts that are sent as candidates.
        seed: seed of all draws.
    """

    def __init__(self, dialogues: Path, pool: Path, seed: int = 0) -> None:
        self._contexts = [[turn.text for turn in each.conversation.turns] for each in read_dialogues(dialogues)]
        self._texts = [row.text for row in read_pool([pool]) if isinstance(row, Candidate)]
        self._draw = random.Random(seed)
        self._numbers = count()

    def short(self, **fields: Any) -> Iterator[dict[str, Any]]:
        """Yield contexts of one turn, to be ranked over the generation."""
        while True:
            yield {"context": [f"{self._turns()[0]} {next(self._numbers)}"], **fields}

    def realistic(self, sent: float, fresh: float, **fields: Any) -> Iterator[dict[str, Any]]:
        """Yield contexts of some turns, some with candidates.

        Args:
            sent: share of the requests that bring candidates.
            fresh: share of these candidates that no cache can know.
            fields: other fields of each request.
        """
        while True:
            number = next(self._numbers)
            request = {"context": self._context(number), **fields}
            if self._draw.random() < sent:
                request["candidates"] = self._candidates(number, fresh)
            yield request

    def _turns(self) -> list[str]:
        return self._draw.choice(self._contexts)

    def _context(self, number: int) -> list[str]:
        turns = [turn for _ in range(3) for turn in self._turns()]
        kept = turns[-self._draw.randint(1, MOST_TURNS) :]
        return [*kept[:-1], f"{kept[-1]} {number}"]  # the number makes the context unique

    def _candidates(self, number: int, fresh: float) -> list[str]:
        texts: Sequence[str] = self._draw.choices(self._texts, k=self._draw.randint(*SENT))
        return [f"{text} {number}" if self._draw.random() < fresh else text for text in texts]
