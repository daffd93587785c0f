"""What a log of feedback says: each ranking with what became of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import TypeAdapter

from polyrank.index_builder.convert.rows import table_on_disk
from polyrank.service.feedback.files import Erased, Line, lines, names
from polyrank.service.feedback.identity import folder_of
from polyrank.service.feedback.records import EVENTS, RANKING, RANKINGS, Event, Ranking, Shown, Use, is_of_shown

T = TypeVar("T")
Sent = Literal["chosen", "edited", "written"]

_ENDS = ("chosen", "edited", "written", "none_good")
_EVENTS_OF = "SELECT kind, id, at, reply, text FROM events WHERE ranking = ? ORDER BY at, rowid"


@dataclass(slots=True)
class LogTally:
    """What was left out of a log while its uses were read."""

    repeated: int = 0  # events that came again under the same `event_id`
    alone: int = 0  # events of rankings that the log does not hold any more
    unknown: int = 0  # events about replies that their rankings have not shown
    erased: int = 0  # lines that were erased, and are still in the files
    damaged: int = 0  # lines that cannot be read; a kill may have cut one short


def uses(root: Path, tally: LogTally | None = None, since: float = 0.0) -> Iterator[Use]:
    """Yield all rankings in the log of the store in this directory, each with its events in the order of their times.

    Rankings come file by file, as they were written. Events wait for them in a temporary file, so memory does not grow
    with the log. An event counts once, by its ranking and its `event_id`. What was erased or is damaged is left out,
    and events about what was not shown. Servers may go on writing. `tally` is counted up, and complete at the end.
    Files that were last written before `since`, in seconds since the epoch, are not read.

    Raises OSError where the log cannot be read at all, or the disk of temporary files is full.
    """
    folder, tally = folder_of(root), tally or LogTally()
    files, erased = names(folder, since), Erased(folder)
    with table_on_disk() as table:
        table.execute("PRAGMA journal_mode = OFF")
        columns = "ranking TEXT, id TEXT, at REAL, kind TEXT, reply TEXT, text TEXT, UNIQUE (ranking, id)"
        table.execute(f"CREATE TABLE events ({columns})")
        waiting = 0
        for line in _whole(folder, files, erased, tally):
            if line.get("kind") != RANKING and (event := _read(EVENTS, line, tally)) is not None:
                values = (event.ranking, event.id, event.at, event.kind, event.reply, event.text)
                is_new = table.execute("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?, ?)", values).rowcount
                waiting += is_new
                tally.repeated += not is_new
        for line in _whole(folder, files, erased, LogTally()):
            if line.get("kind") == RANKING and (ranking := _read(RANKINGS, line, tally)) is not None:
                events = [
                    Event(kind=kind, id=name, at=at, ranking=ranking.id, reply=reply, text=text)
                    for kind, name, at, reply, text in table.execute(_EVENTS_OF, (ranking.id,))
                ]
                waiting -= len(events)
                relevant = _of_shown(ranking, events)
                tally.unknown += len(events) - len(relevant)
                yield Use(ranking, relevant)
        tally.alone = waiting


def _of_shown(ranking: Ranking, events: list[Event]) -> tuple[Event, ...]:
    if not events:
        return ()
    ids = {each.id for each in ranking.shown if each.id is not None} | {*ranking.below}
    texts = {each.text for each in ranking.shown if each.id is None}
    if None in ranking.below:
        texts.add(None)
    return tuple(each for each in events if is_of_shown(each.kind, each.reply, each.text, ids, texts))


def _whole(folder: Path, files: list[str], erased: Erased, tally: LogTally) -> Iterator[Line]:
    for name in files:
        for line in lines(folder, name):
            if line is None:
                tally.damaged += 1
            elif erased.holds(line):
                tally.erased += 1
            else:
                yield line


def _read(records: TypeAdapter[T], line: Line, tally: LogTally) -> T | None:
    try:
        return records.validate_python(line)
    except ValueError:
        tally.damaged += 1
        return None


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
