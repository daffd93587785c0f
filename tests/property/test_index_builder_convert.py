"""Conversations give the same examples in every format, and damage gives one message."""

import csv
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from foreign import (
    BULK,
    COLUMNS,
    CONVAI2,
    HELPDESK,
    OPENAI,
    PARLAI,
    SCROLL,
    SEARCH,
    SHAREGPT,
    converted,
    lines,
    saved,
    written,
)
from hypothesis import given
from hypothesis import strategies as st

from polyrank.index_builder.convert.maps import shipped
from polyrank.model.errors import RankingError
from polyrank.model.text.dialogues import read_dialogues

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=8).filter(str.strip)
CONVERSATIONS = st.lists(st.lists(st.tuples(st.booleans(), TEXTS), min_size=1, max_size=5), min_size=1, max_size=4)
SAMPLES = [
    json.dumps(SHAREGPT, indent=1),
    lines(OPENAI),
    CONVAI2,
    PARLAI,
    HELPDESK,
    json.dumps(SEARCH),
    BULK,
    json.dumps(SCROLL),
]


def in_formats(folder: Path, conversations: list[list[tuple[bool, str]]]) -> list[Path]:
    """The same conversations as ShareGPT's list, OpenAI's lines, a table, and a data set."""
    share, chat, table = [], [], []
    for number, turns in enumerate(conversations):
        name = f"c{number}"
        share.append({"id": name, "conversations": [{"from": "gpt" if a else "human", "value": t} for a, t in turns]})
        messages = [{"role": "assistant" if a else "user", "content": t} for a, t in turns]
        chat.append({"id": name, "messages": messages})
        table += [[name, "agent" if a else "customer", t] for a, t in turns]
    (folder / "share.json").write_text(json.dumps(share, ensure_ascii=False))
    (folder / "chat.jsonl").write_text(lines(chat))
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=";").writerows([["Ticket ID", "Sender Type", "Body"], *table])
    return [folder / "share.json", folder / "chat.jsonl", folder / "table.csv", saved(folder / "saved", chat)]


@given(CONVERSATIONS)
def test_conversations_mean_the_same_in_every_format(conversations: list[list[tuple[bool, str]]]) -> None:
    expected = [
        ([t.strip() for _, t in turns[:at]], text.strip(), f"c{number}")
        for number, turns in enumerate(conversations)
        for at, (answers, text) in enumerate(turns)
        if answers and not all(before for before, _ in turns[:at])
    ]
    with TemporaryDirectory() as directory:
        folder = Path(directory)
        for file in in_formats(folder, conversations):
            columns = {key: COLUMNS[key] for key in ("conversation", "who", "text")} if file.suffix == ".csv" else None
            answering = ("agent",) if columns else ()
            if not expected:
                with pytest.raises(RankingError, match=r"nothing was kept|nobody called (agent|assistant|gpt, )"):
                    converted(folder, file, columns=columns, answering=answering)
                continue
            converted(folder, file, columns=columns, answering=answering)
            found = list(read_dialogues(folder / "out" / "dialogues.jsonl"))
            assert [([t.text for t in d.conversation.turns], d.response, d.dialogue) for d in found] == expected, file
            replies = {" ".join(response.split()) for _, response, _ in expected}
            assert {" ".join(row["text"].split()) for row in written(folder, "pool")} <= replies
            shutil.rmtree(folder / "out")


def damaged(content: bytes, cuts: list[tuple[int, int, bytes]]) -> bytes:
    for at, length, put in cuts:
        place = at % (len(content) + 1)
        content = content[:place] + put + content[place + length :]
    return content


ANY_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["messages", "conversations", "role", "content", "from", "value", "id", "_source", "payload", "text"]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def settle(content: bytes, form: str | None) -> None:
    """Convert a file, or be refused with one line; nothing is left of what was refused."""
    with TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "file").write_bytes(content)
        try:
            converted(folder, folder / "file", form=form)
        except RankingError:
            assert not (folder / "out").exists()
        else:
            rows = [*written(folder, "pool")] if (folder / "out" / "pool.jsonl").exists() else []
            assert all(row["text"].strip() for row in rows)
            if (folder / "out" / "dialogues.jsonl").exists():
                assert list(read_dialogues(folder / "out" / "dialogues.jsonl"))


@given(
    st.sampled_from(SAMPLES),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 40), st.binary(max_size=4)), max_size=4),
    st.sampled_from([None, *shipped()]),
)
def test_a_damaged_file_is_converted_or_refused(
    sample: str, cuts: list[tuple[int, int, bytes]], form: str | None
) -> None:
    settle(damaged(sample.encode(), cuts), form)


@given(st.lists(ANY_JSON, max_size=4), st.booleans(), st.sampled_from([None, *shipped()]))
def test_any_json_is_converted_or_refused(rows: list[Any], as_lines: bool, form: str | None) -> None:
    settle((lines(rows) if as_lines else json.dumps(rows)).encode(), form)
