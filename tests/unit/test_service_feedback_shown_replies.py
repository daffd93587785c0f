"""What a process knows of rankings, its own and those of others, when an event comes."""

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from polyrank.service.feedback import shown_replies
from polyrank.service.feedback.files import Erased, Growing
from polyrank.service.feedback.identity import Identity, make_folder
from polyrank.service.feedback.records import Event, Ranking, Shown
from polyrank.service.feedback.shown_replies import ShownReplies

IDENTITY = Identity(b"k" * 32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


def ranking(*shown: Shown, at: float | None = None, **fields: Any) -> Ranking:
    at = time.time() + 1 if at is None else at
    made = {"generation": "g", "revision": 0, "fingerprint": "f", "shown": shown or (Shown("a", 0.5),)}
    return Ranking(id=IDENTITY.ranking_id(at), at=at, **made, **fields)


def event(of: Ranking, kind: Any = "chosen", reply: str | None = None, text: str | None = None) -> Event:
    return Event(kind=kind, id="e", at=1.0, ranking=of.id, reply=reply, text=text)


def append(growing: Growing, *records: Ranking) -> None:
    growing.append(b"".join(orjson.dumps(each) + b"\n" for each in records), Counter())


def test_an_event_is_about_what_was_shown_or_it_is_not(folder: Path) -> None:
    known = ShownReplies(folder)
    plain = ranking(Shown("a", 0.5), Shown("b", 0.4), below=("c",))
    sent = ranking(Shown("a", 0.5), Shown(None, 0.4, "hello"))
    textless = ranking(Shown(None, 0.4))
    for each in (plain, sent, textless):
        assert known.lacks(each.id)
        known.note(each)
        assert not known.lacks(each.id)
    assert [known.has_shown(event(plain, reply=name)) for name in "abcd"] == [True, True, True, False]
    assert not known.has_shown(event(plain, "down", "d"))
    assert not known.has_shown(event(plain, text="hello"))
    assert known.has_shown(event(plain, "written", text="hello"))
    assert known.has_shown(event(plain, "edited", text="hello"))
    assert [known.has_shown(event(sent, text=text)) for text in ("hello", "bye")] == [True, False]
    assert known.has_shown(event(textless, text="hello")), "nobody knows what it said"


def test_of_the_minute_before_it_began_it_knows_what_a_killed_process_has_written_and_what_it_has_lost(
    folder: Path,
) -> None:
    written, closed, lost = (ranking(at=time.time() - 5) for _ in range(3))
    left, ended = Growing(folder), Growing(folder)
    append(left, written)
    append(ended, closed)
    ended.close()
    known = ShownReplies(folder)
    known.catch_up(None)
    assert [known.lacks(each.id) for each in (written, closed, lost)] == [False, False, True]
    assert not known.has_shown(event(lost, reply="a"))


def test_what_others_write_is_read_when_it_is_asked_for(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(shown_replies, "_BEGAN", time.time())
    old, later = ranking(at=time.time() - 65), [ranking() for _ in range(4)]
    before, closed = Growing(folder), Growing(folder)
    append(before, old)
    known = ShownReplies(folder)
    assert not known.lacks(old.id), "it may be anywhere"
    append(before, later[0])
    append(closed, later[1])
    assert [known.lacks(each.id) for each in later] == [True] * 4
    known.catch_up(None)
    assert [known.lacks(each.id) for each in later] == [False, False, True, True]
    append(closed, later[2])
    closed.close()
    after = Growing(folder)
    append(after, later[3])
    after.close()  # between two looks
    known.catch_up(None)
    assert [known.lacks(each.id) for each in later] == [False] * 4
    before.close()


def test_half_a_line_is_read_when_it_is_whole(folder: Path) -> None:
    known, growing, one = ShownReplies(folder), Growing(folder), ranking()
    line = orjson.dumps(one) + b"\n"
    os.write(growing._descriptor, line[:50])
    known.catch_up(None)
    assert known.lacks(one.id)
    os.write(growing._descriptor, line[50:])
    known.catch_up(None)
    assert not known.lacks(one.id)
    growing.leave()


def test_of_other_hosts_nothing_is_known(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = ShownReplies(folder)
    elsewhere = Identity(b"k" * 32)
    elsewhere._host = b"xx"
    assert not known.lacks(elsewhere.ranking_id(time.time() + 1))


def test_what_is_forgotten_is_not_called_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_replies, "MOST_RANKINGS", 3)
    known, at = ShownReplies(folder), time.time() + 1
    made = [ranking(at=at + number) for number in range(5)]
    for each in made:
        known.note(each)
    assert len(known._shown) == 3
    assert not any(known.lacks(each.id) for each in made)
    assert known.has_shown(event(made[0], reply="never shown"))
    assert not known.has_shown(event(made[4], reply="never shown"))
    assert known.lacks(ranking(at=at + 9).id)


def test_of_a_file_that_grew_by_much_only_the_end_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, growing = ShownReplies(folder), Growing(folder)
    now = round(time.time()) + 0.0006
    monkeypatch.setattr(time, "time", lambda: now)  # the next millisecond is the nearest
    made = [ranking(at=now) for _ in range(20)]
    append(growing, *made)
    monkeypatch.setattr(shown_replies, "_MOST_BYTES", growing.size // 2)
    known.catch_up(None)
    assert not any(known.lacks(each.id) for each in made), "what was skipped may be among them"
    later, lost = (ranking(at=now + 90) for _ in range(2))
    append(growing, later)
    known.catch_up(None)
    assert [known.lacks(each.id) for each in (later, lost)] == [False, True]
    assert 5 < len(known._shown) < 15, "the end, and what came later"
    growing.close()


def test_the_end_of_a_large_file_is_known_even_if_it_is_of_this_moment(folder: Path, monkeypatch) -> None:
    growing = Growing(folder)
    known = ShownReplies(folder)
    made = [ranking(at=time.time()) for _ in range(20)]
    append(growing, *made)
    monkeypatch.setattr(shown_replies, "_MOST_BYTES", growing.size // 2)
    known.catch_up(None)
    assert not known.has_shown(event(made[-1], reply="never shown"))
    later = ranking(at=time.time() + 1)
    assert known.lacks(later.id)
    growing.close()


def test_of_a_large_file_that_another_process_writes_the_end_tells_what_is_lost(folder: Path, monkeypatch) -> None:
    growing, now = Growing(folder), time.time()
    append(growing, *(ranking(at=now - 3600 + 10 * number) for number in range(360)))
    written, lost = (ranking(at=now - 5) for _ in range(2))
    append(growing, written)
    monkeypatch.setattr(shown_replies, "_MOST_BYTES", growing.size // 2)
    monkeypatch.setattr(shown_replies, "_BEGAN", now)
    known = ShownReplies(folder)
    known.catch_up(None)
    assert [known.lacks(each.id) for each in (written, lost)] == [False, True]
    growing.close()


def test_what_it_wrote_itself_is_counted_once_when_its_file_is_closed(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(shown_replies, "MOST_REPLIES", 6)
    known = ShownReplies(folder)
    for _ in range(3):
        own, made = Growing(folder), [ranking() for _ in range(4)]
        append(own, *made)
        for each in made:
            known.note(each)
        own.close()
        known.catch_up(None)
    for each in made:
        assert not known.has_shown(event(each, reply="never shown"))


def test_what_a_file_that_became_shorter_holds_is_read(folder: Path) -> None:
    known, others = ShownReplies(folder), Growing(folder)
    erased, kept, later = ranking(below=("x",) * 100), ranking(), ranking()
    append(others, erased, kept)
    known.catch_up(None)
    append(others, later)
    Erased(folder).add(folder, [erased.id], time.time())
    others.close()
    known.catch_up(None)
    assert not known.lacks(kept.id)
    assert not known.lacks(later.id)
