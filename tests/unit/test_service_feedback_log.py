"""The thread that writes a log of feedback, its files, and what removes them."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrank.index_builder.errors import DiskFull
from polyrank.index_builder.layout import stamp
from polyrank.service.errors import Overloaded
from polyrank.service.feedback import files, log
from polyrank.service.feedback.erasing import Erasing, erase
from polyrank.service.feedback.files import Erased, Growing, Line, limit, lines, names
from polyrank.service.feedback.identity import Identity, make_folder
from polyrank.service.feedback.log import Log
from polyrank.service.observe.metrics import Metrics

Open = Callable[..., Log]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


@pytest.fixture
def begin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Begins logs in the folder, as several processes do; they look often."""
    monkeypatch.setattr(log, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(log, "_PAUSE_SECONDS", 0.0)
    begun: list[Log] = []

    def made(metrics: Metrics | None = None, days: int = 30, most_bytes: int = 1 << 30) -> Log:
        begun.append(Log(folder, days, most_bytes, metrics or Metrics()))
        return begun[-1]

    yield made
    for each in begun:
        each.close()


def line(number: int, **fields: Any) -> Line:
    return {"kind": "ranking", "id": f"r{number}", "at": float(number), **fields}


def written(folder: Path) -> list[Line | None]:
    return [each for name in names(folder) for each in lines(folder, name)]


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def put(begun: Log, *made: Line) -> None:
    """As events, so that it is there when this returns."""
    begun.add(lambda: made, 1).result(10)


def test_lines_come_as_they_were_handed_over(folder: Path, begin: Open) -> None:
    begun = begin()
    for number in range(50):
        assert begun.record(lambda number=number: [line(number)], 10)
    put(begun, line(50), line(51))
    assert written(folder) == [line(number) for number in range(52)]
    assert [path.suffix for path in folder.iterdir()] == [".jsonl"]
    begun.close()
    assert written(folder) == [line(number) for number in range(52)]
    assert [path.suffix for path in folder.iterdir()] == [".zst"]


def test_no_file_is_made_for_nothing(folder: Path, begin: Open) -> None:
    begin().close()
    assert not [*folder.iterdir()]


def test_what_finds_no_room_is_dropped_and_counted(folder: Path, begin: Open) -> None:
    metrics, go_on = Metrics(), threading.Event()
    begun = begin(metrics)

    def held() -> Sequence[Line]:
        go_on.wait(10)
        return [line(0)]

    assert begun.record(held, 1)
    assert not begun.record(lambda: [line(1)], log.MOST_WAITING)
    until(lambda: not begun._queue.qsize())
    assert all(begun.record(lambda: [line(2)], 1) for _ in range(log.MOST_RANKINGS))
    assert not begun.record(lambda: [line(3)], 1)
    go_on.set()
    put(begun, line(4))
    assert len(written(folder)) == log.MOST_RANKINGS + 2
    values = [
        metrics.registry.get_sample_value("polyrank_feedback_rankings_total", {"outcome": outcome})
        for outcome in ("recorded", "dropped")
    ]
    assert values == [log.MOST_RANKINGS + 1, 2]


def test_events_that_find_no_room_are_refused_but_find_more_than_rankings(folder: Path, begin: Open) -> None:
    begun, go_on = begin(), threading.Event()
    begun.record(lambda: [line(int(go_on.wait(10)))], log.MOST_WAITING)
    until(lambda: not begun._queue.qsize() and begun._taken > 0)
    assert begun.record(lambda: [line(2)], log.MOST_WAITING)
    given_up = begun.add(lambda: [line(3)], log.MOST_WAITING)
    assert given_up.cancel(), "nobody waits, but it is in memory still"
    with pytest.raises(Overloaded):
        begun.add(lambda: [line(4)], 1)
    go_on.set()
    until(lambda: begun._taken == begun._given)
    put(begun, line(5))
    assert written(folder) == [line(1), line(2), line(5)]


def test_events_that_wait_together_are_put_on_the_disk_together(begin: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, calls = begin(), threading.Event(), []
    monkeypatch.setattr("polyrank.service.feedback.files.os.fdatasync", calls.append)

    def held() -> Sequence[Line]:
        go_on.wait(10)
        return [line(0)]

    begun.record(held, 1)
    until(lambda: not begun._queue.qsize())
    waiting = [begun.add(lambda: [line(1)], 1) for _ in range(20)]
    go_on.set()
    for each in waiting:
        each.result(10)
    assert len(calls) == 1


def test_what_nobody_waits_for_is_not_written(folder: Path, begin: Open) -> None:
    begun, go_on = begin(), threading.Event()
    begun.record(lambda: [line(int(go_on.wait(10)))], 1)
    until(lambda: not begun._queue.qsize())
    given_up = begun.add(lambda: [line(2)], 1)
    assert given_up.cancel()
    go_on.set()
    put(begun, line(3))
    assert written(folder) == [line(1), line(3)]


def test_a_full_disk_refuses_events_and_drops_rankings(
    folder: Path, begin: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of a line finds room; nothing of it may stay."""
    metrics = Metrics()
    begun, write = begin(metrics), os.write
    put(begun, line(1))

    def full(descriptor: int, content: memoryview) -> int:
        if len(content) > 10:
            return write(descriptor, content[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as failing:
        failing.setattr("polyrank.service.feedback.files.os.write", full)
        begun.record(lambda: [line(2)], 1)
        with pytest.raises(DiskFull, match="no room left"):
            put(begun, line(3), line(4))
    put(begun, line(5))
    assert written(folder) == [line(1), line(5)]
    assert metrics.registry.get_sample_value("polyrank_feedback_rankings_total", {"outcome": "dropped"}) == 1
    assert caplog.text.count("feedback is lost") == 1


def test_after_a_failed_sync_another_file_begins(folder: Path, begin: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells of lost pages once, and takes them for written then."""
    begun = begin()
    with monkeypatch.context() as failing:
        failing.setattr("polyrank.service.feedback.files.os.fdatasync", lambda _: os.fsync(-1))
        with pytest.raises(OSError, match="Bad file descriptor"):
            put(begun, line(1))
    put(begun, line(2))
    assert len(names(folder)) == 2


def test_a_file_that_is_taken_away_is_left(folder: Path, begin: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by another host, where the file system shares no locks: nothing is acknowledged that is in no file."""
    begun, sync = begin(), os.fdatasync
    put(begun, line(1))
    next(folder.glob("*.jsonl")).unlink()
    put(begun, line(2))
    assert written(folder) == [line(2)]

    def take_away(descriptor: int) -> None:
        sync(descriptor)
        next(folder.glob("*.jsonl")).unlink()

    with monkeypatch.context() as taking:
        taking.setattr("polyrank.service.feedback.files.os.fdatasync", take_away)
        with pytest.raises(OSError, match="another host closed it"):
            put(begun, line(3))
    put(begun, line(4))
    assert written(folder) == [line(4)]


def test_a_line_that_cannot_be_made_is_lost_alone(folder: Path, begin: Open) -> None:
    begun = begin()
    begun.record(lambda: [line(1 // 0)], 1)
    begun.record(lambda: [{"kind": "ranking", "score": 1j}], 1)
    put(begun, line(2))
    assert written(folder) == [line(2)]


def test_a_file_is_closed_when_it_is_full_or_old(folder: Path, begin: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = begin(most_bytes=4000)  # a quarter of it for each file
    for number in range(30):
        put(begun, line(number, text="x" * 100))
    assert len([path for path in folder.iterdir() if path.suffix == ".zst"]) == 4
    monkeypatch.setattr(files, "MOST_SECONDS", 0)
    until(lambda: all(path.suffix == ".zst" for path in folder.iterdir()))
    assert written(folder) == [line(number, text="x" * 100) for number in range(30)]


def test_files_of_the_dead_are_closed_and_those_of_the_living_are_not(folder: Path) -> None:
    living, dead = Growing(folder), Growing(folder)
    living.append(b"{}\n")
    dead.append(b'{"kind":"ranking"}\n{"cut')
    dead.leave()
    Growing(folder).leave()  # it died before it wrote anything
    files.close_left(folder)
    assert {path.name for path in folder.iterdir()} == {f"{living.name}.jsonl", f"{dead.name}.jsonl.zst"}
    assert [*lines(folder, dead.name)] == [{"kind": "ranking"}, None]
    living.leave()


def test_a_process_closes_what_others_left_when_it_begins(folder: Path, begin: Open) -> None:
    dead = Growing(folder)
    dead.append(b"{}\n")
    dead.leave()
    begin()
    until(lambda: [path.name for path in folder.iterdir()] == [f"{dead.name}.jsonl.zst"])


def named_at(age: timedelta) -> str:
    return f"{stamp(datetime.now(UTC) - age)}-00000000"


def test_what_is_too_old_goes_then_the_oldest_until_the_rest_fits(folder: Path) -> None:
    ages = [timedelta(days=3), timedelta(days=1, hours=2), timedelta(hours=23), timedelta(hours=1)]
    kept = [named_at(age) for age in ages]
    for name in kept:
        (folder / f"{name}.jsonl.zst").write_bytes(bytes(100))
    living = Growing(folder)
    living.append(bytes(49) + b"\n")
    (folder / "key").write_bytes(bytes(32))
    assert limit(folder, 30, 1000) == 450
    assert limit(folder, 1, 1000) == 250
    assert names(folder) == [*kept[2:], living.name]
    assert limit(folder, 1, 150) == 150
    assert names(folder) == [kept[3], living.name]
    assert limit(folder, 1, 1) == 50, "a file that is open stays"
    assert (folder / "key").exists()
    living.close()


def test_a_file_that_cannot_be_closed_keeps_none_from_being_removed(folder: Path, begin: Open) -> None:
    (folder / "20200101T000000000000-00000000.jsonl").mkdir()
    old = folder / "20200102T000000000000-00000000.jsonl.zst"
    old.touch()
    begin()
    until(lambda: not old.exists())


def test_a_log_that_is_too_large_by_its_open_files_closes_them(folder: Path, begin: Open) -> None:
    other = Growing(folder)
    other.append(bytes(5000))
    begun = begin(most_bytes=4000)
    put(begun, line(1))
    begun._tidied = 0.0
    until(lambda: not [path for path in folder.glob("*.jsonl") if path.stem != other.name])
    other.close()


def erased_of(root: Path, folder: Path, conversation: str = "a") -> tuple[tuple[int, int], list[Any]]:
    """Erase it; returns how many rankings went and files are left, and all lines that are left."""
    done = erase(root, conversation)
    return (done.rankings, done.left), [each and (each["kind"], each.get("id")) for each in written(folder)]


def test_a_conversation_is_erased_everywhere(tmp_path: Path, folder: Path, begin: Open) -> None:
    identity = Identity.of(tmp_path)
    own, other = identity.conversation("a"), identity.conversation("b")

    def event(number: int, ranking: int) -> Line:
        return {"kind": "up", "id": f"e{number}", "ranking": f"r{ranking}", "text": "secret"}

    closed, open_here, dead = Growing(folder), begin(), Growing(folder)
    closed.append(log.orjson.dumps(line(1, conversation=own)) + b"\n{damaged\n")
    closed.append(log.orjson.dumps(line(2, conversation=other)) + b"\n")
    closed.close()
    dead.append(log.orjson.dumps(event(1, 3)) + b"\n" + log.orjson.dumps(event(2, 2)) + b"\n")
    dead.leave()
    put(open_here, line(3, conversation=own), event(3, 1), event(4, 2))
    done, left = erased_of(tmp_path, folder)
    assert done == (2, 0)
    assert left == [None, ("ranking", "r2"), ("up", "e2"), ("up", "e4")]
    put(open_here, line(5, conversation=own, at=time.time() + 1))
    assert erased_of(tmp_path, folder, "nobody") == ((0, 0), [*left, ("ranking", "r5")])
    assert erase(tmp_path, "b").names == {other, "r2"}
    assert {*Erased(folder).times} - {other, "r2"} == {own, "r1", "r3", identity.conversation("nobody")}


def test_what_was_not_written_yet_when_its_conversation_was_erased_goes_with_its_events(
    tmp_path: Path, folder: Path, begin: Open
) -> None:
    assert erased_of(tmp_path, folder) == ((0, 0), [])
    begun = begin()
    ranking = line(1, conversation=Identity.of(tmp_path).conversation("a"))
    put(begun, ranking, {"kind": "written", "id": "e1", "ranking": "r1", "text": "secret"}, line(2))
    begun.close()
    assert written(folder) == [line(2)]


def test_a_ranking_without_a_conversation_is_erased_by_its_id(tmp_path: Path, folder: Path, begin: Open) -> None:
    ranking = Identity.of(tmp_path).ranking_id(1.0)
    begun = begin()
    put(begun, {**line(1), "id": ranking}, line(2))
    begun.close()
    assert erased_of(tmp_path, folder, ranking) == ((1, 0), [("ranking", "r2")])


def test_nothing_is_erased_where_nothing_was_recorded(tmp_path: Path) -> None:
    assert erase(tmp_path, "a") == Erasing(0, 0)
    assert not [*tmp_path.iterdir()]


def test_what_was_erased_long_ago_is_forgotten(folder: Path) -> None:
    now = time.time()
    Erased(folder).add(folder, ["old"], now - 7200)
    with (folder / Erased.FILE).open("a") as file:
        file.write("9" * 400 + " damaged\n")
    (folder / f"{named_at(timedelta(hours=1))}.jsonl").touch()
    Erased(folder).add(folder, ["new"], now)
    assert [*Erased(folder).times] == ["new"]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("ab"), st.text('aé\n\u2028\\"', max_size=5)), min_size=1, max_size=5))
def test_lines_are_read_as_they_were_made(tmp_path_factory: pytest.TempPathFactory, made: list[Line]) -> None:
    folder = make_folder(tmp_path_factory.mktemp("store"))
    growing = Growing(folder)
    growing.append(b"".join(log.orjson.dumps(each) + b"\n" for each in made))
    assert [*lines(folder, growing.name)] == made
    growing.close()
    assert [*lines(folder, growing.name)] == made
