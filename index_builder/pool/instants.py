"""When a date or a time of ISO 8601 is, so that filters compare instants, and which other texts are dates, too."""

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

_DAY = timedelta(days=1)
_MICROSECOND = timedelta(microseconds=1)
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = r"[Tt ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?"
_ISO = re.compile(rf"(\d{{4}}-\d\d-\d\d)(?:({_TIME})(?: ?([Zz]|UTC|[+-]\d\d(?::?\d\d)?))?)?")
_UTC = ("Z", "z", "UTC")
_LONGEST = 60
_NOW = re.compile(r"now(?:([+-])(\d{1,6})([smhdw]))?")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}  # seconds

_NUMBERS = r"(?:\d{1,2}([./-])\d{1,2}\1(?:\d{4}|\d\d)|\d{4}([./-])\d{1,2}\2\d{1,2}|\d{4}年\d{1,2}月\d{1,2}日)"
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?[AaPp]\.?[Mm]\.?)?(?: ?(?:[A-Z]{1,4}|[+-]\d\d:?\d\d))?"
_MONTH_IN_WORDS = r"(?:\d{1,2}\.? (?:de )?[^\W\d_]{3,10}\.?,? (?:de )?\d{4}|[^\W\d_]{3,10}\.? \d{1,2},? \d{4})"
_DATE = re.compile(rf"(?:[^\W\d_]{{2,10}}\.?, )?(?:{_NUMBERS}|{_MONTH_IN_WORDS})(?:,?[T ]{_CLOCK})?")


class Instant(NamedTuple):
    """From when to when a date or a time lasts: microseconds since 1970 in UTC, the last one not included.

    A time lasts a microsecond, a day without a time 24 hours.
    """

    begin: int
    end: int


def instant(text: str) -> Instant | None:
    """Return when a date or a time of ISO 8601 is; None: the text is none. Without a zone it is in UTC.

    >>> instant("1970-01-01T01:00:00.5+01:00"), instant("1970-01-02").begin, instant("1.2.1970")
    (Instant(begin=500000, end=500001), 86400000000, None)
    """
    if not 10 <= len(text) <= _LONGEST or text[4] != "-" or (match := _ISO.fullmatch(text)) is None:
        return None
    day, clock, zone = match.groups()
    try:
        time = datetime.fromisoformat(day + (clock or "") + ("+00" if zone in _UTC else zone or ""))
    except ValueError:
        return None
    lasts = _MICROSECOND if clock else _DAY
    begin = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _BEGINNING
    return Instant(begin // _MICROSECOND, (begin + lasts) // _MICROSECOND)


def bound(text: str, now: datetime) -> str:
    """Return the bound of a range: for `now`, `now-7d` or `now+90m` the time that it means, else the text as it is.

    Units are s, m, h, d and w. Raises ValueError where that is no year of four digits.
    """
    if (match := _NOW.fullmatch(text)) is None:
        return text
    sign, number, unit = match.groups()
    away = timedelta(seconds=int(number) * _UNITS[unit]) if number else timedelta()
    try:
        return (now - away if sign == "-" else now + away).astimezone(UTC).isoformat()
    except OverflowError:
        raise ValueError(f"{text} is before the year 1 or after 9999") from None


def seems_a_date(text: str) -> bool:
    """Whether a text is a date, in this form or another, so far as its letters tell.

    >>> [seems_a_date(each) for each in ("31.10.2026", "Oct 31, 2026 5:00 PM", "2026-10-31", "1.2.3", "v 10-31")]
    [True, True, True, False, False]
    """
    return len(text) <= _LONGEST and _DATE.fullmatch(text.strip()) is not None
