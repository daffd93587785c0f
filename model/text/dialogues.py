"""Dialogues for training and evaluation, read from and written to `.jsonl[.gz|.zst]`: one example a line.

A turn may be a message in OpenAI's shape, as its SDK dumps it: an object of `role` and `content`. `content` is a text,
a list of parts, or null where the assistant only calls a tool. Texts are read, of every role: instructions (`system`,
`developer`) and outputs of tools are turns like any other. Images, sounds, files, thoughts and calls of tools are
skipped. Parts of any other type, such as a link, are pieces of the text around them.

Marks say of a reply that it is not right: `label: false` or `0` beside a response, `rejected: true`, `weight: 0`,
`deleted: true`, also as texts of tables. A line so marked is no example. A turn so marked is no reply
to learn from, and a deleted one is left out of the context.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import orjson
import pyarrow as pa

from polyrank.model.durable import replacing
from polyrank.model.errors import InvalidInput, TrainingDataInvalid
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.model.text.jsonlines import compression_of, read_objects

# Of a part that stands on lines of its own, by its type: the field that holds its text.
TEXT_FIELDS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
UNSAID: Final = {"reasoning", "reasoning_text", "summary_text", "thinking"}  # types of parts that nobody was shown
SELECTION_SHARE = 0.1  # of a small file is held out; the caller gives the number of examples for a large one
REPEATS = "repeats another example"
NOT_RIGHT = "the reply is marked as not right"
RIGHT, WRONG = "right", "wrong"  # classes of a reply that was shown first: labels, which a calibration is fitted on


def text_of(content: Any) -> str:
    """Return the text in the `content` of a message, "" where there is none.

    Parts of text stand on lines of their own. Those of other types that hold a text, links or bold words, are pieces of
    one line together with the texts beside them.

    Raises:
        InvalidInput: it is no text, null, or list of parts.

    >>> text_of([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "http://a/b.png"}}, "it"])
    'see\\nit'
    >>> text_of(["See ", {"type": "link", "text": "http://a/b"}, "."])
    'See http://a/b.'
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise InvalidInput("must be a string, a list of parts, or null")
    lines, before = "", "a part of text"
    for at, part in enumerate(content):
        kind = "a text" if isinstance(part, str) else "a part of text" if _type(part) in TEXT_FIELDS else "a piece"
        if (text := _text_of_part(part, at)) is None:
            continue
        runs_on = "a piece" in (before, kind) and "a part of text" not in (before, kind)
        lines += text if not lines or runs_on else f"\n{text}"
        before = kind
    return lines


def _type(part: Any) -> str:
    return str(part.get("type") or "text") if isinstance(part, Mapping) else ""


def turn_of(message: Mapping[str, Any]) -> Turn:
    """Return what a message says and who says it; where the assistant refused to answer, its `refusal` is the text.

    Raises:
        InvalidInput: see `text_of`; or its role or refusal is no string.

    >>> turn_of({"role": "assistant", "content": None, "refusal": "I cannot do that."})
    Turn(text='I cannot do that.', role='assistant')
    """
    for name in ("role", "refusal"):
        if not isinstance(message.get(name), str | None):
            raise InvalidInput(f"{name}: must be a string or null")
    try:
        text = text_of(message.get("content"))
    except InvalidInput as error:
        raise InvalidInput(f"content: {error}") from None
    return Turn(text or message.get("refusal") or "", message.get("role"))


def _text_of_part(part: Any, at: int) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise InvalidInput(f"part {at} must be a string or an object")
    field = TEXT_FIELDS.get(_type(part))
    text = part.get(field or "text")
    if field is None:
        return text if isinstance(text, str) and _type(part) not in UNSAID else None
    if not isinstance(text, str):
        raise InvalidInput(f"part {at}: {field} must be a string")
    return text


_BUFFER_BYTES = 1 << 16
_MESSAGE = {"content", "text", "refusal", "tool_calls", "function_call"}  # one of these makes an object a message


class NotRight(InvalidInput):
    """The response of a line is marked as not right, so the line is no example; it is not a bad one."""


class DialoguesInvalid(InvalidInput):
    """A file of dialogues cannot be used; the message names the file, the line and the reason."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One example: a context, its gold reply, and the candidates that hold it."""

    conversation: Conversation
    response: str  # the gold reply; of a single text whose class is told, the name of that class
    candidates: tuple[str, ...] = ()  # the list to rank, gold reply included; empty if the example has none
    label: int = -1  # place of the gold reply in `candidates`; -1 if there are none
    negatives: tuple[str, ...] = ()  # replies known to be wrong, to train against
    # Name of the dialogue that the example is part of; empty if the file does not name it (conversations.py then finds
    # it out).
    dialogue: str = ""
    # The class of context and response, or of the context's last turn, of an example for a classifier; else empty.
    category: str = ""
    no_replies: tuple[int, ...] = ()  # places of turns that are marked as no right replies
    # What is known of the dialogue, such as its language; training and evaluation do not read it.
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def is_single_text(self) -> bool:
        """Whether the class is that of the context's last turn: no response was given beside it."""
        return bool(self.category) and self.response == self.category


def read_dialogues(path: Path | str, marked: Counter[str] | None = None) -> Iterator[Dialogue]:
    """Stream the examples of a file; `marked` counts the lines whose reply is marked as not right, by mark."""
    return _examples(path, read_lines(path), Counter() if marked is None else marked)


def read_lines(path: Path | str) -> Iterator[tuple[int, Dialogue | InvalidInput]]:
    """Stream the lines of a file with their numbers: the example, or what is wrong with the line."""
    return ((number, _parse(raw)) for number, raw in read_objects(Path(path), DialoguesInvalid))


@contextmanager
def new_dialogues(path: Path) -> Iterator[Callable[[Dialogue], object]]:
    """Open a file for writing; yields a function that adds an example. Equal examples give equal bytes.

    The file appears, or replaces another, when the `with` block ends. If the block raises, what was there stays.

    Raises DialoguesInvalid for a name of an unknown kind, OSError where the directory is missing, full or not writable.
    """
    compression: Any = compression_of(path, DialoguesInvalid)  # None means not compressed, unknown to pyarrow's stubs
    with replacing(path) as temporary, pa.output_stream(str(temporary), compression, _BUFFER_BYTES) as stream:
        yield lambda dialogue: stream.write(_line(dialogue))


def _examples(
    path: Path | str, lines: Iterable[tuple[int, Dialogue | InvalidInput]], marked: Counter[str]
) -> Iterator[Dialogue]:
    for number, line in lines:
        if isinstance(line, NotRight):
            marked[str(line)] += 1
        elif isinstance(line, InvalidInput):
            raise DialoguesInvalid(f"{path}:{number}: {line}") from line
        else:
            yield line


def _parse(raw: dict[str, Any] | InvalidInput) -> Dialogue | InvalidInput:
    if isinstance(raw, InvalidInput):
        return raw
    try:
        return _dialogue(raw)
    except InvalidInput as error:
        return error


def _dialogue(raw: dict[str, Any]) -> Dialogue:
    if "context" not in raw:
        raise InvalidInput("context is missing: what was said before, as a list of texts")
    candidates = tuple(_texts(raw, "candidates"))
    raw_label = raw.get("label")
    category = raw_label if isinstance(raw_label, str) and not candidates else ""
    reply = raw.get("response", category)
    response = _turn(reply).text if _is_message(reply) else reply
    if not isinstance(response, str) or not response.strip():
        raise InvalidInput("response must be a text")
    if (mark := _mark(raw, lists=bool(candidates)) or (_is_message(reply) and _mark(reply))) and not category:
        raise NotRight(f"{NOT_RIGHT} ({mark})")
    turns, no_replies = _turns(raw["context"])
    conversation = Conversation.of(turns, _texts(raw, "persona"))
    label = -1 if category else _label(raw, candidates, response)
    negatives = (*_texts(raw, "negatives"), *_rejected(raw.get("rejected")))
    dialogue = str(raw.get("dialogue", ""))
    return Dialogue(conversation, response, candidates, label, negatives, dialogue, category, no_replies)


def _mark(fields: Mapping[str, Any], *, lists: bool = False) -> str | None:
    """Return what marks a reply as not right, if anything does; `lists`: a label that is a number is a place."""
    label, weight = fields.get("label"), fields.get("weight")
    if label is False or (not lists and type(label) in (int, float) and label == 0):
        return "label: false"
    if (type(weight) in (int, float) and weight == 0) or weight in ("0", "0.0"):
        return "weight: 0"
    return next((f"{name}: true" for name in ("rejected", "deleted") if _is_true(fields.get(name))), None)


def _is_true(mark: object) -> bool:
    return mark is True or (isinstance(mark, str) and mark.strip().lower() == "true")


def _rejected(value: Any) -> list[str]:
    """Return what was rejected for the response: texts, or the last one of messages, which lead to it."""
    if value is None or isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() == "false"):
        return []
    items = value if isinstance(value, list) else [value]
    if all(isinstance(each, str) for each in items):
        return [each for each in items if each]
    if not all(map(_is_message, items)):
        raise InvalidInput("rejected must be true or false, a text, a list of texts, a message, or messages up to it")
    return [text] if (text := _turn(items[-1]).text) else []


def _turns(value: object) -> tuple[list[Turn], tuple[int, ...]]:
    """Return the turns of a context, of texts and messages, and the places of those that are marked as no right reply.

    Messages without text say nothing, such as calls of tools; a deleted one was taken back.

    Raises InvalidInput where the value is no such list.
    """
    if not isinstance(value, list) or not all(isinstance(each, str) or _is_message(each) for each in value):
        raise InvalidInput("context must be a list of texts, or of messages with role and content")
    turns, no_replies = list[Turn](), list[int]()
    for item in value:
        if isinstance(item, str):
            turns.append(Turn(item))
        elif not _is_true(item.get("deleted")) and (turn := _turn(item)).text:
            if _mark(item):
                no_replies.append(len(turns))
            turns.append(turn)
    return turns, tuple(no_replies)


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and not _MESSAGE.isdisjoint(value)


def _turn(message: dict[str, Any]) -> Turn:
    return turn_of(message if "content" in message else {**message, "content": message.get("text")})


def drawn(examples: Iterable[Dialogue], most: int, draw: Random) -> list[Dialogue]:
    """Draw examples in random order, each as likely as any other; no others are held in memory."""
    sample: list[Dialogue] = []
    for count, example in enumerate(examples, 1):  # Vitter 1985, "Random sampling with a reservoir", algorithm R
        if len(sample) < most:
            sample.append(example)
        elif (place := draw.randrange(count)) < most:
            sample[place] = example
    draw.shuffle(sample)
    return sample


def _texts(raw: dict[str, Any], name: str) -> list[str]:
    value = raw.get(name, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise InvalidInput(f"{name} must be a list of texts")
    return value


def _label(raw: dict[str, Any], candidates: tuple[str, ...], response: str) -> int:
    if not candidates:
        return -1
    if response not in candidates:
        raise InvalidInput(f"the response is not among the {len(candidates)} candidates; add it to them")
    label = raw.get("label", candidates.index(response))
    if type(label) is not int or not 0 <= label < len(candidates) or candidates[label] != response:
        raise InvalidInput("label must be the place of the gold reply in candidates")
    return label


def _line(dialogue: Dialogue) -> bytes:
    row: dict[str, object] = {
        "context": [
            {**_message(turn), "weight": 0} if at in dialogue.no_replies else _written(turn)
            for at, turn in enumerate(dialogue.conversation.turns)
        ]
    }
    if dialogue.conversation.persona:
        row["persona"] = dialogue.conversation.persona
    row["response"] = dialogue.response
    if dialogue.category:
        row["label"] = dialogue.category
    elif dialogue.candidates:
        row |= {"candidates": dialogue.candidates, "label": dialogue.label}
    row["negatives"] = dialogue.negatives
    if dialogue.dialogue:
        row["dialogue"] = dialogue.dialogue
    if dialogue.metadata:
        row["metadata"] = dialogue.metadata
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def _written(turn: Turn) -> str | dict[str, str]:
    return turn.text if turn.role is None else _message(turn)


def _message(turn: Turn) -> dict[str, str]:
    return {**({} if turn.role is None else {"role": turn.role}), "content": turn.text}


@dataclass(slots=True)
class Report:
    """What one pass over a file found."""

    lines: int = 0
    examples: int = 0
    held_out: int = 0
    assumed: str | None = None  # of which dialogues the lines are, where the file does not say it
    with_negatives: int = 0
    categories: Counter[str] = field(default_factory=Counter)
    single_texts: int = 0  # in how many of all examples the class is that of a single text
    # How many bad lines and repeated examples there are, by reason.
    dropped: Counter[str] = field(default_factory=Counter)
    first: dict[str, int] = field(default_factory=dict)  # number of the first line with each reason

    def drop(self, reason: str, line: int) -> None:
        self.dropped[reason] += 1
        self.first.setdefault(reason, line)

    @property
    def bad(self) -> int:
        """Number of bad lines; repeated examples are none, nor are lines whose reply is marked as not right."""
        return sum(n for why, n in self.dropped.items() if why != REPEATS and not why.startswith(NOT_RIGHT))

    def require_few_bad(self, path: Path, max_rejected: float) -> None:
        """Raise TrainingDataInvalid where more than that share of the lines is bad."""
        if self.bad > max_rejected * self.lines:
            raise TrainingDataInvalid(f"{path}: too many bad lines: {self}; mend them or raise --max-rejected")

    def __str__(self) -> str:
        text = f"{self.examples} examples" + (f", {self.held_out} held out" if self.held_out else "")
        if self.held_out > SELECTION_SHARE * (self.examples + self.held_out):
            text += " (more than a tenth, since two whole dialogues are needed to select by)"
        for reason, count in self.dropped.most_common():
            text += f"; {count} dropped: {reason} (first in line {self.first[reason]})"
        return f"{text}; {self.assumed}" if self.assumed else text


def good_lines(path: Path, report: Report) -> Iterator[tuple[int, Dialogue]]:
    """Yield the lines that are examples, with their numbers; counts all lines, and the bad ones by reason."""
    for number, line in read_lines(path):
        report.lines += 1
        if isinstance(line, InvalidInput):
            report.drop(str(line), number)
        else:
            yield number, line
