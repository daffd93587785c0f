"""Progress on standard error: a bar on a terminal, a line now and then elsewhere."""

import io
import re
import sys

import pytest

from polyrank.service.cli.output import Progress, print_json

CHUNK = 8192


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, in its only element."""
    now = [100.0]
    monkeypatch.setattr("polyrank.service.cli.output.time.monotonic", lambda: now[0])
    return now


def test_json_is_one_line_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "zwei\nZeilen: ä", "score": 0.1, "none": None})
    assert capsys.readouterr() == ('{"text":"zwei\\nZeilen: ä","score":0.1,"none":null}\n', "")


def test_lines_come_every_five_seconds_with_rate_and_time_left(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    with Progress("candidates") as progress:
        for second in range(13):
            clock[0] = 100.0 + second
            progress("encode", second * 10, 200)
    assert capsys.readouterr() == (
        "",
        "encode: 50 of 200, 15 s left (10 candidates/s)\nencode: 100 of 200, 10 s left (10 candidates/s)\n",
    )


def test_a_build_in_chunks_shows_its_true_rate(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with Progress("candidates") as progress:
        for chunk in range(4):
            done = chunk * CHUNK
            progress("encode", done, 4 * CHUNK)
            clock[0] += 4
            progress("encode", done + CHUNK, 4 * CHUNK)
            progress("append", done, 4 * CHUNK)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "encode: 16384 of 32768, 8 s left (2048 candidates/s)",
        "encode: 32768 of 32768, 0 s left (2048 candidates/s)",
    ]


def test_what_a_killed_build_had_done_does_not_count_as_work(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    with Progress("candidates") as progress:
        progress("encode", 1000, 2000)
        clock[0] += 10
        progress("encode", 1100, 2000)
    assert capsys.readouterr().err == "encode: 1100 of 2000, 90 s left (10 candidates/s)\n"


def test_a_total_that_is_unknown_gives_no_time_left(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with Progress("rows") as progress:
        progress("read", 0, None)
        clock[0] += 10
        progress("read", 500, None)
        clock[0] += 1
        progress("index", 0, 1)  # a new stage begins its own count
        clock[0] += 1
        progress("index", 1, 1)
    assert capsys.readouterr().err == "read: 500 (50 rows/s)\n"


def test_nothing_done_for_long_is_no_division_by_zero(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with Progress("rows") as progress:
        progress("encode", 0, 10)
        clock[0] += 10
        progress("encode", 0, 10)
    assert capsys.readouterr().err == "encode: 0 (0 rows/s)\n"


def test_a_terminal_sees_one_bar_that_fills(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("candidates") as progress:
        progress("read", 3 * CHUNK, None)
        for chunk in range(3):
            done = chunk * CHUNK
            progress("encode", done, 3 * CHUNK)
            progress("encode", done + CHUNK, 3 * CHUNK)
            progress("append", done, 3 * CHUNK)
        progress("manifest", 0, 1)
    monkeypatch.undo()
    shown = terminal.getvalue()
    # What a closed bar leaves on the screen ends in a newline.
    [kept] = [part.rsplit("\r", 1)[-1] for part in shown.split("\n")[:-1] if part.rsplit("\r", 1)[-1].strip()]
    assert re.match(r"encode: 100%\|.*\| 24576/24576 \[.*candidates/s\]", kept)
    assert "append" not in shown
    assert capsys.readouterr().out == ""
