"""The examples that `polyrank evaluate` measures models on; imports no torch, so that files are refused at once."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from polyrank.model.errors import InvalidInput
from polyrank.model.evaluation.drawing import DRAWN, ReplyDraw
from polyrank.model.text.dialogues import Dialogue, read_dialogues

Numbered = list[tuple[int, Dialogue]]
"""Examples with their places in the file."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How candidates are drawn for examples that list none.

    Attributes:
        count: candidates of an example, gold reply included; 0: none are drawn; None: DRAWN if no example of the file
            lists any, else none.
        seed: of the draw.
    """

    count: int | None = None
    seed: int = 0

    def settled(self, dialogues: Sequence[Dialogue]) -> "Draw":
        """Decide how many are drawn in a file."""
        if self.count is not None:
            return self
        return Draw(0 if any(dialogue.candidates for dialogue in dialogues) else DRAWN, self.seed)


AS_LISTED = Draw()


def listed_examples(data: Path, limit: int | None, draw: Draw = AS_LISTED) -> tuple[Numbered, dict[str, Any]]:
    """Read examples with candidates, which are drawn where they are missing; also returns what to say of the draw.

    Raises:
        InvalidInput: the file cannot be read, or holds nothing to rank.
    """
    dialogues = list(islice(read_dialogues(data), limit))
    if any(dialogue.category for dialogue in dialogues):
        raise InvalidInput(f"{data}: its labels are classes; give a classifier to measure how they are told")
    draw = draw.settled(dialogues)
    listed = _with_candidates(data, dialogues, draw)
    examples = [(number, dialogue) for number, dialogue in enumerate(listed) if dialogue.candidates]
    if not examples:
        raise InvalidInput(_why_none(dialogues, draw))
    report_left_out(len(dialogues) - len(examples), len(dialogues), "have no candidates")
    return examples, _drawn(dialogues, examples, draw)


def classed_examples(data: Path, limit: int | None) -> list[Dialogue]:
    """Read examples that all have a class.

    Raises:
        InvalidInput: the file cannot be read, is empty, or an example has none.
    """
    examples = list(islice(read_dialogues(data), limit))
    if missing := sum(not each.category for each in examples):
        raise InvalidInput(f"{data}: {missing} examples have no class; give each a label, as a text")
    if not examples:
        raise InvalidInput(f"{data}: there is no example")
    return examples


def report_left_out(count: int, total: int, why: str) -> None:
    """Say on standard error how many examples are not measured, and why."""
    if count:
        print(f"{count} of {total} examples {why} and were left out", file=sys.stderr)


def _with_candidates(data: Path, dialogues: Sequence[Dialogue], draw: Draw) -> Sequence[Dialogue]:
    """Draw candidates for examples without from all replies of the file, if that is wanted."""
    if not draw.count or all(dialogue.candidates for dialogue in dialogues):
        return dialogues
    replies = ReplyDraw(read_dialogues(data), draw.count, draw.seed)
    return [replies.candidates(number, dialogue) for number, dialogue in enumerate(dialogues)]


def _drawn(dialogues: Sequence[Dialogue], examples: Sequence[tuple[int, Dialogue]], draw: Draw) -> dict[str, Any]:
    """Say what was drawn; nothing where nothing was."""
    sizes = [len(dialogue.candidates) for number, dialogue in examples if not dialogues[number].candidates]
    if not sizes:
        return {}
    each = f"{draw.count}" if min(sizes) == draw.count else f"{min(sizes)} to {max(sizes)}"
    return {"drawn": f"{each} candidates for {len(sizes)} examples, from the file's replies (seed {draw.seed})"}


def _why_none(dialogues: Sequence[Dialogue], draw: Draw) -> str:
    if draw.count and dialogues:
        return "no example has `candidates`, and the file has no wrong replies to draw; there is nothing to rank"
    return "no example has `candidates`; there is nothing to rank"
