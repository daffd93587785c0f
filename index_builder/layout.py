"""Whether a directory is a store, and what lies in STORE/generations, sorted by kind.

    <id>/             a published generation
    .tmp-<id>/        one that is being built, or being removed
    .journal-<id>     the finished chunks of a build

An id sorts by time, as those of jobs: <UTC, to the microsecond>-<8 hexadecimal digits>.

Everything else is a stray: a symbolic link, or a name or a kind of file that no store makes. Strays are named and left
alone: they are neither followed nor removed.
"""

import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import MAXYEAR, UTC, datetime, timedelta
from pathlib import Path

from polyrank.index_builder.errors import BuildError

TEMPORARY_PREFIX = ".tmp-"
JOURNAL_PREFIX = ".journal-"

GENERATIONS, FEEDBACK = "generations", "feedback"
_OWN = (GENERATIONS, "jobs", FEEDBACK)  # a store has one of these as soon as anything was done with it

_FORM = re.compile(r"\d{8}T\d{12}-[0-9a-f]{8}", re.ASCII)
_STAMP = "%Y%m%dT%H%M%S%f"


@dataclass(frozen=True, slots=True)
class Stray:
    """Something that is not of the store, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of STORE/generations, each list in the order of the names."""

    published: list[str] = field(default_factory=list)
    temporary: list[Path] = field(default_factory=list)
    journals: list[Path] = field(default_factory=list)
    strays: list[Stray] = field(default_factory=list)


def why_no_store(root: Path) -> str | None:
    """Return why a path is no store and no empty directory, which may become one; None if it is."""
    if not root.is_dir():
        return f"{root} is no directory"
    if any((root / name).is_dir() for name in _OWN) or not any(root.iterdir()):
        return None
    return f"{root} is no store: it holds other things, and no {GENERATIONS}/"


def entries(generations: Path) -> Entries:
    """Sort the entries of the directory, which may be missing."""
    contents = Entries()
    for path in sorted(generations.iterdir()) if generations.is_dir() else []:
        if (reason := _why_stray(path)) is not None:
            contents.strays.append(Stray(path, reason))
        elif path.name.startswith(TEMPORARY_PREFIX):
            contents.temporary.append(path)
        elif path.name.startswith(JOURNAL_PREFIX):
            contents.journals.append(path)
        else:
            contents.published.append(path.name)
    return contents


def why_not_plain(path: Path, *, is_directory: bool) -> str | None:
    """Return why a path is no plain directory or no plain file; None if it is one, or if nothing is there."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(mode):
        return "is a symbolic link; put in its place what it leads to"
    if is_directory:
        return None if stat.S_ISDIR(mode) else "is no directory"
    return None if stat.S_ISREG(mode) else "is no plain file"


def _why_stray(path: Path) -> str | None:
    is_journal = path.name.startswith(JOURNAL_PREFIX)
    if not is_time_id(path.name.removeprefix(JOURNAL_PREFIX if is_journal else TEMPORARY_PREFIX)):
        return "has a name that no store gives"
    return why_not_plain(path, is_directory=not is_journal)


def is_time_id(text: str) -> bool:
    """Whether the text has the form of such an id; nothing else may become part of a path."""
    try:  # a microsecond after the last one there is still a date
        return _FORM.fullmatch(text) is not None and _time_of(text).year < MAXYEAR
    except ValueError:
        return False


def new_time_id(ids: Sequence[str], digits: str) -> str:
    """Make an id that sorts after every one that is taken, even if the clock was set back.

    Raises BuildError if one is taken that none can follow: the last ones of the year 9998.
    """
    now = datetime.now(UTC)
    if ids:
        now = max(now, _time_of(max(ids)) + timedelta(microseconds=1))
    new_id = f"{stamp(now)}-{digits}"
    if not is_time_id(new_id):
        raise BuildError(f"no id can follow {max(ids)}; the clock was wrong when it was made: remove it")
    return new_id


def stamp(time: datetime) -> str:
    """The beginning of an id of that time."""
    return time.strftime(_STAMP)


def _time_of(time_id: str) -> datetime:
    return datetime.strptime(time_id.split("-")[0], _STAMP).replace(tzinfo=UTC)
