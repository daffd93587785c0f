"""HTTP connections that cannot be held open by sending little, and that end when the server is about to.

uvicorn bounds neither the time nor the size of a request's head, and closes idle connections alone when it stops.
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
# For so long a connection that is to be closed is read: closing on unread data would reset it, answer and all.
LINGER_SECONDS: Final = 1.0

MALFORMED: Final = Kind(400, "malformed-request", "This is not HTTP")
TOO_SLOW: Final = Kind(408, "head-timeout", "The head came too slowly")
TOO_LARGE: Final = Kind(431, "head-too-large", "The head is too large")
TOO_MANY: Final = Kind(503, "too-many-connections", "Too many connections are open")


class Connections(ServerState):
    """What the connections of a server share.

    Args:
        most: so many may be open.
        count_rejected: told why one was turned away.

    Attributes:
        draining: every answer ends its connection.
    """

    def __init__(self, most: int, count_rejected: Callable[[str], None]) -> None:
        super().__init__()
        self.most, self.count_rejected = most, count_rejected
        self.draining = False

    def drain(self) -> None:
        """Let what is being answered, and all that comes, be the last of its connection."""
        self.draining = True
        for each in self.connections:
            if isinstance(each, Connection):
                each.end_after_answer()


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
        """Wait for a first head, unless there are connections enough."""
        super().connection_made(transport)
        if len(self.connections) > self.server_state.most:
            self.server_state.count_rejected("connections")
            self._refuse(TOO_MANY, "too many connections are open; try again", {"Retry-After": "1"})
        else:
            self._await_head(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; between requests it can only be a head."""
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
        """End a request; what comes next is another one's head."""
        super().on_message_complete()
        self._in_head = True

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP in the form of all errors."""
        self._refuse(MALFORMED, msg)

    def end_after_answer(self) -> None:
        """Close when the answer that is due was sent, and say so in it."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """End soon: a request that has begun to arrive is answered, as one that is being answered is."""
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
        """Answer without the app, and close; a request before it is answered instead of it, and the last one."""
        if self._refused:
            return
        self._refused = True
        self._stop_timer()
        if not self._is_idle():
            self.cycle.keep_alive = False
            return
        answer = ProblemAnswer(kind, detail, uuid4().hex, {**(headers or {}), "Connection": "close"})
        lines = [name + b": " + value + b"\r\n" for name, value in answer.raw_headers]
        self.transport.write(b"".join([STATUS_LINE[kind.status], *lines, b"\r\n", bytes(answer.body)]))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)
