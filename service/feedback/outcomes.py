"""What became of a ranking: which reply was sent, and what was thought of others."""

from dataclasses import dataclass
from typing import Literal

from polyrank.service.feedback.records import Event, Ranking, Shown, Use

Sent = Literal["chosen", "edited", "written"]
_ENDS = ("chosen", "edited", "written", "none_good")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where people changed their mind, the last word counts."""

    kind: Sent | Literal["none_good"] | None  # how the reply came about that was sent; None: no event says it
    reply: str | None  # the id of the shown reply that was sent, as it stood or edited; None: there is none, or no id
    text: str | None  # of the reply that was sent, where the event has it
    rank: int | None  # the place of the shown reply that was sent, from 1; None: it is not among those recorded
    up: frozenset[str]  # ids of replies that were liked
    down: frozenset[str]  # and disliked
    none_good: bool  # somebody said so, whatever was sent in the end

    def first_is_right(self, first: Shown) -> bool | None:
        """Whether the first reply was right as it stood; None: that is not known, as of an edited one."""
        if first.id in self.up | self.down:
            return first.id in self.up
        if self.kind is None or (self.kind == "edited" and self.rank in (None, 1)):
            return None
        return self.rank == 1


def outcome_of(use: Use) -> Outcome:
    """Read the events of a ranking."""
    end = next((event for event in reversed(use.events) if event.kind in _ENDS), None)
    votes = {event.reply: event.kind for event in use.events if event.kind in ("up", "down") and event.reply}
    return Outcome(
        kind=None if end is None else end.kind,  # type: ignore[arg-type]  # one of _ENDS
        reply=None if end is None else end.reply,
        text=None if end is None else end.text,
        rank=None if end is None else _rank(use.ranking, end),
        up=frozenset(reply for reply, kind in votes.items() if kind == "up"),
        down=frozenset(reply for reply, kind in votes.items() if kind == "down"),
        none_good=any(event.kind == "none_good" for event in use.events),
    )


def _rank(ranking: Ranking, end: Event) -> int | None:
    """Find the reply by its id; one that was sent along without an id by its text."""
    if end.kind not in ("chosen", "edited"):
        return None
    for rank, shown in enumerate(ranking.shown, 1):
        if shown.id == end.reply if end.reply is not None else (shown.id is None and shown.text == end.text):
            return rank
    return None
