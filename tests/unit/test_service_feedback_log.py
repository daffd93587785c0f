"""The thread that writes a log of feedback, its files, and what removes them."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import orjson
import pyarrow as pa
import pytest
import waiting
from feedback_logs import event, ranking

from polyrank.index_builder.errors import DiskFull
from polyrank.index_builder.layout import stamp
from polyrank.service.errors import EraseUnfinished, Overloaded
from polyrank.service.feedback import files, log
from polyrank.service.feedback.erasure import Erasing, erase
from polyrank.service.feedback.files import Erased, Growing, account, limit, lines, names
from polyrank.service.feedback.identity import Identity, make_folder
from polyrank.service.feedback.log import Log
from polyrank.service.feedback.records import Event, Ranking
from polyrank.service.observe.metrics import Metrics

until = partial(waiting.until, seconds=10)
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


def content(*records: Ranking | Event) -> bytes:
    return b"".join(orjson.dumps(each) + b"\n" for each in records)


def append(growing: Growing, *records: Ranking | Event, cut: bytes = b"") -> None:
    growing.append(content(*records) + cut, Counter(account(each.by, each.kind) for each in records))


def written(folder: Path) -> list[str | None]:
    """The ids of the records in the order of the files; None for a damaged line."""
    return [each and each["id"] for name in names(folder) for each in lines(folder, name)]


def put(begun: Log, *made: Event) -> None:
    begun.add(lambda _: made, 1).result(10)


def test_records_come_as_they_were_handed_over(folder: Path, begin: Open) -> None:
    begun, text = begin(), 'aé\n\u2028\\"'
    for number in range(50):
        assert begun.record(lambda number=number: ranking(number), 10)
    put(begun, event(50), event(51, text=text))
    expected = [*(f"r{number}" for number in range(50)), "e50", "e51"]
    assert written(folder) == expected
    assert [path.suffix for path in folder.iterdir()] == [".jsonl"]
    begun.close()
    assert written(folder) == expected
    [closed] = folder.iterdir()
    assert (closed.suffix, closed.stat().st_mode & 0o777) == (".zst", 0o600)
    *_, last = lines(folder, *names(folder))
    assert last["text"] == text


def test_no_file_is_made_for_nothing(folder: Path, begin: Open) -> None:
    begin().close()
    assert not [*folder.iterdir()]


def test_what_finds_no_room_is_dropped_and_counted(folder: Path, begin: Open) -> None:
    metrics, go_on = Metrics(), threading.Event()
    begun = begin(metrics)

    def held() -> Ranking:
        go_on.wait(10)
        return ranking(0)

    assert begun.record(held, 1)
    assert not begun.record(lambda: ranking(1), log.MOST_WAITING)
    until(lambda: not begun._queue.qsize())
    assert all(begun.record(lambda: ranking(2), 1) for _ in range(log.MOST_RANKINGS))
    assert not begun.record(lambda: ranking(3), 1)
    go_on.set()
    put(begun, event(4))
    assert len(written(folder)) == log.MOST_RANKINGS + 2
    values = [
        metrics.registry.get_sample_value("polyrank_feedback_rankings_total", {"outcome": outcome})
        for outcome in ("recorded", "dropped")
    ]
    assert values == [log.MOST_RANKINGS + 1, 2]


def test_events_that_find_no_room_are_refused_but_find_more_than_rankings(folder: Path, begin: Open) -> None:
    begun, go_on = begin(), threading.Event()
    begun.record(lambda: ranking(int(go_on.wait(10))), log.MOST_WAITING)
    until(lambda: not begun._queue.qsize() and begun._size_out > 0)
    assert begun.record(lambda: ranking(2), log.MOST_WAITING)
    given_up = begun.add(lambda _: [event(3)], log.MOST_WAITING)
    assert given_up.cancel(), "nobody waits, but it is in memory still"
    with pytest.raises(Overloaded):
        begun.add(lambda _: [event(4)], 1)
    go_on.set()
    until(lambda: begun._size_out == begun._size_in)
    put(begun, event(5))
    assert written(folder) == ["r1", "r2", "e5"]


def test_events_that_wait_together_are_put_on_the_disk_together(begin: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, calls = begin(), threading.Event(), []
    monkeypatch.setattr("polyrank.service.feedback.files.os.fdatasync", calls.append)

    def held() -> Ranking:
        go_on.wait(10)
        return ranking(0)

    begun.record(held, 1)
    until(lambda: not begun._queue.qsize())
    waiting = [begun.add(lambda _: [event(1)], 1) for _ in range(20)]
    go_on.set()
    for each in waiting:
        each.result(10)
    assert len(calls) == 1


def test_events_wait_for_a_ranking_that_another_process_writes_and_keep_nothing_else_waiting(
    folder: Path, begin: Open
) -> None:
    begun, is_there, asked = begin(), threading.Event(), list[bool]()

    def made(is_over: bool) -> list[Event] | None:
        asked.append(is_over)
        return [event(1)] if is_there.is_set() else None

    late = begun.add(made, 1)
    put(begun, event(2))
    assert not late.done()
    is_there.set()
    late.result(10)
    assert written(folder) == ["e2", "e1"]
    assert not any(asked)


def test_events_wait_so_long_and_no_longer(folder: Path, begin: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be left of them then, and they are answered all the same."""
    monkeypatch.setattr(log, "LATE_SECONDS", 0.05)
    begun = begin()
    begun.add(lambda is_over: [] if is_over else None, 1).result(10)
    with pytest.raises(ZeroDivisionError):
        begun.add(lambda is_over: [event(1 // 0)] if is_over else None, 1).result(10)
    assert begun._size_out == begun._size_in
    waits = begun.add(lambda is_over: [event(3)] if is_over else None, 1)
    begun.close()
    assert waits.done()
    assert written(folder) == ["e3"]


def test_a_full_disk_refuses_events_and_drops_rankings(folder: Path, begin: Open, monkeypatch, caplog) -> None:
    """Half of a line finds room; nothing of it may stay."""
    metrics = Metrics()
    begun, write = begin(metrics), os.write
    put(begun, event(1))

    def full(descriptor: int, content: memoryview) -> int:
        if len(content) > 10:
            return write(descriptor, content[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as failing:
        failing.setattr("polyrank.service.feedback.files.os.write", full)
        begun.record(lambda: ranking(2), 1)
        with pytest.raises(DiskFull, match="no room left"):
            put(begun, event(3), event(4))
    put(begun, event(5))
    assert written(folder) == ["e1", "e5"]
    assert metrics.registry.get_sample_value("polyrank_feedback_rankings_total", {"outcome": "dropped"}) == 1
    assert caplog.text.count("feedback is lost") == 1


def test_after_a_failed_sync_another_file_begins(folder: Path, begin: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells of lost pages once, and takes them for written then."""
    begun = begin()
    with monkeypatch.context() as failing:
        failing.setattr("polyrank.service.feedback.files.os.fdatasync", lambda _: os.fsync(-1))
        with pytest.raises(OSError, match="Bad file descriptor"):
            put(begun, event(1))
    put(begun, event(2))
    assert len(names(folder)) == 2


def test_a_file_that_is_taken_away_is_left(folder: Path, begin: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by another host, where the file system shares no locks: nothing is acknowledged that is in no file."""
    begun, sync = begin(), os.fdatasync
    put(begun, event(1))
    next(folder.glob("*.jsonl")).unlink()
    put(begun, event(2))
    assert written(folder) == ["e2"]

    def take_away(descriptor: int) -> None:
        sync(descriptor)
        next(folder.glob("*.jsonl")).unlink()

    with monkeypatch.context() as taking:
        taking.setattr("polyrank.service.feedback.files.os.fdatasync", take_away)
        with pytest.raises(OSError, match="another host closed it"):
            put(begun, event(3))
    put(begun, event(4))
    assert written(folder) == ["e4"]


def test_a_line_that_cannot_be_made_is_lost_alone(folder: Path, begin: Open) -> None:
    begun = begin()
    begun.record(lambda: ranking(1 // 0), 1)
    begun.record(lambda: ranking(1, fingerprint="\udc80"), 1)
    put(begun, event(2))
    assert written(folder) == ["e2"]


def test_a_file_is_closed_when_it_is_full_or_old(folder: Path, begin: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = begin(most_bytes=16_000)  # a sixteenth of it for each file
    for number in range(30):
        put(begun, event(number, text="x" * 60))
    assert len([path for path in folder.iterdir() if path.suffix == ".zst"]) == 4
    monkeypatch.setattr(files, "MOST_SECONDS", 0)
    until(lambda: all(path.suffix == ".zst" for path in folder.iterdir()))
    assert written(folder) == [f"e{number}" for number in range(30)]


def test_files_of_the_dead_are_closed_and_those_of_the_living_are_not(folder: Path) -> None:
    living, dead = Growing(folder), Growing(folder)
    append(living, ranking(1))
    append(dead, ranking(2), cut=b'{"cut')
    dead.leave()
    Growing(folder).leave()  # it died before it wrote anything
    files.close_left(folder)
    assert {path.name for path in folder.iterdir()} == {f"{living.name}.jsonl", f"{dead.name}.jsonl.zst"}
    assert [each and each["id"] for each in lines(folder, dead.name)] == ["r2", None]
    living.leave()


def test_a_process_closes_what_others_left_when_it_begins(folder: Path, begin: Open) -> None:
    dead = Growing(folder)
    append(dead, ranking(1))
    dead.leave()
    begin()
    until(lambda: [path.name for path in folder.iterdir()] == [f"{dead.name}.jsonl.zst"])


def named_at(age: timedelta) -> str:
    return f"{stamp(datetime.now(UTC) - age)}-00000000"


def days_ago(days: int) -> float:
    return time.time() - days * log.DAY_SECONDS


def put_closed(folder: Path, name: str, *records: Ranking | Event) -> int:
    """Write a closed file; returns how many bytes its lines have."""
    path = folder / f"{name}.jsonl"
    path.write_bytes(content(*records))
    size = path.stat().st_size
    files.close_left(folder)
    assert not path.exists()
    return size


def test_what_is_too_old_goes_then_the_oldest_until_the_rest_fits(folder: Path) -> None:
    ages = [timedelta(days=3), timedelta(days=1, hours=2), timedelta(hours=23), timedelta(hours=1)]
    kept = [named_at(age) for age in ages]
    sizes = {put_closed(folder, name, event(1, text="a" * 1000)) for name in kept}
    [size] = sizes
    assert max(path.stat().st_size for path in folder.iterdir()) < size / 2, "the bound is that of what they unfold to"
    living = Growing(folder)
    append(living, event(9))
    (folder / "key").write_bytes(bytes(32))
    assert limit(folder, days_ago(30), 10_000) == 4 * size + living.size
    assert limit(folder, days_ago(1), 10_000) == 2 * size + living.size
    assert names(folder) == [*kept[2:], living.name]
    assert limit(folder, days_ago(1), size + living.size) == size + living.size
    assert names(folder) == [kept[3], living.name]
    assert limit(folder, days_ago(1), 1) == living.size, "a file that is open stays"
    assert (folder / "key").exists()
    living.close()


def test_the_largest_account_alone_loses_lines_its_oldest_first(folder: Path) -> None:
    """Rankings of one caller, events about them, and what another caller has sent: each has its own part."""
    honest = [*(ranking(number, by="aa") for number in range(5)), *(event(number, by="aa") for number in range(5))]
    flood = [event(number, text="x" * 1000, by="bb") for number in range(100, 110)]
    older, newer = named_at(timedelta(hours=2)), named_at(timedelta(hours=1))
    size = put_closed(folder, older, *honest, *flood) + put_closed(folder, newer, *flood)
    assert limit(folder, days_ago(30), size - 1) < size - 10_000
    assert written(folder) == [*(each.id for each in honest), *(each.id for each in flood)]
    assert limit(folder, days_ago(30), 5000) < 5000
    assert written(folder) == [each.id for each in honest]
    mine = [event(number, by="aa") for number in range(5, 90)]
    put_closed(folder, newer, *mine)
    assert limit(folder, days_ago(30), 5000) < 5000
    assert written(folder) == [each.id for each in honest[:5]], "its own events drive out no rankings"


def test_a_file_whose_accounts_are_others_than_it_says_is_made_smaller(folder: Path) -> None:
    named = [named_at(timedelta(hours=hours)) for hours in (3, 2)]
    for name in named:
        put_closed(folder, name, *[ranking(number) for number in range(100)])
    closed = folder / f"{named[0]}.jsonl.zst"
    with pa.CompressedOutputStream(str(closed), "zstd") as stream:
        stream.write(b'{"kind":"accounts","bytes":{"of nobody":99999}}\n' + content(*map(ranking, range(100))))
    assert limit(folder, days_ago(30), 100) == 0
    put_closed(folder, named[0], ranking(1))
    with pa.CompressedOutputStream(str(closed), "zstd") as stream:
        stream.write(content(*map(ranking, range(100))))
    assert limit(folder, days_ago(30), 100) == 0


def test_a_damaged_file_is_removed_where_the_log_is_too_large(folder: Path) -> None:
    name = named_at(timedelta(hours=1))
    put_closed(folder, name, *(event(number, text=token_hex(500)) for number in range(20)))
    path = folder / f"{name}.jsonl.zst"
    path.write_bytes(path.read_bytes()[:-100])
    assert limit(folder, days_ago(30), 1000) == 0
    assert not path.exists()


def test_a_file_that_cannot_be_closed_keeps_none_from_being_removed(folder: Path, begin: Open) -> None:
    put_closed(folder, named_at(timedelta(days=20)), event(1))
    (folder / "20200101T000000000000-00000000.jsonl").mkdir()
    old = folder / "20200102T000000000000-00000000.jsonl.zst"
    old.touch()
    begin()
    until(lambda: not old.exists())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What the two clocks of a log say more than they should."""
    more = {"time": 0.0, "monotonic": 0.0}
    for name, real in (("time", time.time), ("monotonic", time.monotonic)):
        monkeypatch.setattr(log.time, name, lambda name=name, real=real: real() + more[name])
    return more


def pass_seconds(clock: dict[str, float], seconds: float) -> None:
    for name in clock:
        clock[name] += seconds


@pytest.mark.parametrize("jump", [400 * log.DAY_SECONDS, 7300.0, -7300.0])
def test_in_the_day_after_the_clock_jumped_nothing_is_too_old(
    folder: Path, begin: Open, clock: dict[str, float], jump: float
) -> None:
    put_closed(folder, named_at(timedelta(days=20)), event(1))
    begun = begin()
    assert begun.oldest() == pytest.approx(days_ago(30), abs=60)
    clock["time"] += jump
    assert begun.oldest() == 0.0
    pass_seconds(clock, log.DAY_SECONDS - 60)
    begun._last_tidy = -1e9
    until(lambda: begun._last_tidy > 0)
    assert (begun.oldest(), written(folder)) == (0.0, ["e1"])
    pass_seconds(clock, 70)
    assert begun.oldest() == pytest.approx(time.time() - 30 * log.DAY_SECONDS, abs=60)
    until(lambda: written(folder) == (["e1"] if jump < 1e6 else []))


def test_a_jump_before_the_log_was_opened_leaves_a_day_too(folder: Path, begin: Open, clock: dict[str, float]) -> None:
    put_closed(folder, named_at(timedelta(hours=1)), event(1))
    clock["time"] += 400 * log.DAY_SECONDS
    assert begin().oldest() == 0.0, "all of it seems to be too old"
    put_closed(folder, f"{files.stamped(log.time.time())}-00000000", event(2))
    assert begin().oldest() == 0.0, "so it does though it goes on"
    pass_seconds(clock, log.DAY_SECONDS)
    until(lambda: written(folder) == ["e2"])


def test_a_log_that_is_too_large_by_its_open_files_closes_them(folder: Path, begin: Open) -> None:
    other = Growing(folder)
    append(other, event(1, text="x" * 5000))
    begun = begin(most_bytes=4000)
    put(begun, event(1))
    begun._last_tidy = 0.0
    until(lambda: not [path for path in folder.glob("*.jsonl") if path.stem != other.name])
    other.close()


class Names:
    """Ids of rankings as servers of the store give them."""

    def __init__(self, root: Path) -> None:
        self.identity = Identity.of(root)

    def ranking(self, conversation: str | None, at: float = 1.0, **fields: Any) -> Ranking:
        digest = None if conversation is None else self.identity.conversation(conversation)
        return ranking(0, **{"id": self.identity.ranking_id(at, digest), "at": at, "conversation": digest, **fields})


def test_conversations_are_erased_everywhere(tmp_path: Path, folder: Path, begin: Open) -> None:
    named = Names(tmp_path)
    closed, open_here, dead = Growing(folder), begin(), Growing(folder)
    own, other, third = (named.ranking(name) for name in ("a", "b", "c"))
    mine = named.ranking("a", at=3.0)
    append(closed, own, other, third, cut=b"{damaged\n")
    closed.close()
    append(dead, event(1, mine.id, text="secret"), event(2, other.id))
    dead.leave()
    put(open_here, event(3, own.id, text="secret"), event(4, other.id))
    assert open_here.record(lambda: mine, 1)
    put(open_here, event(5, third.id))
    assert erase(tmp_path, ["a", "c"]).rankings == 3
    left = [other.id, None, "e2", "e4"]
    assert written(folder) == left
    again = named.ranking("a", at=time.time() + 1)
    assert open_here.record(lambda: again, 1)
    put(open_here, event(6, again.id))
    assert erase(tmp_path, ["nobody"]).rankings == 0
    assert written(folder) == [*left, again.id, "e6"], "it goes on"
    assert erase(tmp_path, ["b"]).names == {named.identity.conversation("b")}


def test_an_event_is_erased_whose_ranking_waits_in_another_process(tmp_path: Path, folder: Path, begin: Open) -> None:
    """The ranking is written after that, and must not be there either."""
    late, early, go_on = begin(), begin(), threading.Event()
    mine = Names(tmp_path).ranking("a")

    def waits() -> Ranking:
        go_on.wait(10)
        return mine

    assert late.record(waits, 1)
    put(early, event(1, mine.id, kind="written", reply=None, text="secret"))
    done = erase(tmp_path, ["a"])
    assert (done.rankings, done.left, written(folder)) == (0, 0, [])
    go_on.set()
    put(late, event(2, mine.id), event(3, "r1"))
    late.close()
    early.close()
    assert written(folder) == ["e3"]


def test_one_ranking_is_erased_by_its_id(tmp_path: Path, folder: Path, begin: Open) -> None:
    named = Names(tmp_path)
    one, same, unnamed = named.ranking("a"), named.ranking("a"), named.ranking(None)
    begun = begin()
    for each in (one, same, unnamed):
        assert begun.record(lambda each=each: each, 1)
        put(begun, event(1, each.id))
    done = erase(tmp_path, [one.id, unnamed.id])
    assert (done.rankings, written(folder)) == (2, [same.id, "e1"])
    assert {unnamed.id, one.conversation} <= done.names, "as examples are named"


def test_a_full_disk_says_what_is_erased_already(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Names(tmp_path).ranking("a")
    put_closed(folder, named_at(timedelta(hours=1)), mine, event(1, mine.id), event(2))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as failing:
        failing.setattr(files, "write_atomically", full)
        with pytest.raises(
            EraseUnfinished, match=r"nothing is erased yet: .*No space left.*run the same command again"
        ):
            erase(tmp_path, ["a"])
        assert not Erased(folder)
    with monkeypatch.context() as failing:
        failing.setattr(files, "replacing", full)
        assert "1 files in" in str(erase(tmp_path, ["a"]).unfinished)
        assert Erased(folder).holds_ranking(mine.id)
        assert len(written(folder)) == 3
    done = erase(tmp_path, ["a"])
    assert (done.rankings, done.unfinished) == (1, None)
    assert written(folder) == ["e2"]


def test_nothing_is_erased_where_nothing_was_recorded(tmp_path: Path) -> None:
    assert erase(tmp_path, ["a"]) == Erasing(0, 0)
    assert not [*tmp_path.iterdir()]


def test_what_was_erased_long_ago_is_forgotten(folder: Path) -> None:
    now = time.time()
    Erased(folder).add(folder, ["old"], now - 100_000)
    Erased(folder).add(folder, ["lately"], now - 7200)
    with (folder / Erased.FILE).open("a") as file:
        file.write("9" * 400 + " damaged\n")
    (folder / f"{named_at(timedelta(hours=1))}.jsonl").touch()
    Erased(folder).add(folder, ["new"], now)
    assert [*Erased(folder).times] == ["lately", "new"]
