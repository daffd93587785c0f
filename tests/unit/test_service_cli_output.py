"""Progress on standard error: a bar on a terminal, a line now and then elsewhere."""

import gc
import math
import re
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from command_line import Terminal

from polyrank.model import progress as silence
from polyrank.service.cli.output import Progress, no_interrupt_lost, print_json

CHUNK = 8192


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, in its only element."""
    now = [100.0]
    monkeypatch.setattr("polyrank.service.cli.output.time.monotonic", lambda: now[0])
    return now


def test_json_is_one_line_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "zwei\nZeilen: ä", "score": 0.1, "none": None})
    assert capsys.readouterr() == ('{"text":"zwei\\nZeilen: ä","score":0.1,"none":null}\n', "")


def test_a_line_has_rate_and_time_left(clock: list[float]) -> None:
    progress = Progress("candidates")
    lines = []
    for second in range(0, 11, 5):
        clock[0] = 100.0 + second
        progress("encode", second * 10, 200, "loss 0.1" if second else "")
        lines.append(progress.line())
    assert lines == [
        "encode: 0 of 200, 0 s",
        "encode: 50 of 200, 15 s left (10 candidates/s)  loss 0.1",
        "encode: 100 of 200, 10 s left (10 candidates/s)  loss 0.1",
    ]
    clock[0] += 4  # nothing new, and the time left is less
    assert progress.line() == "encode: 100 of 200, 6 s left (10 candidates/s)  loss 0.1"
    clock[0] += 60
    assert progress.line() == "encode: 100 of 200, 0 s left (10 candidates/s)  loss 0.1"


def test_a_build_in_chunks_shows_its_true_rate(clock: list[float]) -> None:
    lines, progress = [], Progress("candidates")
    for chunk in range(2):
        done = chunk * CHUNK
        progress("encode", done, 2 * CHUNK)
        clock[0] += 4
        progress("encode", done + CHUNK, 2 * CHUNK)
        progress("append", done, 2 * CHUNK)
        lines.append(progress.line())
    assert lines == [
        "encode: 8192 of 16384, 4 s left (2048 candidates/s)",
        "encode: 16384 of 16384, 0 s left (2048 candidates/s)",
    ]


@pytest.mark.parametrize(("told", "line"), [
    ([("encode", 1000, 2000), 10, ("encode", 1100, 2000)], "encode: 1100 of 2000, 90 s left (10 rows/s)"),
    ([("read", 0, None), 10, ("read", 500, None)], "read: 500 (50 rows/s)"),
    ([3], "at work: 3 s"),
    ([("encode", 0, 10), 10, ("encode", 0, 10)], "encode: 0 of 10, 10 s"),
    ([("encode", 0, 10), 10, ("choose", 0, 1), 6], "timing searches, to choose an index: 6 s"),
], ids=["what a killed build has done is no work", "no total", "nothing told", "it stands", "a new stage"])  # fmt: skip
def test_what_is_shown_after_seconds(clock: list[float], told: list[Any], line: str) -> None:
    progress = Progress("rows")
    for each in told:
        if isinstance(each, int):
            clock[0] += each
        else:
            progress(*each)
    assert progress.line() == line


def test_who_waits_elsewhere_than_at_a_terminal_sees_lines(capsys, monkeypatch) -> None:
    monkeypatch.setattr(silence, "SILENT_SECONDS", 0.001)
    err = ""
    with Progress("rows") as progress:
        progress("index", 0, 1)
        while "making the index: 0 s" not in err.splitlines():
            err += capsys.readouterr().err


def test_a_terminal_sees_one_bar_that_fills(monkeypatch, capsys) -> None:
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


class Pressed:
    """Has Ctrl-C pressed in its destructor."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def destroy() -> None:
    Pressed()


def destroy_twice() -> None:
    """The second one drops the interrupt that was sent again for the first."""
    Pressed()
    Pressed()


def collect() -> None:
    cycle: list[object] = [Pressed()]
    cycle.append(cycle)
    del cycle
    gc.collect()


def call_back() -> None:
    class Held: ...

    held = Held()
    reference = weakref.ref(held, lambda _: signal.raise_signal(signal.SIGINT))
    del held
    assert reference() is None


def go_on_after(press: Callable[[], None]) -> None:
    with no_interrupt_lost():
        press()
        threading.Event().wait(60)


@pytest.mark.parametrize("press", [destroy, destroy_twice, collect, call_back])
def test_an_interrupt_that_python_drops_comes_again(press: Callable[[], None]) -> None:
    before = sys.unraisablehook, signal.getsignal(signal.SIGALRM)
    with pytest.raises(KeyboardInterrupt):
        go_on_after(press)
    assert (sys.unraisablehook, signal.getsignal(signal.SIGALRM)) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_none_comes_after_the_block(capfd: pytest.CaptureFixture[str]) -> None:
    with no_interrupt_lost():
        destroy()
    threading.Event().wait(0.05)
    assert capfd.readouterr().err == ""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_other_dropped_errors_are_shown_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("said")

    seen: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: seen.append(str(dropped.exc_value)))
    with no_interrupt_lost():
        Broken()
    assert seen == ["said"]


def test_a_time_left_that_is_given_goes_before_that_of_the_rate(clock: list[float]) -> None:
    progress = Progress("examples", train="steps")
    progress("train", 0, 10)
    clock[0] += 5
    progress("train", 5, 10, "loss 0.1", 100.0)
    assert progress.line() == "train: 5 of 10, 100 s left (1 steps/s)  loss 0.1"
    clock[0] += 4
    assert progress.line() == "train: 5 of 10, 96 s left (1 steps/s)  loss 0.1"
    progress("train", 6, 10, left=math.inf)
    assert progress.line() == "train: 6 of 10 (0.67 steps/s)"
    progress("looking", 0, 10)
    clock[0] += 1
    progress("looking", 2, 10)
    assert progress.line() == "looking: 2 of 10, 4 s left (2 examples/s)"


def test_a_terminal_sees_the_time_left_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("examples", train="steps") as progress:
        progress("loading", 0, None)
        progress("loading", 0, 4)
        progress("train", 1, 10, "loss 0.1", math.inf)
        progress("train", 3, 10, "loss 0.1", 75.0)  # too soon after the first to be drawn
        progress("train", 3, 10, "looking: 2 of 8", 70.0)
    monkeypatch.undo()
    shown = terminal.getvalue()
    assert "loading: 00:00" in shown
    assert "| 0/4 [" in shown
    assert re.search(r"train: +10%\|.*\| 1/10 \[00:00<\?, .*steps.*, loss 0\.1\]", shown)
    assert re.search(r"train: +30%\|.*\| 3/10 \[00:00<01:10, .*steps.*, looking: 2 of 8\]", shown)
