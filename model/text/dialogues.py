"""Read dialogues for training and evaluation: `.jsonl`, `.jsonl.gz` or `.jsonl.zst`, one example a line."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.jsonlines import read_objects


class DialoguesInvalid(InvalidInput):
    """A file of dialogues cannot be used; the message names the file, the line and what is wrong."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One example: a context, its gold reply, and the list it is to be found in.

    Attributes:
        conversation: the turns, oldest first, and the persona.
        response: the gold reply.
        candidates: the list to rank, the gold reply in it; empty where the example has none.
        label: the gold reply's place in `candidates`; -1 where there are none.
        negatives: replies known to be wrong here, to train against.
        dialogue: what names the dialogue this is a part of: the file's `dialogue`, or else the first turn, which
            the examples of one dialogue share.
    """

    conversation: Conversation
    response: str
    candidates: tuple[str, ...] = ()
    label: int = -1
    negatives: tuple[str, ...] = ()
    dialogue: str = ""


def read_dialogues(path: Path | str) -> Iterator[Dialogue]:
    """Stream a file's examples.

    Raises:
        DialoguesInvalid: the file is missing, of an unknown kind or damaged, or a line is no example.
    """
    return _examples(path, read_lines(path))


def read_lines(path: Path | str) -> Iterator[tuple[int, Dialogue | InvalidInput]]:
    """Stream a file's lines with their numbers: an example, or what is wrong with the line.

    Raises:
        DialoguesInvalid: the file is missing, of an unknown kind or damaged.
    """
    return ((number, _parse(raw)) for number, raw in read_objects(Path(path), DialoguesInvalid))


def _examples(path: Path | str, lines: Iterator[tuple[int, Dialogue | InvalidInput]]) -> Iterator[Dialogue]:
    for number, line in lines:
        if isinstance(line, InvalidInput):
            raise DialoguesInvalid(f"{path}:{number}: {line}") from line
        yield line


def _parse(raw: dict[str, Any] | InvalidInput) -> Dialogue | InvalidInput:
    if isinstance(raw, InvalidInput):
        return raw
    try:
        return _dialogue(raw)
    except InvalidInput as error:
        return error


def _dialogue(raw: dict[str, Any]) -> Dialogue:
    response = raw.get("response")
    if not isinstance(response, str) or not response.strip():
        raise InvalidInput("response must be a text")
    conversation = Conversation.of(_texts(raw, "context"), _texts(raw, "persona"))
    candidates = tuple(_texts(raw, "candidates"))
    label = _label(raw, candidates, response)
    negatives = tuple(_texts(raw, "negatives"))
    named = raw.get("dialogue")
    dialogue = conversation.turns[0].text if named is None else str(named)
    return Dialogue(conversation, response, candidates, label, negatives, dialogue)


def _texts(raw: dict[str, Any], name: str) -> list[str]:
    value = raw.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidInput(f"{name} must be a list of texts")
    return value


def _label(raw: dict[str, Any], candidates: tuple[str, ...], response: str) -> int:
    if not candidates:
        return -1
    label = raw.get("label", candidates.index(response) if response in candidates else None)
    if type(label) is not int or not 0 <= label < len(candidates) or candidates[label] != response:
        raise InvalidInput("label must be the place of the gold reply in candidates")
    return label
