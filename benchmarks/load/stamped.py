"""`polyrank` whose requests to `/rank` are stamped on their way, so that each part of a caller's wait has a name.

    python -m benchmarks.load.stamped FILE serve --store DIR ...

Functions that a request passes are wrapped: each adds the time since the stamp before to a part, so that the parts of a
request add up to its time in the server. When the server ends, FILE gets one JSON object: `ways`, seconds by part for
each request id, and `threads`, the names of threads by number. Stamps cost some 10 us a request.
"""

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from polyrank.service.cli import main as polyrank
from polyrank.service.http.native import rank
from polyrank.service.http.plumbing import bodies
from polyrank.service.http.plumbing.middleware import Requests
from polyrank.service.process.connections import Connection
from polyrank.service.ranking import retrieval
from polyrank.service.ranking.engine import Engine
from polyrank.service.scheduling.forwards import Forwards
from polyrank.service.scheduling.scheduler import Scheduler

HTTP, CHECKS, TOKENIZE, TURN = "HTTP: parsing, routing, access", "validation", "tokenise", "waiting for a batch"
HOPS, ENCODE, SCAN, FETCH = "thread hops", "encode", "scan", "fetch and score"
RANKING, ANSWER = "admission, words, places", "serialise"
LOOK_EVERY = 20
PARTS = (HTTP, CHECKS, RANKING, TOKENIZE, TURN, HOPS, ENCODE, SCAN, FETCH, ANSWER)

Async = Callable[..., Coroutine[Any, Any, Any]]


class Way:
    """The stamps of one request: seconds by part, and the time of the last stamp."""

    def __init__(self, began: float) -> None:
        self.seconds, self.last = defaultdict[str, float](float), began

    def passed(self, part: str, now: float) -> None:
        """Add the time since the last stamp to a part."""
        self.seconds[part] += now - self.last
        self.last = now


ways: dict[str, Way] = {}
threads: dict[int, str] = {}  # all of them have begun to work after some requests
_of_request: ContextVar[Way | None] = ContextVar("way", default=None)
_of_thread = threading.local()  # when its batch was searched


def _passed(part: str) -> None:
    if (way := _of_request.get()) is not None:
        way.passed(part, time.monotonic())


def _wrap(owner: Any, name: str, before: str, after: str) -> None:
    """Stamp a function where it begins and where it ends."""
    work = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        _passed(before)
        result = work(*given, **named)
        _passed(after)
        return result

    setattr(owner, name, call)


def _wrap_async(owner: Any, name: str, before: str, after: str | None) -> None:
    work: Async = getattr(owner, name)

    async def call(*given: Any, **named: Any) -> Any:
        _passed(before)
        result = await work(*given, **named)
        if after is not None:
            _passed(after)
        return result

    setattr(owner, name, call)


def _stamp_connections() -> None:
    """A request begins when its last bytes are read, and ends when the last bytes of its answer are written."""
    data_received, handle_events, call = Connection.data_received, Connection.handle_events, Requests.__call__

    def received(self: Any, data: bytes) -> None:
        self.read_at = time.monotonic()
        data_received(self, data)

    def handled(self: Any) -> None:
        before = self.cycle
        handle_events(self)
        if self.cycle is not None and self.cycle is not before:
            self.cycle.scope["read_at"] = self.read_at

    async def called(self: Any, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await call(self, scope, receive, send)
            return
        way = Way(scope["read_at"])
        _of_request.set(way)

        async def sent(message: Any) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                way.passed(HTTP, time.monotonic())
                ways[scope["state"]["request_id"]] = way
                if len(ways) % LOOK_EVERY == 0:
                    threads.update({each.native_id or 0: each.name for each in threading.enumerate()})

        await call(self, scope, receive, sent)

    # A run of this script replaces methods of its own process, so that the server has no stamps of its own.
    Connection.data_received, Connection.handle_events = received, handled  # type: ignore[method-assign]  # replaced on purpose
    Requests.__call__ = called  # type: ignore[method-assign]  # replaced on purpose


def _stamp_schedulers() -> None:
    """A work waits for its batch, or only for the thread where that is idle; then it runs, and its caller goes on."""
    run, attempt, search = Scheduler.run, Scheduler._attempt, retrieval.search

    async def ran(self: Any, lane: str, work: Any, deadline: float) -> Any:
        _passed(RANKING)
        waits = TURN if getattr(self, "runs", False) else HOPS
        done = await run(self, lane, work, deadline)
        if (way := _of_request.get()) is not None and hasattr(work, "times"):
            began, searched, ended = work.times
            way.passed(waits, began)
            way.passed(SCAN if lane == "search" else ENCODE, searched)
            way.passed(FETCH, ended)
            way.passed(HOPS, time.monotonic())
        return done

    def attempted(self: Any, batch: Any) -> Any:
        self.runs, _of_thread.searched, began = True, None, time.monotonic()
        outputs = attempt(self, batch)
        self.runs, ended = False, time.monotonic()
        for work, _ in batch:
            work.times = began, _of_thread.searched or ended, ended
        return outputs

    def searched(*given: Any) -> Any:
        found = search(*given)
        _of_thread.searched = time.monotonic()
        return found

    # As the methods of connections are: in this process alone.
    Scheduler.run, Scheduler._attempt = ran, attempted  # type: ignore[method-assign]  # replaced on purpose
    retrieval.search = searched  # type: ignore[assignment]  # replaced on purpose


def main() -> int:
    file = Path(sys.argv.pop(1))
    _stamp_connections()
    _stamp_schedulers()
    _wrap_async(bodies, "read", HTTP, CHECKS)
    _wrap_async(Engine, "rank", CHECKS, RANKING)
    _wrap_async(Forwards, "tokenize", RANKING, TOKENIZE)
    _wrap(rank, "_rendered", RANKING, ANSWER)
    _wrap(rank, "completed", ANSWER, ANSWER)
    try:
        return polyrank()
    finally:
        told = {"ways": {name: way.seconds for name, way in ways.items()}, "threads": threads}
        file.write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
