"""The files of a log of feedback, in STORE/feedback/.

    key                  makes and checks names: identity.py
    <time id>.jsonl      being written by one process, which holds a lock on it
    <time id>.jsonl.zst  closed
    erased               what was erased from the log; what is left of it in files does not count any more
    lock                 held while closed files are written anew or removed

A line is a record (records.py).
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import orjson

from polyrank.index_builder.layout import is_time_id
from polyrank.model.inputs import Compression, open_unfolded
from polyrank.model.text.jsonlines import written_lines
from polyrank.service.feedback.records import RANKING

OPEN, CLOSED = ".jsonl", ".jsonl.zst"
_KINDS: Final[tuple[tuple[str, Compression | None], ...]] = ((CLOSED, "zstd"), (OPEN, None))

Line = dict[str, Any]


def names(folder: Path) -> list[str]:
    """Return the time ids of all files of a log, oldest first; none where there is no log."""
    found = {path.name.split(".")[0] for path in folder.glob(f"*{OPEN}*") if path.name.endswith((OPEN, CLOSED))}
    return sorted(filter(is_time_id, found))


def lines(folder: Path, name: str) -> Iterator[Line | None]:
    """Yield the lines of one file; None for a damaged one, and where the rest of the file cannot be read.

    A file that is closed or removed meanwhile is no error.
    """
    with ExitStack() as stack:
        # A closed file appears before the open one goes; so one of the two is there at the second try.
        for ending, compression in 2 * _KINDS:
            try:
                stream = stack.enter_context(open_unfolded(folder / f"{name}{ending}", compression))
                break
            except FileNotFoundError:
                continue
        else:
            return
        try:
            for _, line in written_lines(stream):
                yield _parsed(line)
        except OSError:
            yield None


def _parsed(line: bytes) -> Line | None:
    try:
        found = orjson.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


class Erased:
    """What was erased: digests of conversations with the times of that, and ids of rankings.

    A conversation may go on after that, so what is newer counts.
    """

    FILE = "erased"

    def __init__(self, folder: Path) -> None:
        """Read it; what is damaged in it is left out. Raises OSError where it cannot be read."""
        self.times: dict[str, float] = {}
        try:
            content = (folder / self.FILE).read_text("ascii", "replace")
        except FileNotFoundError:
            return
        for line in content.splitlines():
            at, _, name = line.partition(" ")
            if at.replace(".", "", 1).isdecimal() and name:
                self.times[name] = float(at)

    def __bool__(self) -> bool:
        return bool(self.times)

    def holds(self, line: Line) -> bool:
        """Whether a line was erased."""
        if line.get("kind") != RANKING:
            return line.get("ranking") in self.times
        return line.get("id") in self.times or line["at"] <= self.times.get(line.get("conversation", ""), -1.0)
