"""Bodies with `Content-Encoding: gzip`, both ways.

Requests are decompressed piece by piece, so that the bounds of a body hold before it is there (`BodyBound`). Answers
are compressed where it pays, and beside the event loop where it takes long; Starlette's own middleware holds it up.
"""

import asyncio
import re
import zlib
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Receive, Scope

from polyrank.service.errors import BodyMalformed, BodyTooLarge

CODING: Final = "gzip"
PIECE_BYTES = 64 * 1024  # decompressed at once at most, and given out
FEW_BYTES = 4 * 1024  # decompressed on the event loop, until a piece came out; all else beside it
LEAST_BYTES = 8 * 1024  # a smaller answer takes longer to compress than it saves in most networks
INLINE_BYTES = 64 * 1024  # compressed in about 1 ms
LEVEL = 1  # the higher ones take several times as long, and save little of numbers and short texts
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_REFUSED = re.compile(r"q=0(\.0*)?")


class Unzipped:
    """Receives a request whose body is gzip, and gives it out decompressed, in pieces of bounded size.

    Raises BodyTooLarge for more compressed bytes than the limit, BodyMalformed for what is not one gzip stream. `more`:
    whether the compressed body has not ended yet.
    """

    def __init__(self, receive: Receive, limit: int) -> None:
        self.more = True
        self._receive, self._limit = receive, limit
        self._decoder = zlib.decompressobj(_GZIP_WINDOW)
        self._received = self._released = 0
        self._waiting = b""  # compressed, not yet looked at
        self._goes_on = False  # there may be more without new input

    async def __call__(self) -> Message:
        """Receive the next piece, or what comes after the body."""
        while True:
            if not self._goes_on:
                message = await self._receive()
                if not self.more or message["type"] != "http.request":
                    return message
                self._take(message)
            is_little = len(self._waiting) <= FEW_BYTES and self._released < PIECE_BYTES
            piece = self._decompressed() if is_little else await asyncio.to_thread(self._decompressed)
            if piece or not (self.more or self._goes_on):
                return {"type": "http.request", "body": piece, "more_body": self.more or self._goes_on}

    def _take(self, message: Message) -> None:
        """Take compressed bytes in; also without output they are bounded."""
        self._waiting += message.get("body", b"")
        self._received += len(message.get("body", b""))
        self.more = message.get("more_body", False)
        if self._received > self._limit:
            raise BodyTooLarge(self._limit)

    def _decompressed(self) -> bytes:
        try:
            piece = self._decoder.decompress(self._waiting[:PIECE_BYTES], PIECE_BYTES)
        except zlib.error:
            raise BodyMalformed("the body is no gzip, as Content-Encoding says") from None
        self._waiting = self._decoder.unconsumed_tail + self._waiting[PIECE_BYTES:]
        self._goes_on = bool(self._waiting) or len(piece) == PIECE_BYTES
        self._released += len(piece)
        if self._decoder.unused_data:
            raise BodyMalformed("something follows the gzip stream in the body")
        if self._received - len(self._waiting) > 2 * self._released + PIECE_BYTES:  # gzip adds a thousandth at most
            raise BodyMalformed("the gzip stream in the body is longer than what comes out of it")
        if not (self.more or self._goes_on or self._decoder.eof):
            raise BodyMalformed("the gzip stream in the body has no end")
        return piece


async def zipped(scope: Scope, begin: Message, message: Message) -> Message:
    """Return the body's message compressed, if the caller accepts that; says so in the headers of `begin`."""
    headers = MutableHeaders(scope=begin)  # a copy: an answer may be sent to several callers
    headers.add_vary_header("Accept-Encoding")
    if "content-encoding" in headers or not accepts(Headers(scope=scope).getlist("accept-encoding")):
        return message
    body = message["body"]
    small = _compressed(body) if len(body) <= INLINE_BYTES else await asyncio.to_thread(_compressed, body)
    headers["Content-Encoding"], headers["Content-Length"] = CODING, str(len(small))
    return {**message, "body": small}


def _compressed(body: bytes) -> bytes:
    encoder = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    return encoder.compress(body) + encoder.flush()


def accepts(values: Iterable[str]) -> bool:
    """Whether Accept-Encoding, given by its values, allows gzip.

    >>> accepts(["br, gzip;q=0.5"]), accepts(["gzip;q=0, *"]), accepts([])
    (True, False, False)
    """
    allows: dict[str, bool] = {}
    for part in ",".join(values)[:1000].lower().split(","):
        name, _, weight = part.partition(";")
        allows[name.strip()] = not _REFUSED.fullmatch(weight.replace(" ", ""))
    return allows.get(CODING, allows.get("*", False))
