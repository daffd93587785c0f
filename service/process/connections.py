"""HTTP connections with bounds: on their number, on the time of a request's head, and on answers that nobody reads.

uvicorn bounds none of these, and when it stops it closes idle connections only.

h11 parses what is sent, and not llhttp (uvicorn's usual choice): h11 ignores an upgrade that nobody takes, reads one
request at a time, bounds trailers and keeps them apart from headers.
"""

import asyncio
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final
from uuid import uuid4

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from polyrank.service.http.plumbing.problems import Kind, ProblemAnswer
from polyrank.service.observe.labels import QUIET
from polyrank.service.scheduling.admission import Rate

HEAD_BYTES: Final = 32 * 1024
HEAD_LINES: Final = 256  # and parameters of a query
# A body may come in so many chunks, and in one more for each so many bytes: a chunk of one byte takes h11 4 us.
CHUNKS: Final = 1000
BYTES_FOR_A_CHUNK: Final = 1024
END_OF_HEAD: Final = re.compile(rb"\n\r?\n")  # as h11 finds it


class Incoming(h11.Connection):
    """h11's side of a server's connection; what is over a bound is a `h11.RemoteProtocolError`."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self.in_body = False  # whether a request has begun, and more of its body is to come
        self._chunks = self._body_bytes = 0
        self.sent_bytes = 0  # of answers; the client may have taken fewer

    @property
    def unread_bytes(self) -> int:
        """How many bytes wait to be parsed."""
        return len(self.trailing_data[0])

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        """Return the bytes of a part of an answer, which are counted; `send` asks this."""
        parts = super().send_with_data_passthrough(event)
        self.sent_bytes += sum(map(len, parts or ()))
        return parts

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Parse the next event.

        Raises h11.RemoteProtocolError if this is no HTTP, or more than may be sent; `error_status_hint` is the status.
        """
        if self.their_state is h11.IDLE:  # a head of too many lines is refused before it is parsed, come whole or not
            unread = self.trailing_data[0]
            end = END_OF_HEAD.search(unread)
            # The last two bytes may begin the empty line that ends the head.
            _check_number(unread.count(b"\n", 0, end.start() if end else -2))
        event = super().next_event()
        if isinstance(event, h11.Request):
            _check_size(event)
            _check_framing(event)
            self.in_body = True
            self._chunks = self._body_bytes = 0
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._body_bytes += len(event.data)
            if self._chunks > CHUNKS + self._body_bytes // BYTES_FOR_A_CHUNK:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        elif isinstance(event, h11.EndOfMessage):
            _check_number(len(event.headers))
            self.in_body = False
        return event


def _check_number(lines: int) -> None:
    if lines > HEAD_LINES:
        raise h11.RemoteProtocolError("too many headers", error_status_hint=431)


def _check_size(request: h11.Request) -> None:
    """Refuse a large head that came at once, which h11 does not, and a query of many parameters."""
    _check_number(request.target.count(b"&") + 1)
    if len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers) > HEAD_BYTES:
        raise h11.RemoteProtocolError("too large a head", error_status_hint=431)


def _check_framing(request: h11.Request) -> None:
    """Refuse what two servers in a row could read differently: the end of the body decides where a request begins."""
    framing = {name for name, _ in request.headers} & {b"content-length", b"transfer-encoding"}
    if len(framing) > 1:
        raise h11.RemoteProtocolError("Content-Length beside Transfer-Encoding")
    if request.http_version == b"1.0" and b"transfer-encoding" in framing:
        raise h11.RemoteProtocolError("Transfer-Encoding in HTTP/1.0")
    if request.http_version not in (b"1.0", b"1.1"):
        raise h11.RemoteProtocolError("this HTTP version is not spoken here")


# The next one begins after so long even if this one is not answered: it may wait for its body, or for a model.
TURN_SECONDS: Final = 0.1


class Turns:
    """Gives pipelined requests their turns, in the order asked for; use it in the event loop only.

    Such a request came before the answer to the one before, on the same connection. A few bytes ask for many answers,
    which their client may not even read. So they begin one after the other over all connections. A client that waits
    for its answers never needs a turn.
    """

    def __init__(self) -> None:
        self._waiting: dict[Connection, None] = {}  # an ordered set
        self._present: Connection | None = None
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, connection: "Connection") -> None:
        """Wait for a turn; asking again changes nothing."""
        self._waiting[connection] = None
        if self._present is None:
            self._next()

    def end(self, connection: "Connection") -> None:
        """Let the next one begin if it is this one's turn."""
        if connection is self._present:
            self._next()

    def leave(self, connection: "Connection") -> None:
        """Wait no longer, and end the turn."""
        self._waiting.pop(connection, None)
        self.end(connection)

    def _next(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._present = next(iter(self._waiting), None)
        if self._present is not None:
            del self._waiting[self._present]
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(TURN_SECONDS, self.end, self._present)
            loop.call_soon(self._present.begin_next)  # others come between


# Who would wait longer for its beginning is refused.
BEGIN_SECONDS: Final = 2.0
BEGINNINGS: Final = 2  # one of each line
FEWEST_TURNS: Final = 8  # tell how long a turn takes


class Beginnings:
    """Lets `BEGINNINGS` requests begin in a turn of the event loop, in the order in which they came.

    To begin costs the loop a millisecond or more. If all that wait began in one turn, whatever came behind them, a
    probe or a new connection, would wait for all of them. So the loop looks for new ones after each few.

    Connections that have had an answer, and not to a probe alone, have a line of their own, so that a burst of new ones
    does not hold them up.
    """

    def __init__(self) -> None:
        self._new, self._served = deque[asyncio.Future[None]](), deque[asyncio.Future[None]]()
        self._rate, self._last_turn = Rate(FEWEST_TURNS), 0.0

    def is_late(self, is_known: bool) -> bool:
        """Whether a request that comes now would wait too long, if turns go on as they lately did."""
        own, other = (self._served, self._new) if is_known else (self._new, self._served)
        return self._rate.measured(len(own) + min(len(own), len(other))) > BEGIN_SECONDS

    async def turn(self, is_known: bool) -> None:
        """Wait until a request may begin; `is_known`: its connection has had an answer."""
        loop = asyncio.get_running_loop()
        if not self._new and not self._served:
            self._last_turn = time.monotonic()
            loop.call_soon(self._next, loop)
        begins = loop.create_future()
        (self._served if is_known else self._new).append(begins)
        await begins

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        if len(self._new) + len(self._served) > BEGINNINGS:  # a turn with less to do says nothing of those with more
            self._rate.learn(BEGINNINGS, now - self._last_turn)
        self._last_turn = now
        for line, other in ((self._served, self._new), (self._new, self._served)):
            if line or other:
                begins = (line or other).popleft()
                if not begins.done():  # cancelled
                    begins.set_result(None)
        if self._new or self._served:
            loop.call_soon(self._next, loop)


HEAD_SECONDS: Final = 10.0
# So many connections more than may be are read, each for so long, because one of them may bring a probe.
MORE: Final = 128
MORE_SECONDS: Final = 1.0
# A connection that is to be closed is read for so long: closing on unread data would reset it and lose the answer.
LINGER_SECONDS: Final = 1.0
# The same where there are too many: these would take the places of others.
SHORT_LINGER_SECONDS: Final = 0.1
# A client that takes nothing of its answer for so long is cut off.
UNREAD_SECONDS: Final = 10.0
# All connections together may hold so many bytes of answers; the clients that have left most unread are cut off.
UNREAD_BYTES: Final = 256 * 1024 * 1024
# What comes at once is parsed in such pieces, so that no bound is overshot by more.
PIECE_BYTES: Final = 16 * 1024

MALFORMED: Final = Kind(400, "malformed-request", "This is not HTTP")
TOO_SLOW: Final = Kind(408, "head-timeout", "The head came too slowly")
TOO_LARGE: Final = Kind(431, "head-too-large", "The head is too large")
UNKNOWN_CODING: Final = Kind(501, "unknown-coding", "The transfer coding is not known")
TOO_MANY: Final = Kind(503, "too-many-connections", "Too many connections are open")
BUSY: Final = Kind(503, "busy", "Too many requests wait to begin")
RETRY: Final = {"Retry-After": "1"}


class Connections(ServerState):
    """What the connections of a server share: how many may be open, whether it drains, and whose turn it is."""

    def __init__(self, most: int, count_rejected: Callable[[str], None]) -> None:
        super().__init__()
        self.most, self.count_rejected = most, count_rejected
        self.draining = False
        self.turns, self.beginnings = Turns(), Beginnings()

    def drain(self) -> None:
        """Let every answer from now on, also those in progress, be the last one of its connection."""
        self.draining = True
        for connection in self._open():
            connection.end_after_answer()

    def cut_off_unread(self) -> None:
        """Cut off clients that do not read their answers; call it about once a second."""
        unread = self._open()
        for connection in unread:
            connection.look_at_unread()
        unread.sort(key=lambda connection: connection.unread_bytes)
        total = sum(connection.unread_bytes for connection in unread)
        while unread and unread[-1].unread_bytes:
            largest = unread.pop()
            if total > UNREAD_BYTES or largest.stalled:
                self.count_rejected("unread")
                largest.transport.abort()
                total -= largest.unread_bytes

    def _open(self) -> "list[Connection]":
        return [connection for connection in self.connections if isinstance(connection, Connection)]


class Connection(H11Protocol):
    """A connection with bounds on the time of a head and on unread answers; pipelined requests wait for a turn."""

    server_state: Connections
    conn: Incoming

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = Incoming()
        self.unread_bytes = self._taken_bytes = 0
        self._read_at = self.loop.time()
        self._head_timer: asyncio.TimerHandle | None = None
        self._refused = False
        self._waits = False  # for a turn
        self._is_more = False  # than may be
        self._is_known = False  # by an answer that it has had, which cost its client a turn
        self._serve, self.app = self.app, self._begun

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Wait for the first head, or refuse the connection where too many are open."""
        super().connection_made(transport)
        more = len(self.connections) - self.server_state.most
        self._is_more = more > 0
        if more > MORE:
            self._refuse_more()
        else:
            self._await_head(MORE_SECONDS if self._is_more else HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer, and hand the turn on."""
        self._stop_timer()
        self.server_state.turns.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; between requests that is a head, and during one the next ones wait."""
        if self._is_idle() and not self._refused:
            if self._head_timer is None:
                self._await_head(HEAD_SECONDS)
            if self.conn.their_state is h11.IDLE and not self.conn.unread_bytes:
                # Who is refused costs half as much where nothing is parsed for it.
                _, _, target = data.partition(b" ")
                path, is_whole, _ = target.partition(b" ")
                if is_whole and self._refuses(path.partition(b"?")[0].decode("latin-1")):
                    return
        for at in range(0, len(data), PIECE_BYTES):
            if self._refused or self.conn.their_state is h11.MUST_CLOSE:  # nothing may follow the last request
                return
            super().data_received(data[at : at + PIECE_BYTES])
            # While a request is answered: its answer is the last one.
            if self.conn.unread_bytes > HEAD_BYTES and not self._waits:
                self._refused = True
                self.end_after_answer()

    def handle_events(self) -> None:
        """Parse on; where that begins a request, its head is complete."""
        if self._refused or self._waits:
            return
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._stop_timer()
            if self.server_state.draining:
                self.end_after_answer()

    def on_response_complete(self) -> None:
        """Go on with the next request; one that has already come waits for its turn, and reading does, too."""
        self._is_known |= self.scope["path"] not in QUIET
        self.server_state.turns.end(self)
        is_next = self.conn.their_state is h11.DONE and self.conn.unread_bytes > 0
        self._waits = is_next and not self.transport.is_closing()
        super().on_response_complete()
        if self._waits:
            self.flow.pause_reading()
            self.server_state.turns.ask(self)

    def begin_next(self) -> None:
        """Parse on in this turn, unless the client leaves answers unread: then `resume_writing` asks for another."""
        if self._waits and not self.flow.write_paused and not self.transport.is_closing():
            self._waits = False
            self.flow.resume_reading()
            self.handle_events()
            if not self._is_idle():
                return
            if not self._refused:  # this was a part of a head
                self._await_head(HEAD_SECONDS)
        self.server_state.turns.end(self)

    def resume_writing(self) -> None:
        """Go on once the client has read."""
        super().resume_writing()
        if self._waits:
            self.server_state.turns.ask(self)

    async def _begun(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request once it is its turn to begin; a probe's is at once."""
        if self._refuses(scope["path"]):
            return
        if self._is_more:
            self.end_after_answer()
        if scope["path"] not in QUIET:
            scope["state"]["arrived"] = time.monotonic()
            await self.server_state.beginnings.turn(self._is_known)
            if self.cycle.disconnected:
                return
        await self._serve(scope, receive, send)

    def _refuses(self, path: str) -> bool:
        """Refuse a request, unless it is a probe, on a connection too many, or where its turn would be late."""
        if path in QUIET or not (self._is_more or self.server_state.beginnings.is_late(self._is_known)):
            return False
        if self._is_more:
            self._refuse_more()
        else:
            self.server_state.count_rejected("busy")
            self._refuse(BUSY, "so many wait that this one would begin too late; try again in 1 s", RETRY)
        return True

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or too much, with a problem, as all errors."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else MALFORMED.status
        what = str(error).partition(":")[0]  # what follows is what was sent
        if status == TOO_LARGE.status:
            self.server_state.count_rejected("too_large")
            self._refuse(TOO_LARGE, f"at most {HEAD_BYTES} bytes, and {HEAD_LINES} headers, trailers, or parameters")
        elif status == UNKNOWN_CODING.status:
            self._refuse(UNKNOWN_CODING, "only one Transfer-Encoding: chunked is supported")
        else:
            self._refuse(MALFORMED, what)

    def end_after_answer(self) -> None:
        """Close the connection after the answer in progress, and say so in the answer."""
        if not self._is_idle():
            self.cycle.keep_alive = False
            self.cycle.default_headers = [*self.cycle.default_headers, CLOSE_HEADER]

    def shutdown(self) -> None:
        """End soon: a request that has begun to arrive, or is in progress, is answered first."""
        if self._refused or not self._is_idle():
            self.end_after_answer()
        elif self._head_timer is not None or self._waits:
            self._await_head(LINGER_SECONDS)
        else:
            super().shutdown()

    def look_at_unread(self) -> None:
        """Note how many bytes of answers the client has yet to take, and when it last took some."""
        self.unread_bytes = self.transport.get_write_buffer_size()
        before, self._taken_bytes = self._taken_bytes, self.conn.sent_bytes - self.unread_bytes
        if not self.unread_bytes or self._taken_bytes > before:
            self._read_at = self.loop.time()

    @property
    def stalled(self) -> bool:
        """Whether the client has taken nothing of its answer for too long."""
        return self.loop.time() - self._read_at > UNREAD_SECONDS

    def _should_upgrade(self) -> bool:
        return False  # an upgrade is an offer; h11 reads the body, and the answer is one in HTTP/1.1

    def _is_idle(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def _await_head(self, seconds: float) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(seconds, self._refuse_slow)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_more(self) -> None:
        self.server_state.count_rejected("connections")
        self._refuse(TOO_MANY, "too many connections are open; try again in 1 s", RETRY)

    def _refuse_slow(self) -> None:
        if self._is_more:
            self._refuse_more()
        elif self.conn.unread_bytes:
            self.server_state.count_rejected("slow_head")
            self._refuse(TOO_SLOW, f"the head did not arrive within {HEAD_SECONDS:g} s")
        else:
            self.transport.close()

    def _refuse(self, kind: Kind, detail: str, headers: dict[str, str] | None = None) -> None:
        """Answer without the app, and close; a request whose body is still arriving is given up.

        Where that request has its answer, or a part of it, there is no other: a client would take it for the next one.
        """
        self._refused = True
        self._stop_timer()
        if not self._is_idle():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not (self.conn.in_body and self.cycle.response_started):
            answer = ProblemAnswer(kind, detail, uuid4().hex)
            answer.headers.update({**(headers or {}), "Connection": "close"})
            fields = [*self.server_state.default_headers, *answer.raw_headers]
            lines = [b"HTTP/1.1 %d %s" % (answer.status_code, STATUS_PHRASES[answer.status_code])]
            self.transport.write(b"\r\n".join([*lines, *map(b": ".join, fields), b"", bytes(answer.body)]))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(SHORT_LINGER_SECONDS if kind in (BUSY, TOO_MANY) else LINGER_SECONDS, self.transport.close)
