"""Read a column of times: all of them in one form, or none."""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from math import isfinite
from typing import Literal
from unicodedata import decimal

Order = Literal["day-first", "month-first"]
_NUMBERS = re.compile(r"(?<!\d)(\d{1,2})([./-]) ?(\d{1,2})\2 ?(?:\d{4}|\d\d)(?!\d)")
_YEAR_FIRST = re.compile(r"(?<!\d)\d{4}[./-] ?\d{1,2}[./-]")
_HALF_BEFORE = re.compile(r"(?:(上午|午前|오전)|下午|午後|오후)\s?(\d{1,2}:\d\d(?::\d\d)?)")
_HALF_AFTER = re.compile(r"(?<=\d)\s?(?:([aAص])|[pPم])(?:\.?\s?[mM]\.?|(?<=[صم]))(?!\w)")
_DEFAULTS = datetime(2000, 1, 1), datetime(2001, 2, 2)  # what is missing in a date differs between them
_ZONES = (None, "UTC", "GMT", "Z")


def _number(text: str) -> float:
    if not isfinite(number := float(text)):  # "nan", as pandas writes what is missing
        raise ValueError(text)
    while abs(number) >= 1e11:  # milliseconds, microseconds or nanoseconds: no message is of the year 5138
        number /= 1000
    return number


def _iso(text: str) -> float:
    return _in_utc(datetime.fromisoformat(text.removesuffix(" UTC")))


def _mail(text: str) -> float:
    if _HALF_AFTER.search(text):  # the library would pass over it
        raise ValueError(text)
    return _in_utc(parsedate_to_datetime(text))


def _plain(text: str) -> str:
    """Return a written time with ASCII digits, and with AM or PM behind the clock."""
    if text.isascii() and not text.rstrip(".").lower().endswith("m"):
        return text
    text = "".join(str(decimal(letter, letter)) for letter in text).replace("،", ",")
    text = _HALF_BEFORE.sub(lambda half: f"{half[2]} {'AM' if half[1] else 'PM'}", text)
    return _HALF_AFTER.sub(lambda half: " AM" if half[1] else " PM", text)


@lru_cache(maxsize=1 << 16)
def _written(text: str, order: Order) -> float:
    from dateutil.parser import parse

    if not any(map(str.isdigit, text)) or len(text) > 100:
        raise ValueError(text)
    text = _plain(text)
    # Nobody writes months first between dots, or days after years.
    begins_with_year = _YEAR_FIRST.search(text) is not None
    numbers = None if begins_with_year else _NUMBERS.search(text)
    is_day_first = (order == "day-first" and not begins_with_year) or bool(numbers and numbers[2] == ".")
    if numbers and int(numbers[3 if is_day_first else 1]) > 12:  # the library would take it for the day
        raise ValueError(text)
    first, second = (parse(text, dayfirst=is_day_first, default=each, tzinfos=_zone) for each in _DEFAULTS)
    if first != second:
        raise ValueError(text)
    return _in_utc(first)


def _zone(name: str | None, offset: int | None) -> int | None:
    if offset is None and name not in _ZONES:
        raise ValueError(name)  # CST is America's or China's
    return offset if name is None else offset or 0


def _in_utc(time: datetime) -> float:
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _is_month_first(text: str) -> bool | None:
    """Whether the month stands first; None: it does not tell, as 1/2/2026."""
    text = _plain(text)
    numbers = None if _YEAR_FIRST.search(text) else _NUMBERS.search(text)
    if numbers is None or numbers[2] == "." or (int(numbers[1]) > 12) == (int(numbers[3]) > 12):
        return None
    return int(numbers[3]) > 12


Reading = Callable[[str], float]


def readings(times: Callable[[], Iterable[str]], order: Order | None) -> tuple[list[Reading], str | None]:
    """Return how all times of a column can be read, and None; or no way, and the first time that cannot.

    There are two ways where nothing tells whether the day or the month stands first, and `order` does not say it.
    """
    furthest, why = -1, ""
    for form in (_number, _iso, _mail):
        place, bad = _first_bad(form, times())
        if bad is None:
            return [form], None
        if place > furthest:
            furthest, why = place, bad
    month_first = {is_first for text in times() if (is_first := _is_month_first(text)) is not None}
    column_orders: list[Order] = ["month-first" if is_first else "day-first" for is_first in sorted(month_first)]
    orders = [order] if order else column_orders
    if len(orders) > 1:
        return [], next(text for text in times() if _is_month_first(text))
    written = [partial(_written, order=each) for each in orders or ("day-first", "month-first")]
    place, bad = _first_bad(written[0], times())
    if bad is not None:
        return [], bad if place > furthest else why
    return ([*written] if any(written[0](text) != written[-1](text) for text in times()) else [written[0]]), None


def _first_bad(form: Reading, times: Iterable[str]) -> tuple[int, str | None]:
    for place, text in enumerate(times):
        try:
            form(text)
        except (ValueError, OverflowError, TypeError, IndexError):
            return place, text
    return 0, None
