"""What a log of feedback holds: rankings, and events that say what became of one.

A line of the log is one of these as a JSON object of its attributes, as orjson writes it. `kind` tells the two apart.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Final, Literal, get_args

from pydantic import AllowInfNan, Field, Strict, TypeAdapter

from polyrank.model.text.assembly import Conversation

# What people say of a ranking: which reply was sent (as it stood, edited, or written by hand although some were
# shown), what was thought of one, that none was good, and how the conversation ended.
Kind = Literal["chosen", "edited", "written", "up", "down", "none_good", "handed_over", "resolved"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

# The generation that was asked, where two answer side by side: a share of the conversations asks the one on trial.
Side = Literal["live", "trial"]

RANKING: Final = "ranking"
MOST_SHOWN: Final = 20

Score = Annotated[float, Strict(), AllowInfNan(False)]
LATEST: Final = 253_402_300_800  # the year 10000; no calendar goes on
Time = Annotated[Score, Field(ge=0, lt=LATEST)]
"""Seconds since the epoch."""


# Rankings have no slots: orjson writes what has a `__dict__` four times as fast.
@dataclass(frozen=True)
class Shown:
    """A reply of an answer."""

    id: str | None  # of the generation, or as it was sent along; None: it was sent along without one
    score: Score
    text: str | None = None  # of a reply that was sent along; None: the generation holds it, or texts are not recorded


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """An answer of `/rank`."""

    kind: Literal["ranking"] = RANKING
    id: str  # as its answer told it: `ranking_id`
    at: Time
    generation: str  # that answered
    revision: Annotated[int, Strict()]
    fingerprint: str
    shown: tuple[Shown, ...]  # the first replies, best first
    below: tuple[str | None, ...] = ()  # the ids of those that were shown below them
    by: str | None = None  # a digest of the name of the caller's key; None: there are no keys
    side: Side | None = None  # None: no share of the conversations asked another generation then
    replaced: str | None = None  # why the trial's generation was asked and the live one answered; None: it was not so
    conversation: str | None = None  # a digest of its name; None: the caller named none
    said: Conversation | None = None  # context and persona, redacted; None: texts are not recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What became of a ranking."""

    kind: Kind
    id: str  # the caller's `event_id`; an event counts once
    at: Time  # when it came
    ranking: str  # the id of the ranking
    reply: str | None = None  # the id of the reply that it is about
    # Of the reply that was sent (`edited`, `written`), redacted; None: there is none, or it is not recorded.
    text: str | None = None
    by: str | None = None  # a digest of the name of the caller's key; None: there are no keys


# They read a line, and raise ValueError where a field is missing or has a value of another type.
RANKINGS, EVENTS = TypeAdapter(Ranking), TypeAdapter(Event)


def is_of_shown(kind: Kind, reply: object, text: object, ids: Collection[object], texts: Collection[object]) -> bool:
    """Whether an event is about what its ranking has shown.

    Args:
        kind: of the event.
        reply: of the event; may be a hash, if ids are.
        text: of the event; may be a hash, if texts are.
        ids: of all replies that were shown.
        texts: of those that were sent along without an id; with None it is not known what some of them say.
    """
    if reply is not None:
        return reply in ids
    return kind != "chosen" or text is None or text in texts or None in texts


@dataclass(frozen=True, slots=True)
class Use:
    """A ranking with all that became of it, in the order in which it came."""

    ranking: Ranking
    events: tuple[Event, ...] = ()
