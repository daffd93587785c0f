"""What a score loses where a part of the context is left out: for models whose scores are no sums.

It is not additive: what two parts say together is lost with each of them. Source of the idea: Zeiler and Fergus 2014,
"Visualizing and Understanding Convolutional Networks", section 4.2.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from polyrank.model.text.placing import PlacedToken

By = Literal["turns", "words"]


class Unit(NamedTuple):
    """A part of a context that is left out.

    Attributes:
        turn, persona, start, end: as in `PlacedToken`.
        places: of its tokens.
    """

    turn: int | None
    persona: int | None
    start: int
    end: int
    places: tuple[int, ...]


_KEYS: dict[By, Callable[[PlacedToken], object]] = {
    "turns": lambda token: (token.turn, token.persona),
    "words": lambda token: token.word,
}


def units(tokens: Sequence[PlacedToken], by: By) -> list[Unit]:
    """Return the turns and sentences of the persona, or the words, of a context's tokens, in their order."""
    groups: dict[object, list[int]] = {}
    for place, token in enumerate(tokens):
        if token.start is not None:
            groups.setdefault(_KEYS[by](token), []).append(place)
    return [_unit(tokens, places) for places in groups.values()]


def _unit(tokens: Sequence[PlacedToken], places: Sequence[int]) -> Unit:
    own = [tokens[place] for place in places]
    start, end = min(each.start or 0 for each in own), max(each.end or 0 for each in own)
    return Unit(own[0].turn, own[0].persona, start, end, tuple(places))


def without(ids: Sequence[int], places: Sequence[int]) -> list[int]:
    """Return token ids without those at some places."""
    left_out = {*places}
    return [id_ for place, id_ in enumerate(ids) if place not in left_out]
