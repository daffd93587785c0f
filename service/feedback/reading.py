"""What a log of feedback says: each ranking with what became of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from polyrank.service.feedback.files import Erased, Line, lines, names
from polyrank.service.feedback.identity import folder_of
from polyrank.service.feedback.records import EVENTS, RANKING, RANKINGS, Event, Use

T = TypeVar("T")


@dataclass(slots=True)
class LogTally:
    """What was left out of a log while its uses were read.

    Attributes:
        repeated: events that came again under the same `event_id`.
        alone: events of rankings that the log does not hold any more.
        erased: lines that were erased, and are still in the files.
        damaged: lines that cannot be read; a kill may have cut one short.
    """

    repeated: int = 0
    alone: int = 0
    erased: int = 0
    damaged: int = 0


def uses(root: Path, tally: LogTally | None = None, since: float = 0.0) -> Iterator[Use]:
    """Yield all rankings in the log of the store in this directory, each with its events in the order of their times.

    Rankings come file by file, as they were written; with them stream the files, while events are held in memory. An
    event counts once, by its ranking and its `event_id`. What was erased or is damaged is left out. Servers may go on
    writing. `tally` is counted up, and complete at the end. Files that were last written before `since`, in seconds
    since the epoch, are not read.

    Raises OSError where the log cannot be read at all.
    """
    folder, tally = folder_of(root), tally or LogTally()
    files, erased = names(folder, since), Erased(folder)
    events: dict[str, dict[str, Event]] = {}
    for line in _whole(folder, files, erased, tally):
        if line.get("kind") != RANKING and (event := _read(EVENTS, line, tally)) is not None:
            known = events.setdefault(event.ranking, {})
            tally.repeated += event.id in known
            known.setdefault(event.id, event)
    for line in _whole(folder, files, erased, LogTally()):
        if line.get("kind") == RANKING and (ranking := _read(RANKINGS, line, tally)) is not None:
            told = events.pop(ranking.id, {}).values()
            yield Use(ranking, tuple(sorted(told, key=lambda event: event.at)))
    tally.alone = sum(map(len, events.values()))


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
