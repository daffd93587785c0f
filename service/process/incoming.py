"""What a caller sends on a connection, as events of HTTP/1.1, with bounds on its parts.

h11 parses it, and not llhttp (uvicorn's usual choice): h11 ignores an upgrade that nobody takes, reads one request at a
time, bounds trailers and keeps them apart from headers.
"""

import re
from typing import Final

import h11

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

    @property
    def unread_bytes(self) -> int:
        """How many bytes wait to be parsed."""
        return len(self.trailing_data[0])

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Parse the next event.

        Raises:
            h11.RemoteProtocolError: this is no HTTP, or more than may be sent; `error_status_hint` is the status.
        """
        if self.their_state is h11.IDLE:
            _check_lines(self.trailing_data[0])
        event = super().next_event()
        if isinstance(event, h11.Request):
            _check_size(event)
            _check_framing(event)
            self.in_body = True
            self._chunks = self._body_bytes = 0
        elif isinstance(event, h11.Data):
            self._count(event)
        elif isinstance(event, h11.EndOfMessage):
            _check_number(len(event.headers))
            self.in_body = False
        return event

    def _count(self, data: h11.Data) -> None:
        self._chunks += data.chunk_start
        self._body_bytes += len(data.data)
        if self._chunks > CHUNKS + self._body_bytes // BYTES_FOR_A_CHUNK:
            raise h11.RemoteProtocolError("the chunks of the body are too small")


def _check_lines(unread: bytes) -> None:
    """Refuse a head of too many lines before it is parsed, whether all of it has come or not."""
    end = END_OF_HEAD.search(unread)
    # The last two bytes may begin the empty line that ends the head.
    _check_number(unread.count(b"\n", 0, end.start() if end else -2))


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
