"""A conversation as the features read it: the words of its parts, newest turn first."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from polyrank.model.evidence.words import words
from polyrank.model.text.assembly import COUNTED_LETTERS, Conversation


class SpokenTurn(NamedTuple):
    """A turn that has text, and its words."""

    text: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadContext:
    """A conversation, read: persona and turns by their words; turns without text are left out.

    Attributes:
        persona: the words of each fact.
        turns: newest first.
    """

    persona: tuple[tuple[str, ...], ...]
    turns: tuple[SpokenTurn, ...]


def read(conversation: Conversation) -> ReadContext:
    """Read a conversation: of the persona the first COUNTED_LETTERS letters, of the turns as many, newest first.

    What lies beyond them is not read, so that a huge context costs no more than a long one.
    """
    persona = tuple(tuple(words(fact)) for fact in _within(conversation.persona))
    texts = _within(turn.text for turn in reversed(conversation.turns))
    return ReadContext(persona, tuple(SpokenTurn(text, tuple(words(text))) for text in texts))


def _within(texts: Iterable[str]) -> list[str]:
    """Keep the first texts that are not blank, up to COUNTED_LETTERS letters in all; the last one may lose its end."""
    kept, room = [], COUNTED_LETTERS
    for text in texts:
        if room <= 0:
            break
        if text.strip():
            kept.append(text[:room])
            room -= len(text)
    return kept
