"""What a conversion writes, counts and leaves out; that it writes all or nothing."""

import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from foreign import COLUMNS, CONVAI2, HELPDESK, OPENAI, SHAREGPT, beir, converted, lines, saved, written

from polyrank.index_builder.convert import conversion as module
from polyrank.index_builder.pool.documents import RowError
from polyrank.index_builder.pool.rows import Candidate, read_pool
from polyrank.model.text.assembly import Turn
from polyrank.model.text.dialogues import read_dialogues


def file(tmp_path: Path, content: str | bytes, name: str = "in.json") -> Path:
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return tmp_path / name


def pool(tmp_path: Path) -> list[Candidate]:
    rows = list(read_pool([tmp_path / "out" / "pool.jsonl"]))
    assert all(isinstance(row, Candidate) for row in rows)
    return rows


def said(*texts: str) -> dict[str, Any]:
    return {"messages": [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]}


def test_a_helpdesks_export_from_end_to_end(tmp_path: Path) -> None:
    table = file(tmp_path, HELPDESK.encode("windows-1252"), "tickets.csv")
    done = converted(tmp_path, table, columns=COLUMNS, answering=("agent",))
    asked = Turn("Wo bleibt mein Päckchen?\nSeit Tagen!", "user")
    found = [
        (each.conversation.turns, each.response, each.dialogue)
        for each in read_dialogues(tmp_path / "out/dialogues.jsonl")
    ]
    assert found == [((asked,), "Moment.", "1"), ((asked, Turn("Moment.", "assistant")), "Unterwegs.", "1")]
    assert [each.text for each in pool(tmp_path)] == ["Moment.", "Unterwegs."]
    assert (done.map.called, done.examples, done.candidates) == ("columns", {"dialogues.jsonl": 2}, 2)
    assert dict(done.left_out) == {"the row names no conversation": 1, "a reply without text": 1}
    assert written(tmp_path, "rejected")[0] == {
        "file": str(tmp_path / "tickets.csv"), "line": 7, "reason": "the row names no conversation",
    }  # fmt: skip


def test_the_pool_has_each_reply_once_under_an_id_that_does_not_depend_on_the_rest(tmp_path: Path) -> None:
    texts = ["Yes, please", "yes,  PLEASE", "no"]
    rows = [said("q", text) for text in texts]
    converted(tmp_path, file(tmp_path, lines(rows), "a.jsonl"))
    first = {each.id: each.text for each in pool(tmp_path)}
    (tmp_path / "second").mkdir()
    converted(tmp_path / "second", file(tmp_path, lines(rows[::-1]), "b.jsonl"))
    second = {each.id: each.text for each in pool(tmp_path / "second")}
    assert list(first.values()) == ["Yes, please", "no"]
    assert first.keys() == second.keys()


def test_splits_go_to_files_of_their_own(tmp_path: Path) -> None:
    done = converted(tmp_path, beir(tmp_path / "beir"))
    assert done.examples == {"dialogues-test.jsonl": 1, "dialogues.jsonl": 1}
    assert written(tmp_path, "dialogues-test")[0]["response"] == "Title 2 text 2"
    assert [(each.id, each.text) for each in pool(tmp_path)] == [(f"d{n}", f"Title {n} text {n}") for n in range(3)]


def test_documents_with_one_id_are_one(tmp_path: Path) -> None:
    rows = [{"id": 1, "payload": {"text": text, "n": 5.0}} for text in ("a", "b")]
    done = converted(tmp_path, file(tmp_path, lines(rows)))
    assert written(tmp_path, "pool") == [{"id": "1", "text": "a", "metadata": {"n": 5}}]
    assert done.first == {"its id was seen before": f"{tmp_path / 'in.json'}:2"}
    assert done.fields.lines() == ["fields: n (number, 1 row)"]


def test_what_json_cannot_say_is_left_out(tmp_path: Path) -> None:
    half = json.dumps([said("q", "bad \ud800"), said("q \ud800", "x"), said("q", "fine")])
    done = converted(tmp_path, file(tmp_path, half))
    assert dict(done.left_out) == {"half a surrogate pair, or what JSON cannot say": 2}
    assert [row["text"] for row in written(tmp_path, "pool")] == ["fine"]


def test_several_files_of_one_format(tmp_path: Path) -> None:
    files = [file(tmp_path, lines(rows), f"{n}.jsonl") for n, rows in enumerate([SHAREGPT[:1], SHAREGPT[1:]])]
    assert converted(tmp_path, *files).examples.total() == 3


@pytest.mark.parametrize(("contents", "form", "reason"), [
    (["a,b\n1,2\n"], None, r"no map fits it; write one: --draft map\.toml begins it"),
    (["a,b\n"], None, "there are no rows"),
    (["a,b\n1\n"], None, "no row can be read: the row has another number"),
    (["a,b\n1\n"], "question-answer", "nothing was kept of .*: the row has another number"),
    ([lines([{"id": 1, "payload": {"text": "x"}, **OPENAI[0]}])], None, "may be openai .* or qdrant .*; name it by"),
    ([lines(SHAREGPT), CONVAI2], None, "the files are parlai and sharegpt; convert them one after the other"),
    (["{}"], "openai", "nothing was kept of .*: nothing is said where the map looks for it .*in0:1"),
    ([""], "openai", "nothing was kept of .*: there are no rows"),
    ([json.dumps(SHAREGPT)[:-9]], "sharegpt", "cut off"),
    (["{}"], "beir", "nothing was kept of .*: there are no rows"),
])  # fmt: skip
def test_files_that_cannot_be_converted_leave_nothing(
    tmp_path: Path, contents: list[str], form: str | None, reason: str
) -> None:
    files = [file(tmp_path, content, f"in{n}") for n, content in enumerate(contents)]
    with pytest.raises(Exception, match=reason) as caught:
        converted(tmp_path, *files, form=form)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Iterator[Any]:
        yield from ((n, RowError("bad")) for n in range(3))
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "records", interrupted)
    (tmp_path / "out").mkdir()
    with pytest.raises(KeyboardInterrupt):
        converted(tmp_path, file(tmp_path, lines(OPENAI)), form="openai")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    rows = [said("q" * 100, f"a {n}") for n in range(100)]
    source = file(tmp_path, lines([{}, *rows]))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))  # holds the pool, and not the examples
    try:
        with pytest.raises(OSError, match="too large"):
            converted(tmp_path, source, form="openai")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "out").exists()


def test_reasons_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_REASONS", 2)
    monkeypatch.setattr(module, "_MOST_LISTED", 3)
    bad = ["{", "5", '{"id": []}', "[]", "null"]
    rows = "\n".join([*bad, json.dumps(said("q", "a"))])
    done = converted(tmp_path, file(tmp_path, rows, "in.jsonl"), form="openai")
    assert [count for _, count in done.left_out.most_common()] == [3, 1, 1]
    assert "other reasons" in done.left_out
    assert len(written(tmp_path, "rejected")) == 3


def test_a_data_set_of_documents_makes_a_pool_alone(tmp_path: Path) -> None:
    done = converted(tmp_path, saved(tmp_path / "d", [{"id": 1, "text": "x", "lang": "en"}]))
    assert (done.examples.total(), done.candidates) == (0, 1)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["pool.jsonl"]


def test_no_room_on_the_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "SeenHashes", full)
    with pytest.raises(OSError, match="No space"):
        converted(tmp_path, file(tmp_path, lines(SHAREGPT)))
    assert not (tmp_path / "out").exists()
