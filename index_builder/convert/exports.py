"""A helpdesk's export: one message a row, in any order. SQLite sorts the rows by conversation, in a file
without a name.

Columns are found by their common names. The messages of a conversation are in the order of their times, where each has
one that can be read, else in that of the file. Whether the month stands before the day is told by any time of the file.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from math import isfinite
from operator import itemgetter
from typing import Any

from polyrank.index_builder.convert.messages import IDS, ROLES, TEXTS, Object, field_of, is_internal, side
from polyrank.index_builder.convert.rows import Rows, table_on_disk
from polyrank.index_builder.convert.turns import examples_of, with_sides, words
from polyrank.index_builder.pool.documents import RowError
from polyrank.model.text.assembly import Turn
from polyrank.model.text.dialogues import Dialogue

_TIMES = words("""time timestamp created_at date sent_at datetime date_time created sent message_time sent_time
    created_time posted_at utterance_idx message_index turn_id turn""")
COLUMNS = {"conversation": IDS, "role": ROLES, "text": (*TEXTS, "description"), "time": _TIMES}
_TIME = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4}),?[ T](\d{1,2}):(\d\d)(?::(\d\d))?(?: ?([AP])M)?", re.IGNORECASE)
_MOST_CHARACTERS = 1 << 20  # of one message


def columns_of(row: Object, given: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each part of a message that a row has: as it is given, else the one of a common name."""
    found = {part: given.get(part) or field_of(row, names) for part, names in COLUMNS.items()}
    return {part: column for part, column in found.items() if column}


def is_export(columns: Collection[str]) -> bool:
    """Whether these parts make a message of a conversation."""
    return {"conversation", "text"} <= set(columns)


def examples(
    rows: Rows, given: Mapping[str, str], answering: Collection[str]
) -> Iterator[tuple[int, Dialogue | RowError]]:
    """Yield the examples of all rows, with the numbers of their conversations' first rows, and the rows left out.

    `given`: columns by part of a message, as `--columns` has them.
    """
    told = set()
    with table_on_disk() as table:
        table.execute("CREATE TABLE rows (number INTEGER, conversation TEXT, role TEXT, text TEXT, time TEXT)")
        for number, row in rows:
            try:
                message = _message(row, given)
                told.add(_is_month_first(message[-1]))
                table.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", (number, *message))
            except RowError as error:
                yield number, error
            except UnicodeEncodeError:
                yield number, RowError("half a surrogate pair")
        table.execute("CREATE INDEX by_conversation ON rows (conversation, number)")
        found = table.execute(
            "SELECT rows.*, (SELECT MIN(number) FROM rows AS own WHERE own.conversation = rows.conversation) AS first"
            " FROM rows ORDER BY first, number"
        )
        told.discard(None)
        month_first = told if len(told) == 1 else (True, False)
        for first, messages in groupby(found, itemgetter(-1)):
            said = _in_order(list(messages), month_first)
            turns = with_sides([Turn(text, role) for _, _, role, text, *_ in said], answering)
            yield from ((first, example) for example in examples_of(turns, said[0][1]))


def _message(row: Object | RowError, given: Mapping[str, str]) -> tuple[str, str | None, str, str]:
    """Return conversation, role, text and time of a row. Raises RowError where it is no message."""
    if isinstance(row, RowError):
        raise row
    columns = columns_of(row, given)
    conversation, text = (row.get(columns.get(part, ""), "") for part in ("conversation", "text"))
    if not str(conversation).strip():
        raise RowError("the row names no conversation")
    if is_internal(row):
        raise RowError("an internal note")
    if not str(text).strip():
        raise RowError("the row has no text")
    if len(str(text)) > _MOST_CHARACTERS:
        raise RowError(f"the text has more than {_MOST_CHARACTERS} characters")
    role, time = columns.get("role"), row.get(columns.get("time", ""))
    who = side(role, row.get(role)) if role else None
    return str(conversation).strip(), who, str(text).strip(), "" if time is None else str(time).strip()


def _in_order(messages: list[Any], month_first: Collection[bool | None]) -> list[Any]:
    """Put the messages of a conversation into the order of their times, if all can be read.

    Equal times stay as they are in the file, which is turned round first if it begins with the newest. `month_first`:
    how a day and a month between slashes may be read. Of two readings the one counts that leaves the messages as they
    are, else the first.
    """
    orders = []
    for is_first in month_first:
        with suppress(ValueError, OverflowError):
            orders.append([_seconds(time, bool(is_first)) for *_, time, _ in messages])
    if not orders:
        return messages
    times = next((each for each in orders if each == sorted(each)), orders[0])
    if times[0] > times[-1]:
        messages, times = messages[::-1], times[::-1]
    return [message for _, message in sorted(zip(times, messages, strict=True), key=itemgetter(0))]


def _is_month_first(text: str) -> bool | None:
    """Whether the month stands before the day in a time; None: it does not tell, as 1/2/2026 10:00."""
    found = _TIME.fullmatch(text)
    if found is None or found[2] == "." or (int(found[1]) > 12) == (int(found[3]) > 12):
        return None
    return int(found[3]) > 12


def _seconds(text: str, month_first: bool) -> float:
    """Read a number, a time of ISO 8601, or one such as 12/31/2024 5:00 PM; raises ValueError for anything else.

    Nobody writes the month first between dots.
    """
    with suppress(ValueError):
        if isfinite(number := float(text)):  # "nan", as pandas writes what is missing, is no time
            return number
    if (found := _TIME.fullmatch(text)) is None:
        return _in_utc(datetime.fromisoformat(text.removesuffix(" UTC")))
    first, mark, second, year, hour, minute, seconds, half = found.groups()
    month, day = (first, second) if month_first and mark != "." else (second, first)
    hours = int(hour) if half is None else int(hour) % 12 + 12 * (half in "pP")
    return _in_utc(datetime(int(year), int(month), int(day), hours, int(minute), int(seconds or 0)))


def _in_utc(time: datetime) -> float:
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
