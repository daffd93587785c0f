"""Writes the log of feedback of one store: a thread of its own, so that no answer waits for the disk.

What waits for the thread is bounded. A ranking that finds no room, or no disk, is dropped and counted; its answer is
given all the same. Events that find no room are refused. They are acknowledged once they are on the disk; those that
wait together share the call for it.

An event may come before its ranking, which waits in another process. Then it waits for that, so that a process that is
killed takes no ranking with it whose event was acknowledged.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

import orjson

from polyrank.index_builder.errors import disk_full_named
from polyrank.model.errors import RankingError
from polyrank.service.errors import Overloaded
from polyrank.service.feedback import files
from polyrank.service.feedback.files import Erased, Growing
from polyrank.service.feedback.records import Event, Ranking
from polyrank.service.feedback.redaction import RedactionFailed
from polyrank.service.feedback.shown_replies import ShownReplies
from polyrank.service.observe.metrics import Metrics

MOST_RANKINGS: Final = 1000  # that wait
MOST_WAITING: Final = 32 << 20  # characters of them all; events have as much beside them
_TOGETHER = 100  # so much is written before it is put on the disk
_PAUSE_SECONDS = 0.05  # for more to come: to wake the thread for each ranking costs as much as to write it
_LOOK_SECONDS, _TIDY_SECONDS = 1.0, 60.0  # between looks at what was erased, and at files left open and too many
_REPEAT_SECONDS = 60.0  # between two lines that say the same
_END_SECONDS = 30.0
LATE_SECONDS: Final = 1.0  # that events wait for their rankings
DAY_SECONDS: Final = 86_400.0
_JUMP_SECONDS = 3600.0  # of the clock, between two looks

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _RankingWaits:
    """A ranking to be made and written, of so many characters."""

    make: Callable[[], Ranking]
    size: int


@dataclass(frozen=True, slots=True)
class _EventsWait:
    """Events to be made and written, of so many characters."""

    make: Callable[[bool], Sequence[Event] | None]  # is told whether they wait no longer; returns None if they should
    size: int
    written: Future[None] = field(default_factory=Future)  # is told that they are on the disk
    # They wait for their rankings, by the monotonic clock.
    until: float = field(default_factory=lambda: time.monotonic() + LATE_SECONDS)


_Waiting = _RankingWaits | _EventsWait


def _line(record: Ranking | Event) -> bytes:
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


class _Age:
    """Tells what is too old. In the day after the clock has jumped nothing is: the whole log might seem to be.

    Where it jumped before this process began, the log tells: it has files that are too old, but none of the half of the
    time that is just before.
    """

    def __init__(self, folder: Path, days: int) -> None:
        """Raises OSError."""
        self._seconds = days * DAY_SECONDS
        now = time.time()
        limit, half = (files.stamped(now - part * self._seconds) for part in (1.0, 0.5))
        older = [name for name in files.names(folder) if name < half]
        steady = time.monotonic()
        self._jumped_at, self._offset = -math.inf if not older or older[-1] > limit else steady, now - steady

    def oldest(self) -> float:
        """Return before when something is too old, in seconds since the epoch."""
        now, steady = time.time(), time.monotonic()
        if abs(now - steady - self._offset) > _JUMP_SECONDS:
            self._jumped_at = steady
        self._offset = now - steady
        return now - self._seconds if steady - self._jumped_at >= DAY_SECONDS else 0.0


class Log:
    """The log of one store, as one process writes it. One thread at a time may hand lines over.

    Args:
        folder: of the log; it exists.
        days, most_bytes: how long lines are kept, and how much of them.

    Attributes:
        shown: what rankings have shown; of use to what makes events.
    """

    def __init__(self, folder: Path, days: int, most_bytes: int, metrics: Metrics) -> None:
        self._folder, self._most_bytes, self._metrics = folder, most_bytes, metrics
        self._age = _Age(folder, days)
        self._file_bytes = min(files.MOST_BYTES, most_bytes // 16)
        self.shown = ShownReplies(folder)
        self._late: list[_EventsWait] = []
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._size_in = self._size_out = 0  # characters; one thread counts each up
        self._file: Growing | None = None
        self._began = self._last_look = self._last_tidy = -math.inf  # by the monotonic clock
        self._unsynced: list[Future[None]] = []  # of events that are written
        self._logged_at: dict[str, float] = {}
        self._erased, self._erased_at = Erased(folder), Erased.stamp(folder)
        # Its lines in the server's log name the pool that they are of, as those of this thread do.
        self._thread = Thread(target=copy_context().run, args=(self._run,), name="feedback", daemon=True)
        self._thread.start()

    @property
    def file_name(self) -> str | None:
        """The time id of the file that is being written; of use on the log's thread."""
        return None if self._file is None else self._file.name

    def oldest(self) -> float:
        """Return before when a ranking is too old, in seconds since the epoch; any thread may ask."""
        return self._age.oldest()

    def record(self, make: Callable[[], Ranking], characters: int) -> bool:
        """Have a ranking's line made and written, on the log's thread; returns False where it finds no room."""
        if self._queue.qsize() >= MOST_RANKINGS or self._size_in - self._size_out + characters > MOST_WAITING:
            self._metrics.series(self._metrics.feedback_rankings, "dropped").inc()
            return False
        self._size_in += characters
        self._queue.put(_RankingWaits(make, characters))
        return True

    def add(self, make: Callable[[bool], Sequence[Event] | None], characters: int) -> Future[None]:
        """Have events' lines made and written, all or none; raises Overloaded where they find no room.

        `make` is called again and again while it returns None; with True it is called for the last time. The result
        comes when they are on the disk. It raises DiskFull or OSError where they cannot be written.
        """
        if self._size_in - self._size_out + characters > 2 * MOST_WAITING:
            raise Overloaded(self._queue.qsize())
        self._size_in += characters
        waits = _EventsWait(make, characters)
        self._queue.put(waits)
        return waits.written

    def close(self) -> None:
        """Write what waits, close the file, and end the thread; nothing more may be handed over."""
        self._queue.put(None)
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        goes_on = True
        while goes_on:
            waiting = self._next()
            goes_on = None not in waiting
            self._write([each for each in waiting if each is not None], is_last=not goes_on)
            if waiting and goes_on and self._queue.empty():
                time.sleep(_PAUSE_SECONDS)
            try:
                self._look()
            except Exception as error:  # tried again at the next look
                self.tell("files of feedback cannot be closed or removed", error)
        self._close()

    def _next(self) -> list[_Waiting | None]:
        """Wait for what is to be written, but no longer than until the next look."""
        waiting: list[_Waiting | None] = [*self._late]
        self._late.clear()
        with suppress(Empty):
            waiting.append(self._queue.get(timeout=_PAUSE_SECONDS if waiting else _LOOK_SECONDS))
            for _ in range(_TOGETHER - 1):
                waiting.append(self._queue.get_nowait())
        return waiting

    def _write(self, waiting: Sequence[_Waiting], is_last: bool) -> None:
        self._learn_erased()
        rankings: list[tuple[Ranking, bytes]] = []  # each with its line
        for each in waiting:
            self._size_out += each.size
            try:
                if isinstance(each, _RankingWaits):
                    rankings.append((ranking := each.make(), _line(ranking)))
                    continue
                if not each.written.running() and not each.written.set_running_or_notify_cancel():
                    continue  # nobody waits for it any more
                self._write_rankings(rankings)
                events = each.make(is_last or time.monotonic() > each.until)
                if events is None:
                    self._size_out -= each.size
                    self._late.append(each)
                    continue
                left = (event for event in events if not self._erased.holds_ranking(event.ranking))
                self._append([(event, _line(event)) for event in left])
                self._unsynced.append(each.written)
            except Exception as error:
                self._lost([None if isinstance(each, _RankingWaits) else each.written], error)
        self._write_rankings(rankings)
        self._sync()

    def _learn_erased(self) -> None:
        try:
            if (at := Erased.stamp(self._folder)) != self._erased_at:
                self._erased, self._erased_at = Erased(self._folder), at
                if self._file is not None:  # what it holds of that is to go
                    self._close()
        except OSError as error:
            self.tell("it cannot be read what was erased", error)

    def _write_rankings(self, rankings: list[tuple[Ranking, bytes]]) -> None:
        try:
            if rankings:
                self._append([each for each in rankings if not self._erased.holds_ranking(each[0].id)])
                for ranking, _ in rankings:
                    self.shown.note(ranking)
                self._metrics.series(self._metrics.feedback_rankings, "recorded").inc(len(rankings))
        except Exception as error:
            self._lost([None] * len(rankings), error)
        rankings.clear()

    def _append(self, records: Sequence[tuple[Ranking | Event, bytes]]) -> None:
        if not records:
            return
        content, accounts = b"".join(line for _, line in records), Counter[str]()
        for record, line in records:
            accounts[files.account(record.by, record.kind)] += len(line)
        with disk_full_named(self._folder):
            if self._file is not None and self._file.size + len(content) > self._file_bytes:
                self._close()
            if self._file is not None and self._file.is_gone():
                self._leave()
            if self._file is None:
                self._file, self._began = Growing(self._folder), time.monotonic()
            try:
                self._file.append(content, accounts)
            finally:
                if not self._file.is_whole:
                    self._leave()

    def _sync(self) -> None:
        """Put the file on the disk, if somebody waits for that."""
        events, self._unsynced = self._unsynced, []
        if not events:
            return
        try:
            with disk_full_named(self._folder):
                if self._file is not None:  # else nothing of them was to be written
                    self._file.sync()
        except Exception as error:
            self._leave()
            self._lost(events, error)
        else:
            for written in events:
                written.set_result(None)

    def _lost(self, waiting: Sequence[Future[None] | None], error: Exception) -> None:
        self.tell("feedback is lost", error)
        for written in waiting:
            if written is None:
                self._metrics.series(self._metrics.feedback_rankings, "dropped").inc()
            else:
                written.set_exception(error)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._last_look < _LOOK_SECONDS:
            return
        self._last_look, oldest = now, self.oldest()
        self._learn_erased()
        if self._file is not None and now - self._began > files.MOST_SECONDS:
            self._close()
        if now - self._last_tidy < _TIDY_SECONDS:
            return
        self._last_tidy = now
        size = files.limit(self._folder, oldest, self._most_bytes)
        self._metrics.series(self._metrics.feedback_bytes).set(size)
        if size > self._most_bytes:  # in files that are open
            self._close()
        files.close_left(self._folder)  # last: a file that cannot be closed keeps none from being removed

    def _close(self) -> None:
        """Close the file; where that fails it is left to whoever tidies next."""
        self._sync()
        if self._file is not None:
            closing, self._file = self._file, None
            try:
                closing.close()
            except Exception as error:
                self.tell("a file of feedback cannot be closed yet", error)

    def _leave(self) -> None:
        self._sync()
        if self._file is not None:
            self._file.leave()
            self._file = None

    def tell(self, message: str, error: Exception) -> None:
        """Log an error, but not each of many; from the log's thread."""
        now = time.monotonic()
        if now - self._logged_at.get(message, -_REPEAT_SECONDS) >= _REPEAT_SECONDS:
            self._logged_at[message] = now
            is_known = isinstance(error, OSError | RankingError | RedactionFailed)  # whose traceback may show a text
            log.error(message, exc_info=None if is_known else error, extra={"fields": {"why": str(error)}})
