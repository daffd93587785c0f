"""The examples that `polyrank evaluate` measures models on; imports no torch, so that files are refused at once."""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from polyrank.model.errors import InvalidInput
from polyrank.model.text.conversations import DRAWN, ReplyDraw, identified
from polyrank.model.text.dialogues import Dialogue, read_dialogues

Numbered = list[tuple[int, Dialogue]]
"""Examples with their places in the file."""


Identified = tuple[list[Dialogue], str | None]
"""Examples that all have the name of their dialogue, and what was assumed where the file does not name it."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How candidates are drawn for examples that list none.

    `count`: candidates of an example, gold reply included; 0: none are drawn; None: DRAWN if no example of the file
    lists any, else none.
    """

    count: int | None = None
    seed: int = 0

    def settled(self, dialogues: Sequence[Dialogue]) -> "Draw":
        """Decide how many are drawn in a file."""
        if self.count is not None:
            return self
        return Draw(0 if any(dialogue.candidates for dialogue in dialogues) else DRAWN, self.seed)


AS_LISTED = Draw()


def listed_examples(
    data: Path, limit: int | None, draw: Draw = AS_LISTED
) -> tuple[Numbered, dict[str, Any], str | None]:
    """Read examples with candidates, which are drawn where they are missing.

    Returns them, what to say of the draw, and what was assumed of dialogues without a name.

    Raises InvalidInput if the file cannot be read, or holds nothing to rank.
    """
    dialogues = _read(data, limit)
    require_no_classes(data, dialogues)
    draw = draw.settled(dialogues)
    complete, assumption = _with_candidates(data, dialogues, draw)
    examples = [(number, dialogue) for number, dialogue in enumerate(complete) if dialogue.candidates]
    if not examples:
        lacks = ", and the file has no wrong replies to draw" if draw.count and dialogues else ""
        raise InvalidInput(f"no example has `candidates`{lacks}; there is nothing to rank")
    report_left_out(len(dialogues) - len(examples), len(dialogues), "have no candidates")
    return examples, _drawn(dialogues, examples, draw), assumption


def classed_examples(data: Path, limit: int | None) -> Identified:
    """Read examples that all have a class.

    Raises InvalidInput if the file cannot be read, is empty, or an example has none.
    """
    examples, assumption = read_identified(data, limit)
    if missing := sum(not each.category for each in examples):
        raise InvalidInput(f"{data}: {missing} examples have no class; give each a label, as a text")
    if not examples:
        raise InvalidInput(f"{data}: there is no example")
    return examples, assumption


def read_identified(data: Path, limit: int | None = None) -> Identified:
    """Read examples, and find out which are of one dialogue; raises InvalidInput where the file cannot be read."""
    return _identified(data, _read(data, limit))


def require_no_classes(data: Path, dialogues: Iterable[Dialogue]) -> None:
    """Raise InvalidInput where a label is a class: also a reply that is labelled `wrong` would count as right."""
    if any(dialogue.category for dialogue in dialogues):
        raise InvalidInput(f"{data}: its labels are classes; give a classifier to measure how they are told")


def _read(data: Path, limit: int | None) -> list[Dialogue]:
    reasons = Counter[str]()
    dialogues = list(islice(read_dialogues(data, reasons), limit))
    for why, count in reasons.items():
        print(f"{data}: {count} lines were left out: {why}", file=sys.stderr)
    return dialogues


def _identified(data: Path, dialogues: Iterable[Dialogue]) -> Identified:
    examples, grouping = identified(dialogues)
    assumption = grouping.assumed()
    return examples, assumption and f"{data}: {assumption}"


def report_left_out(count: int, total: int, why: str) -> None:
    """Say on standard error how many examples are not measured, and why."""
    if count:
        print(f"{count} of {total} examples {why} and were left out", file=sys.stderr)


def _with_candidates(data: Path, dialogues: Sequence[Dialogue], draw: Draw) -> Identified:
    """Name all dialogues; draw candidates for examples without from all replies of the file, if that is wanted."""
    if not draw.count or all(dialogue.candidates for dialogue in dialogues):
        return _identified(data, dialogues)
    every, assumption = _identified(data, read_dialogues(data))
    replies = ReplyDraw(every, draw.count, draw.seed)
    complete = [replies.candidates(number, dialogue) for number, dialogue in enumerate(every[: len(dialogues)])]
    return complete, assumption


def _drawn(dialogues: Sequence[Dialogue], examples: Sequence[tuple[int, Dialogue]], draw: Draw) -> dict[str, Any]:
    """Say what was drawn; nothing where nothing was."""
    sizes = [len(dialogue.candidates) for number, dialogue in examples if not dialogues[number].candidates]
    if not sizes:
        return {}
    each = f"{draw.count}" if min(sizes) == draw.count else f"{min(sizes)} to {max(sizes)}"
    return {"drawn": f"{each} candidates for {len(sizes)} examples, from the file's replies (seed {draw.seed})"}
