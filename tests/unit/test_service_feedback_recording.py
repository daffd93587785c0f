"""How much is taken of what callers send about rankings."""

import asyncio
import threading
import time
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from polyrank.index_builder.errors import DiskFull
from polyrank.service.errors import RateLimited, TooMuchFeedback
from polyrank.service.feedback import shown_replies
from polyrank.service.feedback.files import Growing, lines, names
from polyrank.service.feedback.identity import folder_of
from polyrank.service.feedback.recording import MOST_EVENTS, Feedback
from polyrank.service.feedback.records import Event
from polyrank.service.observe.metrics import Metrics


def events(ranking: str, count: int) -> list[Event]:
    return [Event(kind="none_good", id=f"e{number}", at=time.time(), ranking=ranking) for number in range(count)]


async def test_what_is_written_counts_though_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, goes_on = threading.Event(), threading.Event()

    def sync(self: Growing) -> None:
        reached.set()
        assert goes_on.wait(30)

    monkeypatch.setattr(Growing, "sync", sync)
    monkeypatch.setattr(shown_replies, "_BEGAN", time.time())
    recorded = Feedback(tmp_path, None, 30, 1 << 20, Metrics())
    one, other = (recorded.identity.ranking_id(time.time() - 120) for _ in range(2))
    being_written = asyncio.create_task(recorded.add(events(one, MOST_EVENTS)))
    assert await asyncio.to_thread(reached.wait, 30)
    waiting = asyncio.create_task(recorded.add(events(other, MOST_EVENTS)))
    await asyncio.sleep(0)
    for each in (being_written, waiting):
        each.cancel()
    await asyncio.wait((being_written, waiting))
    goes_on.set()
    with pytest.raises(TooMuchFeedback):
        await recorded.add(events(one, 1))
    assert (await recorded.add(events(other, MOST_EVENTS))).accepted == MOST_EVENTS
    recorded.close()
    folder = folder_of(tmp_path)
    assert sum(1 for name in names(folder) for _ in lines(folder, name)) == 2 * MOST_EVENTS


def test_what_cannot_be_written_uses_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full for a while: a caller that tries again and again may say as much as before, and no more."""
    is_full, append = True, Growing.append

    def appended(self: Growing, *arguments: Any) -> None:
        if is_full:
            raise OSError(ENOSPC, "full")
        append(self, *arguments)

    monkeypatch.setattr(Growing, "append", appended)
    monkeypatch.setattr(shown_replies, "_BEGAN", time.time())
    recorded = Feedback(tmp_path, None, 30, 4 * MOST_EVENTS * 200, Metrics())

    async def try_again() -> None:
        nonlocal is_full
        one, other = (recorded.identity.ranking_id(time.time() - 120) for _ in range(2))
        for _ in range(3):
            with pytest.raises(DiskFull):
                await recorded.add(events(one, MOST_EVENTS), "key")
        is_full = False
        assert (await recorded.add(events(one, MOST_EVENTS), "key")).accepted == MOST_EVENTS
        with pytest.raises(RateLimited):
            await recorded.add(events(other, 1), "key")

    asyncio.run(try_again())
    recorded.close()
