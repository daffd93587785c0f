"""What long work does is told when a stage ends, and while it lasts."""

import logging
import threading
from contextvars import ContextVar
from types import SimpleNamespace

import pytest

from polyrank.model import progress as module
from polyrank.model.progress import STILL, end_silence, stage, tell_in_silence

WITHIN_SECONDS = 30.0


class Clock:
    """A time that only the test moves. `told` is set when somebody was asked what goes on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told = threading.Event()

    def tell(self) -> None:
        self.told.set()

    def was_told_after(self, seconds: float) -> bool:
        """Move the time on; returns whether somebody was asked for it. The watch looks every hundredth of a second."""
        self.told.clear()
        self.now += seconds
        return self.told.wait(WITHIN_SECONDS if seconds >= module.SILENT_SECONDS else 0.1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    own = Clock()
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.01)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: own.now))
    return own


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, float]]:
    return [(record.getMessage(), record.__dict__["fields"]["seconds"]) for record in caplog.records]


def test_a_stage_says_what_it_did_and_how_long_it_took(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    caplog.set_level(logging.INFO)
    with stage("loading"):
        with stage("compiling"), tell_in_silence(clock.tell):
            assert clock.was_told_after(2.0)
        assert caplog.messages == ["compiling"]
        clock.now += 1.5
    assert [each for each in told(caplog) if not each[0].startswith(STILL)] == [("compiling", 2.0), ("loading", 3.5)]


def test_a_stage_that_lasts_says_so(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    caplog.set_level(logging.INFO)
    said, pool = threading.Event(), ContextVar("pool", default="")
    caplog.handler.addFilter(lambda record: setattr(record, "pool", pool.get()) or said.set() or True)
    pool.set("shop")
    with stage("compiling"):
        clock.now = 7.0
        assert said.wait(WITHIN_SECONDS)
    assert told(caplog) == [("still compiling", 7.0), ("compiling", 7.0)]
    assert {record.__dict__["pool"] for record in caplog.records} == {"shop"}, "it is told on another thread"


def test_nobody_is_asked_while_something_is_shown_in_time(clock: Clock) -> None:
    with tell_in_silence(clock.tell):
        for _ in range(3):
            assert not clock.was_told_after(0.009)
            end_silence()
        assert clock.was_told_after(0.02)


def test_a_stage_that_fails_has_not_been_done(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(ValueError, match="no"), stage("loading"):
        raise ValueError("no")
    assert not caplog.records


def test_the_watch_ends_with_the_last_stage() -> None:
    with tell_in_silence(lambda: None):
        [watch] = [thread for thread in threading.enumerate() if thread.name == "progress"]
        assert watch.daemon
    watch.join(WITHIN_SECONDS)
    assert not watch.is_alive()
