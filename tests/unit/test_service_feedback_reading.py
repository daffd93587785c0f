"""What a log of feedback says, from files as servers leave them, kills included."""

import os
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from feedback_logs import event, ranking

from polyrank.service.feedback.reading import LogTally, uses
from polyrank.service.feedback.records import Event, Ranking, Shown, Use

FIRST, SECOND = "20260101T000000000000-00000000", "20260101T000000000001-00000000"


def write(root: Path, name: str, records: Iterable[Ranking | Event], cut: bytes = b"", closed: bool = False) -> Path:
    content = b"".join(orjson.dumps(record) + b"\n" for record in records) + cut
    (root / "feedback").mkdir(exist_ok=True)
    path = root / "feedback" / f"{name}.jsonl{'.zst' * closed}"
    if closed:
        with pa.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(content)
    else:
        path.write_bytes(content)
    return path


def read(root: Path) -> tuple[list[Use], LogTally]:
    return list(uses(root, tally := LogTally())), tally


def test_there_is_nothing_where_nothing_was_recorded(tmp_path: Path) -> None:
    assert read(tmp_path) == ([], LogTally())


def test_rankings_come_as_written_with_their_events_by_time(tmp_path: Path) -> None:
    write(tmp_path, SECOND, [event(2), ranking(3), event(1), event(5, "r3"), event(5, "r3")])
    write(tmp_path, FIRST, [ranking(1), ranking(2), event(4, "gone")], closed=True)
    found, tally = read(tmp_path)
    assert found == [Use(ranking(1), (event(1), event(2))), Use(ranking(2)), Use(ranking(3), (event(5, "r3"),))]
    assert tally == LogTally(repeated=1, alone=1)


def test_files_that_nobody_has_written_to_since_are_not_read(tmp_path: Path) -> None:
    for name, at in ((FIRST, 1000.0), (SECOND, 2000.0)):
        os.utime(write(tmp_path, name, [ranking(int(at))]), (at, at))
    assert [use.ranking for use in uses(tmp_path, since=1000.5)] == [ranking(2000)]
    assert [use.ranking for use in uses(tmp_path, since=1000.0)] == [ranking(1000), ranking(2000)]


def test_events_about_what_was_not_shown_are_left_out(tmp_path: Path) -> None:
    shown = (Shown("a", 0.5), Shown(None, 0.4, "hello"))
    told = [
        event(1, reply="b"), event(2, reply="z"), event(3, kind="chosen", reply=None, text="hello"),
        event(4, kind="chosen", reply=None, text="never shown"),
        event(5, kind="edited", reply="z", text="better"),
        event(6, kind="edited", reply=None, text="better"),
    ]  # fmt: skip
    write(tmp_path, FIRST, [ranking(1, shown=shown, below=("b",)), *told])
    [found], tally = read(tmp_path)
    assert [each.id for each in found.events] == ["e1", "e3", "e6"]
    assert tally == LogTally(unknown=3)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_events_of_a_log(tmp_path: Path) -> None:
    text = "x" * 4000
    said = (event(number, f"r{number % 50}", kind="written", reply=None, text=text) for number in range(3000))
    write(tmp_path, FIRST, [*(ranking(number) for number in range(50)), *said])
    tracemalloc.start()
    try:
        assert sum(len(use.events) for use in uses(tmp_path)) == 3000
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 3000 * len(text) / 4


def test_a_file_that_is_just_closed_is_read_once(tmp_path: Path) -> None:
    for closed in (False, True):
        write(tmp_path, FIRST, [ranking(1), event(1)], closed=closed)
    assert read(tmp_path) == ([Use(ranking(1), (event(1),))], LogTally())


def test_what_is_damaged_is_counted_and_left_out(tmp_path: Path) -> None:
    good = [ranking(1), event(1)]
    wrong = [b"{", b"[]", b"\xff", b"\0", b'{"kind":"ranking","id":[]}', b'{"kind":"up","ranking":[]}', b"5", b"{}"]
    write(tmp_path, FIRST, good, b"\n".join(wrong) + b'\n\n{"kind": "ranking", "id": "cu')
    (tmp_path / "feedback" / "readme.jsonl").write_text("{}")
    assert read(tmp_path) == ([Use(ranking(1), (event(1),))], LogTally(damaged=len(wrong)))


@pytest.mark.parametrize("at", [3, 40, -4])
def test_a_compressed_file_that_is_damaged_is_read_as_far_as_it_goes(tmp_path: Path, at: int) -> None:
    path = write(tmp_path, FIRST, [ranking(number) for number in range(50)], closed=True)
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)
    write(tmp_path, SECOND, [ranking(99)])
    found, tally = read(tmp_path)
    assert found[-1] == Use(ranking(99))
    assert tally.damaged > 0


def test_what_was_erased_is_left_out_and_what_came_after_counts(tmp_path: Path) -> None:
    write(
        tmp_path,
        FIRST,
        [ranking(1, conversation="c"), event(1), ranking(2), event(2, "r2"), ranking(3), event(3, "r3")],
    )
    write(tmp_path, SECOND, [ranking(9, conversation="c"), event(9, "r9")])
    (tmp_path / "feedback" / "erased").write_text("5.5 c\n5.5 r1\n5.5 r3\ndamaged\nx y\n")
    assert read(tmp_path) == (
        [Use(ranking(2), (event(2, "r2"),)), Use(ranking(9, conversation="c"), (event(9, "r9"),))],
        LogTally(erased=4),
    )
