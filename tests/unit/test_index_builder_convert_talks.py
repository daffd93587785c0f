"""From records to examples: what was found wrong in real files, each with the right value."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from foreign import converted, lines, written
from samples import read as pairs

from polyrank.index_builder.convert import conversion
from polyrank.index_builder.convert import talks as module
from polyrank.index_builder.convert.conversion import convert
from polyrank.index_builder.convert.kinds import kinds_of
from polyrank.index_builder.convert.maps import map_of
from polyrank.index_builder.convert.talks import ConvertOptions
from polyrank.index_builder.pool.documents import MAX_TEXT_CHARACTERS
from polyrank.model.errors import InvalidInput

ROW = {"conversation": "c", "text": "t", "who": "w", "time": "z", "answering": ["agent"]}
LIST = {"messages": "m", "text": "t", "who": "w", "answering": ["agent"]}


def made(folder: Path, rows: Any, content: dict[str, Any], **asked: Any) -> Any:
    """Convert rows by a map; returns what was found."""
    (folder / "in.jsonl").write_text(lines(rows))
    used = map_of("own", content, "own.toml")
    return convert(kinds_of([folder / "in.jsonl"], used, {}), folder / "out", ConvertOptions(**asked), lambda *_: None)


def rows(*said: tuple[str, str], **more: Any) -> list[dict[str, Any]]:
    return [{"c": 1, "w": who, "t": text, **more} for who, text in said]


# What was found: a list beside an answer wins, and the answer is lost.
def test_a_list_beside_an_answer_does_not_win(tmp_path: Path) -> None:
    faq = {"question": "q", "answer": "a", "items": ["SKU-A", "SKU-B"]}
    (tmp_path / "f.jsonl").write_text(lines([faq]))
    done = converted(tmp_path, tmp_path / "f.jsonl")
    assert pairs(tmp_path) == [(["q"], "a")]
    assert done.unread == {"items": 1}
    (tmp_path / "b").mkdir()
    row = {"instruction": "i", "input": "", "output": "o", "history": [["h1", "h2"]]}
    (tmp_path / "g.jsonl").write_text(lines([row]))
    converted(tmp_path / "b", tmp_path / "g.jsonl")
    assert pairs(tmp_path / "b") == [(["h1", "h2", "i"], "o")]


def test_a_speaker_that_is_an_object_is_refused_and_a_path_into_it_tells_the_sides(tmp_path: Path) -> None:
    said = [{"c": 1, "w": {"type": kind}, "t": kind} for kind in ("user", "admin")]
    with pytest.raises(InvalidInput, match="who is an object; name a field in it"):
        made(tmp_path, said, ROW)
    made(tmp_path, said, {**ROW, "who": "w.type", "answering": ["admin"]})
    assert pairs(tmp_path) == [(["user"], "admin")]


def test_rows_whose_conversation_is_missing_or_rounded_are_no_conversation(tmp_path: Path) -> None:
    said = [{"c": name, "w": who, "t": who} for name in (float("nan"), "4,7E+17", "4.71E+17") for who in ("u", "agent")]
    said += [{"c": 4.71e17, "w": who, "t": who} for who in ("u", "agent")]
    said += [{"c": 0.0, "w": "u", "t": "q"}, {"c": 0, "w": "agent", "t": "a"}]
    (tmp_path / "in.json").write_text(json.dumps(said))
    used = map_of("own", ROW, "own.toml")
    done = convert(kinds_of([tmp_path / "in.json"], used, {}), tmp_path / "out", ConvertOptions(), lambda *_: None)
    assert pairs(tmp_path) == [(["q"], "a")]
    assert done.left_out == {
        "the row names no conversation": 2,
        "conversation is rounded, as spreadsheets do with 4.71E+17; write the column as text": 6,
    }


def test_a_conversation_of_one_minute_is_turned_as_the_others_of_its_file(tmp_path: Path) -> None:
    said = [(2, "agent", "a2", 3), (2, "user", "q2", 3), (1, "agent", "a1", 2), (1, "user", "q1", 1)]
    for number, ordered in enumerate((said, said[::-1])):
        (tmp_path / str(number)).mkdir()
        made(tmp_path / str(number), [dict(zip("cwtz", each, strict=True)) for each in ordered], ROW)
        assert sorted(pairs(tmp_path / str(number))) == [(["q1"], "a1"), (["q2"], "a2")]


def test_files_of_one_name_are_conversations_of_their_own(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("Max/_chat.txt", "Eva/_chat.txt", "Dr. Ben.txt", "Dr. Ann.txt")]
    for number, file in enumerate(files):
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"[01.02.26, 10:00:0{number}] x: q{number}\n[01.02.26, 10:05:0{number}] Anna: a{number}\n")
    converted(tmp_path, *files, answering=("Anna",))
    assert pairs(tmp_path) == [([f"q{number}"], f"a{number}") for number in range(4)]
    assert len({row["dialogue"] for row in written(tmp_path)}) == 4


def test_service_records_do_not_count_as_who_speaks_first(tmp_path: Path) -> None:
    said = [*rows(("Anna", "joined the channel"), kind="join"), *rows(("Max", "q"), ("Anna", "a"), kind="message")]
    own = {**ROW, "answering": [], "only": "kind == 'message'"}
    done = made(tmp_path, said, own, first_asks=True)
    assert pairs(tmp_path) == [(["q"], "a")]
    assert done.messages.passed == 1


@pytest.mark.parametrize(("asks", "answers"), [("Kunde", "Mitarbeiter"), ("Cliente", "Agente"), ("顧客", "担当者")])
def test_roles_of_any_language_are_asked_for_and_named(asks: str, answers: str, tmp_path: Path) -> None:
    said = rows((answers, "Hallo"), (asks, "q"), (answers, "a"))
    with pytest.raises(InvalidInput, match=rf"who answers\? There are messages of {answers} \(2\), {asks} \(1\)"):
        made(tmp_path, said, {**ROW, "answering": []})
    done = made(tmp_path, said, {**ROW, "answering": []}, answering=(answers,))
    assert pairs(tmp_path) == [(["Hallo", "q"], "a")]
    assert (done.messages.ours, done.messages.others) == ({answers: 2}, {asks: 1})


def test_sides_that_differ_by_who_began_are_asked_for(tmp_path: Path) -> None:
    said = [
        {"c": 1, "w": "Max", "t": "q"},
        {"c": 1, "w": "Anna", "t": "a"},
        {"c": 2, "w": "Anna", "t": "hi"},
        {"c": 2, "w": "Max", "t": "r"},
    ]
    with pytest.raises(InvalidInput, match="--answering, or say --first-asks"):
        made(tmp_path, said, {**ROW, "answering": []})
    made(tmp_path, said, {**ROW, "answering": []}, answering=("Anna",))
    assert pairs(tmp_path) == [(["q"], "a")]


def test_who_answers_needs_somebody_who_speaks(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="the map does not say who speaks; add who"):
        made(tmp_path, rows(("a", "b")), {"conversation": "c", "text": "t"}, answering=("a",))


# Times.
@pytest.mark.parametrize("times", [
    ["2026-01-02T10:09:00Z", "2026-01-02T10:05:00Z", "2026-01-02T12:00:00+02:00"],
    ["1767348540", "1767348300", "1767348000.5"],
    ["Fri, 02 Jan 2026 10:09:00 +0000", "Fri, 02 Jan 2026 10:05:00 +0000", "Fri, 02 Jan 2026 11:00:00 +0100"],
    ["02.01.2026 10:09", "02.01.2026 10:05", "02.01.2026 10:00"],
    ["Jan 2, 2026 at 3:09 PM", "Jan 2, 2026 at 3:05 PM", "Jan 2, 2026 at 3:00 PM"],
    ["31/12/2025 23:59", "31/12/2025 23:58", "01/12/2025 00:00"],
])  # fmt: skip
@pytest.mark.parametrize("listed", [False, True])
def test_the_newest_first_is_turned_round_in_tables_and_in_lists(times: list[str], listed: bool, tmp_path) -> None:
    said = [
        {"c": 1, "w": who, "t": text, "z": at}
        for (who, text), at in zip([("agent", "b"), ("agent", "a"), ("user", "q")], times, strict=True)
    ]
    if listed:
        made(tmp_path, [{"m": said}], {**LIST, "time": "z"})
    else:
        made(tmp_path, said, ROW)
    assert pairs(tmp_path) == [(["q"], "a"), (["q", "a"], "b")]


@pytest.mark.parametrize("bad", ["soon", "2026年1月2日", "32.13.2026 10:00", "10:00", "2026-01-02 10:00 CST"])
def test_a_time_that_cannot_be_read_is_told_before_anything_is_written(bad: str, tmp_path: Path) -> None:
    said = [*rows(("user", "q"), z="2026-01-02 10:00"), *rows(("agent", "a"), z=bad)]
    with pytest.raises(
        InvalidInput, match=rf"the time {bad!r} \(in the conversation that begins in .*in\.jsonl:1\).*--order file"
    ):
        made(tmp_path, said, ROW)
    assert not (tmp_path / "out").exists()
    made(tmp_path, said, ROW, order="file")
    assert pairs(tmp_path) == [(["q"], "a")]


def test_a_message_without_a_time_among_others_is_told(tmp_path: Path) -> None:
    said = [*rows(("user", "q"), z="2026-01-02 10:00"), *rows(("agent", "a"))]
    with pytest.raises(InvalidInput, match=r"a message of the conversation '1' \(.*in\.jsonl:1\) has no time"):
        made(tmp_path, said, ROW)


def test_whether_the_day_stands_first_is_asked_where_the_order_hangs_on_it(tmp_path: Path) -> None:
    said = [*rows(("user", "q"), z="1/3/2026 10:00"), *rows(("agent", "a"), z="2/2/2026 10:00")]
    with pytest.raises(
        InvalidInput, match=r"does the day or the month stand first in times such as .*2026 10:00'.*--order day-first"
    ):
        made(tmp_path, said, ROW)
    made(tmp_path, said, ROW, order="month-first")
    assert pairs(tmp_path) == [(["q"], "a")]
    (tmp_path / "b").mkdir()
    with pytest.raises(InvalidInput, match="nothing was kept"):
        made(tmp_path / "b", said, ROW, order="day-first")
    (tmp_path / "c").mkdir()
    same = [*rows(("agent", "a"), z="1/3/2026 10:05"), *rows(("user", "q"), z="1/3/2026 10:00")]
    made(tmp_path / "c", same, ROW)
    assert pairs(tmp_path / "c") == [(["q"], "a")]


def test_days_that_are_of_both_orders_are_refused(tmp_path: Path) -> None:
    said = [*rows(("user", "q"), z="13/1/2026 10:00"), *rows(("agent", "a"), z="1/14/2026 10:00")]
    with pytest.raises(InvalidInput, match="cannot be read, or not as the others"):
        made(tmp_path, said, ROW)


def test_equal_times_stay_as_the_file_says(tmp_path: Path) -> None:
    at = ["2026-01-02 10:09", "2026-01-02 10:05", "2026-01-02 10:05"]
    said = [
        {"c": 1, "w": who, "t": text, "z": z}
        for (who, text), z in zip([("agent", "b"), ("agent", "a"), ("user", "q")], at, strict=True)
    ]
    made(tmp_path, said, ROW)
    assert pairs(tmp_path) == [(["q"], "a"), (["q", "a"], "b")]


# Texts.
def test_parts_of_unknown_types_keep_their_words(tmp_path: Path) -> None:
    parts = ["See ", {"type": "link", "text": "https://x.example"}, {"type": "bold", "text": "now"}, "."]
    made(
        tmp_path,
        [{"m": [{"w": "user", "t": parts}, {"w": "agent", "t": [{"type": "block", "content": [{"text": "a"}]}]}]}],
        LIST,
    )
    assert pairs(tmp_path) == [(["See https://x.examplenow."], "a")]


def test_replies_that_are_marked_as_wrong_are_not_learnt(tmp_path: Path) -> None:
    said = [
        {"w": "user", "t": "q"},
        {"w": "agent", "t": "bad", "label": False},
        {"w": "agent", "t": "a", "label": True},
    ]
    done = made(tmp_path, [{"m": said}], {**LIST, "learn": "label"})
    assert pairs(tmp_path) == [(["q", "bad"], "a")]
    assert done.left_out == {"a reply that is not to be learnt, as it says itself": 1}


def test_what_the_customer_wrote_first_is_part_of_the_conversation(tmp_path: Path) -> None:
    made(tmp_path, [{"d": "q", "m": [{"w": "agent", "t": "a"}]}], {**LIST, "first": "d"})
    assert pairs(tmp_path) == [(["q"], "a")]


def test_html_is_text_where_the_map_says_so_and_is_told_where_it_does_not(tmp_path: Path) -> None:
    said = [{"m": [{"w": "user", "t": "<p>a &lt; b<br>c</p>"}, {"w": "agent", "t": "x &amp; y"}]}]
    done = made(tmp_path, said, {**LIST, "texts": "html"})
    assert pairs(tmp_path) == [(["a < b\nc"], "x & y")]
    assert done.messages.changed == {"read as html": 2}
    (tmp_path / "b").mkdir()
    done = made(tmp_path / "b", said, LIST)
    assert pairs(tmp_path / "b") == [(["<p>a &lt; b<br>c</p>"], "x &amp; y")]
    assert [*done.messages.changed] == ['with marks of HTML, kept: texts = "html" reads them']


def test_quotes_are_cut_unless_they_are_to_be_kept(tmp_path: Path) -> None:
    mail = "It left.\n\nOn Fri, Jan 2, 2026 at 10:00 AM Max <m@x.example> wrote:\n> Where?"
    said = [{"m": [{"w": "user", "t": "Where?"}, {"w": "agent", "t": mail}]}]
    made(tmp_path, said, {**LIST, "texts": "mail"})
    assert pairs(tmp_path) == [(["Where?"], "It left.")]
    (tmp_path / "b").mkdir()
    made(tmp_path / "b", said, {**LIST, "texts": "mail"}, keep_quotes=True)
    assert pairs(tmp_path / "b") == [(["Where?"], mail)]


def test_every_text_is_redacted_before_it_is_written(tmp_path: Path) -> None:
    said = [
        {
            "m": [{"w": "user", "t": "I am 5519"}, {"w": "agent", "t": "Hello 5519", "c": ["5519", "no"]}],
            "p": ["born 5519"],
        }
    ]
    own = {**LIST, "candidates": "c", "persona": "p"}
    done = made(tmp_path, said, own, redact=lambda text: text.replace("5519", "[number]"))
    assert not any("5519" in file.read_text() for file in (tmp_path / "out").iterdir())
    assert pairs(tmp_path) == [(["I am [number]"], "Hello [number]")]
    assert done.messages.changed["redacted"] == 4


# Conversations.


def test_without_speakers_every_other_message_is_a_reply_and_that_is_said(tmp_path: Path) -> None:
    own = {"messages": "m", "keep": {"n": "n"}}
    done = made(tmp_path, [{"m": ["a", None, "b", "", "c"], "n": 1}, {"m": ["a", "b", "c", "d"]}], own)
    assert pairs(tmp_path) == [(["a", "b"], "c"), (["a"], "b"), (["a", "b", "c"], "d")]
    assert done.messages.alternating


def test_replies_that_cannot_be_learnt_from(tmp_path: Path) -> None:
    said = [
        ("system", "s"), ("agent", "hi"), ("user", "q"), ("agent", " "),
        ("agent", "x" * (MAX_TEXT_CHARACTERS + 1)), ("agent", "a"),
    ]  # fmt: skip
    done = made(tmp_path, [{"m": [{"w": w, "t": t} for w, t in said]}], LIST)
    assert done.left_out == {
        "a reply with nothing said before it": 1,
        "a reply without text": 1,
        f"a reply of more than {MAX_TEXT_CHARACTERS} characters": 1,
    }
    assert [each["role"] for each in written(tmp_path)[0]["context"]][:3] == ["system", "assistant", "user"]


def test_trees_give_each_reply_what_stands_above_it(tmp_path: Path) -> None:
    said = [
        ("1", None, "user", "q"), ("2", "1", "agent", "a"), ("3", "1", "agent", "b"), ("4", "3", "user", "r"),
        ("5", "4", "agent", "c"), ("6", "7", "agent", "lost"), ("7", "6", "agent", "lost too"),
    ]  # fmt: skip
    tree = [{"i": i, "p": p, "w": w, "t": t} for i, p, w, t in said]
    done = made(tmp_path, [{"m": tree}], {**LIST, "name": "i", "parent": "p"})
    assert pairs(tmp_path) == [(["q"], "a"), (["q"], "b"), (["q", "b", "r"], "c")]
    assert done.left_out == {"a reply with nothing said before it": 2}


def test_records_of_one_conversation_are_joined_where_the_map_says_so(tmp_path: Path) -> None:
    pages = [{"c": 1, "m": [{"w": "user", "t": "q"}]}, {"c": 1, "m": [{"w": "agent", "t": "a"}]}]
    made(tmp_path, pages, {**LIST, "conversation": "c", "joined": True})
    assert pairs(tmp_path) == [(["q"], "a")]
    (tmp_path / "x").mkdir()
    with pytest.raises(InvalidInput, match="nothing was kept"):
        made(tmp_path / "x", pages, {**LIST, "conversation": "c"})


def test_metadata_of_a_reply_that_was_given_in_several_conversations_has_them_all(tmp_path: Path) -> None:
    said = [{"m": [{"w": "user", "t": "q"}, {"w": "agent", "t": "A"}], "l": each} for each in ("de", "at", "de")]
    made(tmp_path, said, {**LIST, "keep": {"land": "l"}})
    assert [row["metadata"] for row in written(tmp_path)] == [{"land": "de"}, {"land": "at"}, {"land": "de"}]
    assert [row["metadata"] for row in written(tmp_path, "pool")] == [{"land": ["de", "at"]}]


def test_a_pool_may_have_the_replies_alone_that_were_given_often(tmp_path: Path) -> None:
    said = [{"m": [{"w": "user", "t": "q"}, {"w": "agent", "t": each}]} for each in ("Yes.", "yes.", "No.")]
    done = made(tmp_path, said, LIST, min_count=2)
    assert [row["text"] for row in written(tmp_path, "pool")] == ["Yes."]
    assert len(written(tmp_path)) == 3
    assert done.left_out == {"a reply that was given too seldom for the pool (--min-count)": 1}


def test_a_context_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = [{"m": [*({"w": "user", "t": f"turn {n:03}"} for n in range(200)), {"w": "agent", "t": "a"}]}]
    made(tmp_path, said, LIST)
    [row] = written(tmp_path)
    assert [len(row["context"]), row["context"][0]["content"]] == [module.MOST_TURNS, "turn 100"]
    monkeypatch.setattr(module, "MOST_CHARACTERS", 25)
    (tmp_path / "b").mkdir()
    made(tmp_path / "b", said, LIST)
    assert len(written(tmp_path / "b")[0]["context"]) == 3


@pytest.mark.slow
def test_a_conversation_that_never_ends_writes_a_bounded_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WRITTEN", 5_000_000)
    said = (
        {"c": 1, "w": ("user", "agent")[n % 2], "t": f"message {n} of a ticket that never ends, as bots make them"}
        for n in range(10_000)
    )
    assert made(tmp_path, said, ROW).examples.total() == 5000
    assert (tmp_path / "out/dialogues.jsonl").stat().st_size < 10_000_000  # 500 million without a bound


def test_a_message_that_is_too_long_costs_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_MESSAGE", 10)
    done = made(tmp_path, [*rows(("user", "x" * 11)), *rows(("user", "q"), ("agent", "a"))], ROW)
    assert done.left_out == {"the text has more than 10 characters": 1}
    assert pairs(tmp_path) == [(["q"], "a")]


def test_names_of_speakers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_NAMES", 2)
    done = made(tmp_path, rows(*((f"u{n}", "q") for n in range(5)), ("agent", "a")), ROW)
    assert done.messages.others == {"u0": 1, "u1": 1, "others": 3}


def test_the_place_of_a_record_is_told(tmp_path: Path) -> None:
    done = made(
        tmp_path, [{"m": [{"w": "user", "t": "q"}, {"w": "agent", "t": "a"}]}, {"m": [{"w": ["x"], "t": "q"}]}], LIST
    )
    assert re.fullmatch(r".*in\.jsonl:2", done.first["who is a list; name a field in it"])
    assert json.loads((tmp_path / "out/rejected.jsonl").read_text())["line"] == 2


def test_a_text_that_says_no_is_no_mark(tmp_path: Path) -> None:
    said = [{"c": 1, "d": d, "p": t} for d, t in (("incoming", "no"), ("outgoing", "No"))]
    rows_ = [{"conversationId": each["c"], "direction": each["d"], "payload": {"text": each["p"]}} for each in said]
    (tmp_path / "b.jsonl").write_text(lines(rows_))
    converted(tmp_path, tmp_path / "b.jsonl", form="botpress")
    assert pairs(tmp_path) == [(["no"], "No")]


@pytest.mark.parametrize("private", [False, "false", "0", "no", None, ""])
def test_what_is_not_public_is_no_message_however_a_table_writes_it(private: object, tmp_path: Path) -> None:
    said = [
        *rows(("user", "q"), public=True),
        *rows(("agent", "VIP"), public=private),
        *rows(("agent", "a"), public="yes"),
    ]
    done = made(tmp_path, said, {**ROW, "only": "public"})
    assert pairs(tmp_path) == [(["q"], "a")]
    assert done.messages.passed == 1


def test_metadata_is_redacted_and_must_be_such_as_a_pool_can_keep(tmp_path: Path) -> None:
    own = {**LIST, "keep": {"subject": "s", "tags": "g"}}
    said = {"m": [{"w": "user", "t": "q"}, {"w": "agent", "t": "a"}]}
    made(tmp_path, [{**said, "s": "of 5519", "g": ["5519"]}], own, redact=lambda text: text.replace("5519", "#"))
    assert written(tmp_path)[0]["metadata"] == {"subject": "of #", "tags": ["#"]}
    (tmp_path / "b").mkdir()
    done = made(tmp_path / "b", [said, {**said, "s": "x" * 70_000}], own)
    assert done.left_out == {"keep: must be at most 65536 bytes of JSON": 1}


def test_what_is_nested_too_deep_costs_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"w": "user", "t": "x", "r": [deep]}
    good = {"m": [{"w": "user", "t": "q"}, {"w": "agent", "t": "a"}]}
    monkeypatch.setattr(conversion, "records", lambda *_: iter([(1, {"m": [deep]}), (2, good)]))
    done = made(tmp_path, [good], {**LIST, "replies": "r", "name": "i"})
    assert done.examples.total() == 1
    assert done.left_out == {"nested too deep": 1}


def test_a_conversation_that_never_ends_is_read_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_MESSAGES", 2)
    done = made(tmp_path, rows(("user", "q"), ("agent", "a"), ("agent", "b")), ROW)
    assert pairs(tmp_path) == [(["q"], "a")]
    assert done.left_out == {"what comes after 2 messages of one conversation": 1}


def test_names_of_nobody_are_told(tmp_path: Path) -> None:
    done = made(tmp_path, rows(("user", "q"), ("agent", "a")), ROW, answering=("Agent", "Agnet"))
    assert done.messages.missing == ["Agnet"]
    with pytest.raises(
        InvalidInput, match=r"nobody called Agnet says anything; there are messages of user \(1\), agent \(1\)"
    ):
        made(tmp_path, rows(("user", "q"), ("agent", "a")), ROW, answering=("Agnet",))


@pytest.mark.parametrize("replies", ["text", {"a": 1}, 5, None])
def test_replies_that_are_no_list_are_none(replies: object, tmp_path: Path) -> None:
    made(tmp_path, [{"m": [{"w": "user", "t": "q"}, {"w": "agent", "t": "a", "r": replies}]}], {**LIST, "replies": "r"})
    assert pairs(tmp_path) == [(["q"], "a")]


def test_sides_without_names_are_told_as_sides(tmp_path: Path) -> None:
    said = [{"c": 1, "t": "q", "in": True}, {"c": 1, "t": "a", "in": False}]
    done = made(tmp_path, said, {"conversation": "c", "text": "t", "answers": "!in"})
    assert (done.messages.ours, done.messages.others) == ({"assistant": 1}, {"user": 1})
    assert [each["role"] for each in written(tmp_path)[0]["context"]] == ["user"]


def test_what_programs_write_for_nothing_is_no_text(tmp_path: Path) -> None:
    said = [
        ("1", "c", "q"), ("1", "us", "None"), ("1", "us", "\u200b"),
        ("1", "us", "a"), ("nan", "c", "q"), ("nan", "us", "b"),
    ]  # fmt: skip
    rows = "".join(f"{talk},{who},{text}\n" for talk, who, text in said)
    (tmp_path / "t.csv").write_text(f"talk,who,text\n{rows}")
    done = converted(
        tmp_path, tmp_path / "t.csv", columns={"conversation": "talk", "who": "who", "text": "text"}, answering=("us",)
    )
    assert [row["response"] for row in written(tmp_path)] == ["a"]
    assert done.messages.changed["that say None, taken for none"] == 1
    assert done.left_out["the row names no conversation"] == 2


def test_pages_that_overlap_are_read_once(tmp_path: Path) -> None:
    rows = "1,c,q,2026-01-02 10:00\n1,us,a,2026-01-02 10:01\n1,c,thanks,2026-01-02 10:02\n1,us,bye,2026-01-02 10:03\n"
    for page, part in (("1.csv", rows), ("2.csv", rows[rows.index("1,us,a") :])):
        (tmp_path / page).write_text(f"talk,who,text,at\n{part}")
    columns = {"conversation": "talk", "who": "who", "text": "text", "time": "at"}
    done = converted(tmp_path, tmp_path / "1.csv", tmp_path / "2.csv", columns=columns, answering=("us",))
    assert [(len(row["context"]), row["response"]) for row in written(tmp_path)] == [(1, "a"), (3, "bye")]
    assert done.messages.repeated == 3


def test_a_conversation_that_is_there_twice_is_read_once(tmp_path: Path) -> None:
    one = {"id": "x", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    other = {**one, "messages": [*one["messages"], {"role": "user", "content": "r"}]}
    for page, part in (("1.jsonl", [one, one]), ("2.jsonl", [{**one, "at": 5}, {**one, "id": "y"}, other])):
        (tmp_path / page).write_text(lines(part))
    done = converted(tmp_path, tmp_path / "1.jsonl", tmp_path / "2.jsonl", form="openai")
    assert [row["dialogue"] for row in written(tmp_path)] == ["x", "y", "x"]
    assert done.left_out["the conversation was there before, word for word"] == 2
