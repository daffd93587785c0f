"""A newcomer's day: its files are those of the formats, and silence is measured as it is."""

import sys
import time
from pathlib import Path

import pytest
from benchmarks import newcomer_day
from benchmarks.newcomer_day import Mark, Watched, longest

from polyrank.index_builder.convert.conversion import convert, kinds_of
from polyrank.index_builder.convert.talks import Asked

SPEAKS = """
import time
from pathlib import Path
print("first", flush=True)
while not Path("go").exists():
    time.sleep(0.01)
print("polyrank is ready on here", flush=True)
"""


@pytest.mark.parametrize("form", newcomer_day.WRITERS)
def test_the_files_are_as_their_tools_write_them(form: str, tmp_path: Path) -> None:
    talks = newcomer_day.sample()
    path = newcomer_day.WRITERS[form](talks, tmp_path)
    columns, answering = (newcomer_day.COLUMNS_OF_TABLE, ("agent",)) if form == "table" else ({}, ())
    done = convert(kinds_of([path], None, columns), tmp_path / "out", Asked(answering), lambda *_: None)
    assert done.map.called == {"table": "columns", "hf-dataset": "sharegpt"}.get(form, form)
    assert {*done.left_out} <= {"a reply with nothing said before it"}  # some begin with the side that answers
    assert done.candidates >= len({talk["response"] for talk in talks})
    assert (done.examples.total() >= len(talks)) == (form not in ("elasticsearch", "qdrant"))


def test_the_longest_silence_is_between_two_marks() -> None:
    marks = [Mark(1.0, "its start"), Mark(2.0, "a"), Mark(5.5, "b"), Mark(6.0, "its end")]
    assert longest("build", marks) == (3.5, "build", "a")
    assert longest("build", marks[:1]).seconds == 0


def test_a_command_is_heard_line_by_line(tmp_path: Path) -> None:
    command = Watched([sys.executable, "-c", SPEAKS], tmp_path, {})
    assert command.until("first") is not None
    time.sleep(0.2)
    (tmp_path / "go").touch()
    assert command.until(newcomer_day.READY) is not None
    assert command.ended() == 0
    assert [mark.what for mark in command.marks] == ["its start", "first", "polyrank is ready on here", "its end"]
    assert longest("it", command.marks[1:3]).seconds >= 0.2


def test_a_command_that_ends_early_is_not_waited_for(tmp_path: Path) -> None:
    command = Watched([sys.executable, "-c", "import sys; sys.exit('no')"], tmp_path, {})
    assert command.until(newcomer_day.READY) is None
    assert command.ended() == 1


def test_what_fails_or_is_silent_for_too_long_is_bad() -> None:
    good = {"failed": "-", "seconds": 60, "silent_s": 4.9}
    assert not newcomer_day.is_bad(good)
    assert all(
        map(newcomer_day.is_bad, ({**good, "failed": "no"}, {**good, "seconds": 601}, {**good, "silent_s": 5.1}))
    )
