"""A conversation as the features read it: words, by who said them and when."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from polyrank.model.evidence.words import words
from polyrank.model.text.assembly import COUNTED_LETTERS, Conversation, Turn


@dataclass(frozen=True, slots=True)
class ReadContext:
    """What the features know of a conversation.

    Attributes:
        persona: the words of the persona.
        turns: the text of each turn that is not blank, newest first.
        newest: for each word of the turns, how many turns ago it was last said; 0 in the newest turn.
        own: the words that the replying side has said.
    """

    persona: frozenset[str]
    turns: tuple[str, ...]
    newest: dict[str, int]
    own: frozenset[str]


def read(conversation: Conversation) -> ReadContext:
    """Read a conversation: of the persona the first COUNTED_LETTERS letters, of the turns as many, newest first.

    What lies beyond them is not read, so that a huge context costs no more than a long one. The newest turn is the
    other side's. If it has a role, so are all turns of that role; if not, the sides take turns.

    >>> context = read(Conversation.of(["A boat?", "My boat is old", "How old?"], "I sail"))
    >>> context.newest["old"], context.newest["boat"], sorted(context.own), sorted(context.persona)
    (0, 1, ['boat', 'is', 'my', 'old'], ['i', 'sail'])
    """
    turns = list(_within(reversed(conversation.turns)))
    newest: dict[str, int] = {}
    own: set[str] = set()
    for age, turn in enumerate(turns):
        said = words(turn.text)
        for word in said:
            newest.setdefault(word, age)
        if _is_own(turn, age, turns[0].role):
            own.update(said)
    persona = (word for fact in _within(map(Turn, conversation.persona)) for word in words(fact.text))
    return ReadContext(frozenset(persona), tuple(turn.text for turn in turns), newest, frozenset(own))


def unread(conversation: Conversation) -> tuple[int, int]:
    """Return how many turns `read` leaves out, and how many letters of the other turns and of the persona.

    >>> unread(Conversation.of(["a", "b" * COUNTED_LETTERS, "c"], "d" * (COUNTED_LETTERS + 5)))
    (1, 6)
    """
    said = [turn for turn in reversed(conversation.turns) if turn.text.strip()]
    kept = list(_within(said))
    cut = _letters(said[: len(kept)]) - _letters(kept)
    facts = [Turn(fact) for fact in conversation.persona if fact.strip()]
    return len(said) - len(kept), cut + _letters(facts) - _letters(_within(facts))


def _letters(turns: Iterable[Turn]) -> int:
    return sum(len(turn.text) for turn in turns)


def _is_own(turn: Turn, age: int, other: str | None) -> bool:
    return age % 2 == 1 if other is None else turn.role is not None and turn.role != other


def _within(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Yield the first turns that are not blank, up to COUNTED_LETTERS letters in all; the last one may lose its end."""
    room = COUNTED_LETTERS
    for turn in turns:
        if room <= 0:
            return
        if turn.text.strip():
            yield Turn(turn.text[:room], turn.role)
            room -= len(turn.text)
