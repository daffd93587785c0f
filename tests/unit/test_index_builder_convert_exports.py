"""A helpdesk's messages, one a row: found, grouped, put in order."""

from itertools import permutations
from typing import Any

import pytest

from polyrank.index_builder.convert.exports import columns_of, examples
from polyrank.index_builder.pool.documents import RowError
from polyrank.model.text.dialogues import Dialogue


def read(rows: list[dict[str, Any]], answering: tuple[str, ...] = (), **columns: str) -> list[Dialogue]:
    found = [each for _, each in examples(enumerate(rows, 2), columns, answering)]
    return [each for each in found if isinstance(each, Dialogue)]


def said(times: list[str], order: list[int] | None = None) -> list[str]:
    """The texts of a conversation with a message at each time, in the order that was found; the last one answers."""
    rows = [{"id": str(n), "ticket": "t", "time": time, "text": f"m{n}"} for n, time in enumerate(times)]
    rows = [rows[n] | {"role": "agent" if n == len(rows) - 1 else "customer"} for n in order or range(len(rows))]
    [found] = read(rows)
    return [turn.text for turn in found.conversation.turns] + [found.response]


@pytest.mark.parametrize(
    "header",
    [
        ["Ticket ID", "Created At", "Sender Type", "Body"],
        ["conversationId", "timestamp", "author", "message"],
        ["case_number", "date", "direction", "text"],
        ["conv_id", "utterance_idx", "speaker_idx", "utterance"],
    ],
)
def test_columns_of_common_names(header: list[str]) -> None:
    found = columns_of(dict.fromkeys(header, "x"), {})
    assert [found[part] for part in ("conversation", "time", "role", "text")] == header


def test_columns_that_are_named() -> None:
    rows = [{"Vorgang": "1", "Wer": who, "Was": who, "text": "x"} for who in ("Kunde", "Shop")]
    [found] = read(rows, ("shop",), conversation="Vorgang", role="Wer", text="Was")
    assert (found.response, found.dialogue) == ("Shop", "1")


def test_conversations_that_are_mixed_come_in_the_order_of_their_first_rows() -> None:
    rows = [
        {"ticket": name, "role": role, "text": f"{name} {role}"}
        for role in ("user", "agent")
        for name in ("b", "a", "c")
    ]
    assert [each.dialogue for each in read(rows)] == ["b", "a", "c"]


@pytest.mark.parametrize(
    "times",
    [
        ["2026-01-02 09:05", "2026-01-02 10:00", "2026-02-01 08:00"],
        ["2026-01-02T09:05:00Z", "2026-01-02T11:00:00+01:00", "2026-01-02T10:30:00Z"],
        ["2026-01-02 09:05:00 UTC", "2026-01-02 10:05:00 UTC", "2026-03-29 02:30:00 UTC"],
        ["9", "10", "11"],
        ["1700000000", "1700000001.5", "1700000002"],
        ["01/31/2026 11:59 AM", "01/31/2026 12:01 PM", "02/01/2026 12:01 AM"],
        ["31/01/2026 09:00", "31/01/2026 10:00:30", "01/02/2026 08:00"],
        ["31.01.2026 09:00", "01.02.2026 08:00", "02.02.2026 07:00"],
    ],
    ids=lambda times: times[-1],
)
def test_times_put_messages_in_order(times: list[str]) -> None:
    for order in permutations(range(3)):
        assert said(times, list(order)) == ["m0", "m1", "m2"]


def test_day_and_month_are_read_as_the_file_is_ordered() -> None:
    assert said(["10/01/2026 09:00", "09/02/2026 09:00"]) == ["m0", "m1"], "the 10th of January, the 9th of February"
    assert said(["01/10/2026 09:00", "02/09/2026 09:00"]) == ["m0", "m1"]


@pytest.mark.parametrize(("other", "newest"), [("25/01/2026 10:00", 0), ("01/25/2026 10:00", 1)])
def test_day_and_month_are_read_as_another_conversation_tells(other: str, newest: int) -> None:
    """The newest stands first: read as April and May, the messages of January and February seem to be in order."""
    times = ["04/02/2026 09:00", "05/01/2026 09:00"]
    rows = [{"ticket": "1", "role": "customer", "time": time, "text": f"m{n}"} for n, time in enumerate(times)]
    rows[newest]["role"] = "agent"
    [found] = read([*rows, {"ticket": "2", "role": "agent", "time": other, "text": "x"}])
    assert found.response == f"m{newest}"


def test_equal_times_stay_in_order_also_where_the_newest_is_first() -> None:
    assert said(["5", "5", "6"]) == ["m0", "m1", "m2"]
    assert said(["5", "5", "6"], [2, 1, 0]) == ["m0", "m1", "m2"]


@pytest.mark.parametrize("bad", ["", "yesterday", "nan", "1e999999x", "99/99/2026 10:00"])
def test_a_time_that_cannot_be_read_leaves_the_order_of_the_file(bad: str) -> None:
    assert said(["3", bad, "1"]) == ["m0", "m1", "m2"]


def test_who_is_inbound_asks() -> None:
    for name, values in (("inbound", ("True", "False")), ("is_agent", ("0", "1")), ("is_agent", ("0.0", "1.0"))):
        rows = [{"ticket": "1", name: value, "text": value} for value in values]
        assert [each.response for each in read(rows)] == [values[1]]


@pytest.mark.parametrize(
    ("column", "internal", "public"),
    [
        ("public", "false", "true"),
        ("isPublic", False, True),
        ("Private", "TRUE", "no"),
        ("internal", 1, None),
        ("private", "1.0", "0.0"),
        ("part_type", "Note", "comment"),
        ("part_type", "note_and_reopen", "assignment"),
    ],
)
def test_internal_notes_are_no_replies(column: str, internal: object, public: object) -> None:
    said = [("customer", "hi", public), ("agent", "beware of him", internal), ("agent", "hello", public)]
    rows = [{"ticket": "1", "role": role, "text": text, column: mark} for role, text, mark in said]
    [note, example] = [each for _, each in examples(enumerate(rows, 2), {}, ())]
    assert isinstance(example, Dialogue)
    assert str(note) == "an internal note"
    assert ([turn.text for turn in example.conversation.turns], example.response) == (["hi"], "hello")


def test_rows_that_are_no_messages_are_told() -> None:
    rows: list[dict[str, Any] | RowError] = [
        {"ticket": "1", "text": "a"},
        {"text": "a"},
        {"ticket": "1", "text": " "},
        RowError("bad"),
        {"ticket": "1", "text": "x" * (1 << 20 | 1)},
        {"ticket": "1", "text": "\ud800"},
    ]
    found = [(number, str(each)) for number, each in examples(enumerate(rows, 2), {}, ())]
    assert found == [
        (3, "the row names no conversation"),
        (4, "the row has no text"),
        (5, "bad"),
        (6, "the text has more than 1048576 characters"),
        (7, "half a surrogate pair"),
        (2, "no reply: nobody of the side that answers speaks"),
    ]
