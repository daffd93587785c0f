"""A helpdesk's export: one message a row, in any order. SQLite sorts the rows by conversation, in a file
without a name.

Columns are found by their common names. The messages of a conversation are in the order of their times, where each has
one that can be read, else in that of the file.
"""

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

from polyrank.index_builder.convert.messages import IDS, ROLES, TEXTS, Object, field_of, side
from polyrank.index_builder.convert.turns import examples_of, with_sides, words
from polyrank.index_builder.pool.documents import RowError
from polyrank.model.text.assembly import Turn
from polyrank.model.text.dialogues import Dialogue

_TIMES = words("""time timestamp created_at date sent_at datetime date_time created sent message_time sent_time
    created_time posted_at utterance_idx message_index turn_id turn""")
COLUMNS = {"conversation": IDS, "role": ROLES, "text": (*TEXTS, "description"), "time": _TIMES}
# After ISO 8601 and numbers. Of those that read all times of a conversation, one that leaves its rows as they are.
_DAYS, _CLOCKS = words("%m/%d/%Y %d/%m/%Y %d.%m.%Y %Y/%m/%d"), ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p")
_FORMS = [f"{day} {clock}" for day in _DAYS for clock in _CLOCKS]
_MOST_CHARACTERS = 1 << 20  # of one message


def columns_of(row: Object, given: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each part of a message that a row has: as it is given, else the one of a common name."""
    found = {part: given.get(part) or field_of(row, names) for part, names in COLUMNS.items()}
    return {part: column for part, column in found.items() if column}


def is_export(columns: Collection[str]) -> bool:
    """Whether these parts make a message of a conversation."""
    return {"conversation", "text"} <= set(columns)


def examples(
    rows: Iterable[tuple[int, object]], given: Mapping[str, str], answering: Collection[str]
) -> Iterator[tuple[int, Dialogue | RowError]]:
    """Yield the examples of all rows, with the numbers of their conversations' first rows, and the rows left out.

    `given`: columns by part of a message, as `--columns` has them.
    """
    with closing(sqlite3.connect("")) as table:
        table.execute("CREATE TABLE rows (number INTEGER, conversation TEXT, role TEXT, text TEXT, time TEXT)")
        for number, row in rows:
            try:
                table.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", (number, *_message(row, given)))
            except RowError as error:
                yield number, error
        table.execute("CREATE INDEX by_conversation ON rows (conversation, number)")
        found = table.execute(
            "SELECT rows.*, (SELECT MIN(number) FROM rows AS own WHERE own.conversation = rows.conversation) AS first"
            " FROM rows ORDER BY first, number"
        )
        for first, messages in groupby(found, itemgetter(-1)):
            said = _in_order(list(messages))
            turns = with_sides([Turn(text, role) for _, _, role, text, *_ in said], answering)
            yield from ((first, example) for example in examples_of(turns, said[0][1]))


def _message(row: object, given: Mapping[str, str]) -> tuple[str, str | None, str, str]:
    """Return conversation, role, text and time of a row. Raises RowError where it is no message."""
    if isinstance(row, RowError):
        raise row
    if not isinstance(row, dict):
        raise RowError("the row must be an object")
    columns = columns_of(row, given)
    conversation, text = (row.get(columns.get(part, ""), "") for part in ("conversation", "text"))
    if not str(conversation).strip():
        raise RowError("the row names no conversation")
    if not str(text).strip():
        raise RowError("the row has no text")
    if len(str(text)) > _MOST_CHARACTERS:
        raise RowError(f"the text has more than {_MOST_CHARACTERS} characters")
    role, time = columns.get("role"), row.get(columns.get("time", ""))
    who = side(role, row.get(role)) if role else None
    return str(conversation).strip(), who, str(text).strip(), "" if time is None else str(time).strip()


def _in_order(messages: list[Any]) -> list[Any]:
    """Put the messages of a conversation into the order of their times; equal times stay as they are in the file.

    A file that begins with the newest message is turned round first.
    """
    texts = [time for *_, time, _ in messages]
    orders = [times for form in (None, *_FORMS) if (times := _times(texts, form))]
    if not orders:
        return messages
    times = next((each for each in orders if each == sorted(each)), orders[0])
    if times[0] > times[-1]:
        messages, times = messages[::-1], times[::-1]
    return [message for _, message in sorted(zip(times, messages, strict=True), key=itemgetter(0))]


def _times(texts: list[str], form: str | None) -> list[float]:
    """Return the times in seconds; none where one of them is not of the form; None: ISO 8601, or a number."""
    try:
        return [_seconds(text) if form is None else datetime.strptime(text, form).timestamp() for text in texts]
    except (ValueError, OverflowError):
        return []


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text).timestamp()
