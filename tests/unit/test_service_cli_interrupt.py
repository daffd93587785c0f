"""A Ctrl-C that arrives at a bad moment."""

import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable

import pytest

from polyrank.service.cli.interrupt import no_interrupt_lost


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
