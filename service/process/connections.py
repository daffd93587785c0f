"""HTTP connections with bounds: on their number, and on the time and size of a request's head.

uvicorn bounds none of these, and when it stops it closes idle connections only.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final
from uuid import uuid4

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from polyrank.service.http.plumbing.problems import Kind, ProblemAnswer

HEAD_SECONDS: Final = 10.0
HEAD_BYTES: Final = 32 * 1024
# A connection that is to be closed is read for so long: closing on unread data would reset it and lose the answer.
LINGER_SECONDS: Final = 1.0

MALFORMED: Final = Kind(400, "malformed-request", "This is not HTTP")
TOO_SLOW: Final = Kind(408, "head-timeout", "The head came too slowly")
TOO_LARGE: Final = Kind(431, "head-too-large", "The head is too large")
TOO_MANY: Final = Kind(503, "too-many-connections", "Too many connections are open")


class Connections(ServerState):
    """What the connections of a server share: how many may be open, and whether it drains (`drain`)."""

    def __init__(self, most: int, count_rejected: Callable[[str], None]) -> None:
        super().__init__()
        self.most, self.count_rejected = most, count_rejected
        self.draining = False

    def drain(self) -> None:
        """Let every answer from now on, also those in progress, be the last one of its connection."""
        self.draining = True
        for connection in self.connections:
            if isinstance(connection, Connection):
                connection.end_after_answer()


class Connection(HttpToolsProtocol):
    """A connection whose request heads are bounded in time and size."""

    server_state: Connections

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._in_head = True
        self._head_bytes = 0
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Wait for the first head, or refuse the connection where too many are open."""
        super().connection_made(transport)
        if len(self.connections) > self.server_state.most:
            self.server_state.count_rejected("connections")
            self._refuse(TOO_MANY, "too many connections are open; try again", {"Retry-After": "1"})
        else:
            self._await_head(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; between requests that is a head."""
        if self._refused:
            return
        if self._is_idle() and self._head_timer is None:
            self._await_head(HEAD_SECONDS)
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES:
            self._refuse_large()

    def on_headers_complete(self) -> None:
        """Begin a request."""
        self._stop_timer()
        self._in_head, self._head_bytes = False, 0
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEAD_BYTES:
            self._refuse_large()
            raise httptools.HttpParserError("too large")  # the parser stops; the answer is on its way
        super().on_headers_complete()
        if self.server_state.draining:
            self.end_after_answer()

    def on_message_complete(self) -> None:
        """End a request; what comes next is the head of another one."""
        super().on_message_complete()
        self._in_head = True

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with a problem, as all errors."""
        self._refuse(MALFORMED, msg)

    def end_after_answer(self) -> None:
        """Close the connection after the answer in progress, and say so in the answer."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """End soon: a request that has begun to arrive, or is in progress, is answered first."""
        if self._is_idle() and self._head_timer is not None:
            self._await_head(LINGER_SECONDS)
        else:
            super().shutdown()

    def _is_idle(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def _await_head(self, seconds: float) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(seconds, self._refuse_slow)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_slow(self) -> None:
        if self._head_bytes:
            self.server_state.count_rejected("slow_head")
            self._refuse(TOO_SLOW, f"the head did not arrive within {HEAD_SECONDS:g} s")
        else:
            self.transport.close()

    def _refuse_large(self) -> None:
        self.server_state.count_rejected("too_large")
        self._refuse(TOO_LARGE, f"at most {HEAD_BYTES} bytes of request line and headers")

    def _refuse(self, kind: Kind, detail: str, headers: dict[str, str] | None = None) -> None:
        """Answer without the app, and close; where a request is in progress, its answer is the last one instead."""
        if self._refused:
            return
        self._refused = True
        self._stop_timer()
        if not self._is_idle():
            self.cycle.keep_alive = False
            return
        answer = ProblemAnswer(kind, detail, uuid4().hex)
        answer.headers.update({**(headers or {}), "Connection": "close"})
        lines = [name + b": " + value + b"\r\n" for name, value in answer.raw_headers]
        self.transport.write(b"".join([STATUS_LINE[kind.status], *lines, b"\r\n", bytes(answer.body)]))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)
