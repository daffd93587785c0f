"""Progress on standard error: a bar on a terminal, a line now and then elsewhere."""

import gc
import io
import re
import signal
import sys
import threading
import weakref
from collections.abc import Callable

import pytest

from polyrank.service.cli.output import Progress, no_interrupt_lost, print_json

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
