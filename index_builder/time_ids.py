"""Ids that sort by time, of generations and of jobs: <UTC, to the microsecond>-<8 hexadecimal digits>."""

import re
from collections.abc import Sequence
from datetime import MAXYEAR, UTC, datetime, timedelta

from polyrank.index_builder.errors import BuildError

_FORM = re.compile(r"\d{8}T\d{12}-[0-9a-f]{8}", re.ASCII)
_STAMP = "%Y%m%dT%H%M%S%f"


def is_time_id(text: str) -> bool:
    """Whether the text has the form of such an id; nothing else may become part of a path."""
    return _FORM.fullmatch(text) is not None and _is_date(text)


def new_time_id(taken: Sequence[str], digits: str) -> str:
    """Make an id that sorts after every one that is taken, even if the clock was set back.

    Raises BuildError if one is taken that none can follow: the last ones of the year 9998.
    """
    now = datetime.now(UTC)
    if taken:
        now = max(now, _time_of(max(taken)) + timedelta(microseconds=1))
    made = f"{stamp(now)}-{digits}"
    if not is_time_id(made):
        raise BuildError(f"no id can follow {max(taken)}; remove what has this name, a clock was wrong")
    return made


def stamp(time: datetime) -> str:
    """The beginning of an id of that time."""
    return time.strftime(_STAMP)


def _time_of(time_id: str) -> datetime:
    return datetime.strptime(time_id.split("-")[0], _STAMP).replace(tzinfo=UTC)


def _is_date(text: str) -> bool:
    try:
        return _time_of(text).year < MAXYEAR  # a microsecond after the last one there is still a date
    except ValueError:
        return False
