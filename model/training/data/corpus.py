"""The dialogues of a run: reads files, drops bad and repeated examples, and holds some out for selection."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue, read_lines
from polyrank.model.text.positives import text_key
from polyrank.model.training.errors import TrainingDataInvalid

_SELECTION_SHARE = 0.1  # of a small file; the caller gives the number of examples for a large one
_HASHES = 2**64
_REPEATS = "repeats another example"
_CONTRADICTS = "another line gives these texts another class"


@dataclass(frozen=True, slots=True)
class Corpus:
    """One file of dialogues, read the same way every time.

    Attributes:
        every_turn: make an example of every reply in a dialogue, not of the last one alone.
        weight: how often a batch is taken from it, relative to other files.
        held_out_below: dialogues with a hash below this are the selection slice.
    """

    path: Path
    every_turn: bool
    weight: float
    held_out_below: int = 0

    def examples(self, selection: bool = False) -> Iterator[Dialogue]:
        """Stream the examples to train on, or those of the selection slice, without bad and repeated ones."""
        for example in _kept(self, Report()):
            if (_hash(example.dialogue) < self.held_out_below) == selection:
                yield example

    def replies(self) -> Iterator[str]:
        """Stream each distinct reply of the file: the pool that a server would answer from."""
        seen: set[int] = set()
        for example in _kept(self, Report()):
            if (key := _hash(example.response)) not in seen:
                seen.add(key)
                yield example.response


@dataclass(slots=True)
class Report:
    """What one pass over a file found.

    Attributes:
        lines: how many lines are not blank.
        kept: how many examples there are to train on.
        held_out: how many examples are in the selection slice.
        with_negatives: how many of those kept list negatives.
        categories: how many of all examples have each class, for a classifier.
        single_texts: in how many of all examples the class is that of a single text.
        dropped: how many bad lines and repeated examples there are, by reason.
        first: number of the first line with each reason.
    """

    lines: int = 0
    kept: int = 0
    held_out: int = 0
    with_negatives: int = 0
    categories: Counter[str] = field(default_factory=Counter)
    single_texts: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str, line: int) -> None:
        """Count a bad line or a repeated example."""
        self.dropped[reason] += 1
        self.first.setdefault(reason, line)

    @property
    def bad(self) -> int:
        """Number of bad lines; repeated examples are none."""
        return self.dropped.total() - self.dropped[_REPEATS]

    def require_few_bad(self, path: Path, max_rejected: float) -> None:
        """Raise TrainingDataInvalid where more than that share of the lines is bad."""
        if self.bad > max_rejected * self.lines:
            raise TrainingDataInvalid(f"{path}: too many bad lines: {self}; mend them or raise --max-rejected")

    def __str__(self) -> str:
        said = f"{self.kept} examples" + (f", {self.held_out} held out" if self.held_out else "")
        for reason, count in self.dropped.most_common():
            said += f"; {count} dropped: {reason} (first in line {self.first[reason]})"
        return said


def survey(path: Path, every_turn: bool, max_rejected: float, held_out: int) -> tuple[Corpus, Report]:
    """Read a file once: count and check its lines, and choose the dialogues to hold out.

    The choice depends on the dialogues alone, so every later reading makes the same one. A smaller slice is part of a
    larger one.

    About `held_out` examples are held out; of a small file a tenth, but at least two dialogues. `max_rejected` is the
    share of bad lines above which the file is refused. The corpus has the number of its examples as its weight.

    Raises:
        DialoguesInvalid: the file cannot be read.
        TrainingDataInvalid: it has no examples, too many bad lines, or fewer than four dialogues.
    """
    corpus, report = Corpus(path, every_turn, weight=0.0), Report()
    hashes, listing = [], []
    for example in _kept(corpus, report):
        hashes.append(_hash(example.dialogue))
        listing.append(bool(example.negatives))
        report.categories[example.category] += 1
        report.single_texts += example.is_single_text
    report.require_few_bad(path, max_rejected)
    dialogues = sorted(set(hashes))
    if len(dialogues) < 4:  # a dialogue alone has no negatives, so its loss is zero
        raise TrainingDataInvalid(f"{path}: {report}; training needs at least four dialogues, two of them to select by")
    share = min(_SELECTION_SHARE, held_out / len(hashes))
    below = max(int(share * _HASHES), dialogues[1] + 1)
    report.held_out = sum(key < below for key in hashes)
    report.kept -= report.held_out
    report.with_negatives = sum(lists for key, lists in zip(hashes, listing, strict=True) if key >= below)
    if report.kept == 0:
        raise TrainingDataInvalid(f"{path}: too few dialogues to hold some out for selection; give more")
    return replace(corpus, weight=float(report.kept), held_out_below=below), report


def _kept(corpus: Corpus, report: Report) -> Iterator[Dialogue]:
    seen: set[int] = set()
    for number, line in read_lines(corpus.path):
        report.lines += 1
        if isinstance(line, InvalidInput):
            report.drop(str(line), number)
            continue
        for example in _every_turn(line) if corpus.every_turn else (line,):
            key = _hash(repr((example.conversation, example.response)))
            told = _hash(f"{key} {example.category}") if example.category else key
            if key in seen:
                report.drop(_REPEATS if told in seen else _CONTRADICTS, number)
            else:
                seen |= {key, told}
                report.kept += 1
                yield _without_gold(example)


def _every_turn(dialogue: Dialogue) -> Iterator[Dialogue]:
    """Yield an example for each earlier turn of the replying side (every other one, from the end), then the dialogue.

    Candidates and negatives belong to its last reply alone.
    """
    turns = dialogue.conversation.turns
    for at in range(len(turns) % 2, len(turns), 2):
        if turns[at].text.strip() and any(turn.text.strip() for turn in turns[:at]):
            conversation = Conversation(turns[:at], dialogue.conversation.persona)
            yield Dialogue(conversation, turns[at].text, dialogue=dialogue.dialogue)
    yield dialogue


def _without_gold(example: Dialogue) -> Dialogue:
    """Remove negatives that equal the gold reply."""
    gold = text_key(example.response)
    return replace(example, negatives=tuple(text for text in example.negatives if text_key(text) != gold))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
