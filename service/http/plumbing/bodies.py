"""The body of a request: read into a checked model, or refused with what is wrong."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine, Sequence, Sized
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from polyrank.model.errors import InvalidInput
from polyrank.service import errors
from polyrank.service.api.findings import refusal
from polyrank.service.http.plumbing.compression import CODING
from polyrank.service.resources import Resources
from polyrank.service.scheduling.stages import Journey
from polyrank.service.settings import Settings

BODY_SECONDS, READ_SECONDS = 30.0, 10.0  # to arrive; to be read, waiting included: updates take longer than rankings
# Up to these a body is validated in 2 ms at most, on the event loop; using a thread costs more than it frees.
INLINE_BYTES, INLINE_VALUES = 64 * 1024, 1000
MOST_VALUES, CANDIDATE_VALUES = 200_000, 20  # of a body, or so many a candidate; parsing them holds other threads up
MAX_FIELDS = 10_000  # of one object; the metadata of a candidate have no room for an object of more
TIMEOUT_HEADERS = ("X-Request-Timeout-Ms", "X-Client-Timeout-Ms")
MILLISECONDS = re.compile("0{0,99}[1-9][0-9]{0,99}", re.ASCII)
CHARSET = re.compile("utf-?8|utf-?(16|32)(-?[lb]e)?")  # as the first bytes of JSON say, whatever a header adds
BLOCK_BYTES = 1 << 20
PER_LIST = 3  # Python looks for garbage among lists and objects alone, and nothing else goes on meanwhile
_QUOTE, _COMMA, _BRACE, _CLOSING = b'",{}'
_CASE = np.uint8(0x20)  # by this bit "[" differs from "{", and "]" from "}"

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


async def read(request: Request, kind: type[M], values: int = MOST_VALUES) -> M:
    """Read and validate a JSON body; `request.state.bound` says afterwards how many values it may hold.

    Raises:
        MediaTypeUnsupported, BodyTimeout, ClientGone: no JSON body arrived.
        TooManyValues: the body counts more than so many (`count_values`), and `CANDIDATE_VALUES` a candidate allowed.
        BodyMalformed, BodyInvalid: the body is no JSON, or not what the model says.
    """
    _check_media_type(request)
    body = await _received(request)
    bound = len(body) if len(body) > INLINE_BYTES else sum(map(body.count, (b",", b"[", b"{")))  # those in texts, too
    resources: Resources = request.state.resources
    most = max(values, CANDIDATE_VALUES * resources.settings.max_candidates)
    request.state.bound = bound
    return await beside(request, partial(_checked, kind, body, most, bound), bound)


async def beside(request: Request, work: Callable[[], T], values: int) -> T:
    """Do work on what a request holds: beside the event loop unless there are few values, the fewest first."""
    if values <= INLINE_VALUES:
        return work()
    resources: Resources = request.state.resources
    journey = Journey(time.monotonic() + max(resources.settings.max_timeout_ms / 1000, READ_SECONDS))
    async with journey.in_time():
        return await resources.reading.run(0, values, work, journey)


def _check_media_type(request: Request) -> None:
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", CODING):  # `BodyBound` has decompressed it
        raise errors.MediaTypeUnsupported("Content-Encoding: only gzip is supported; or send the body as it is")
    media_type, _, parameters = request.headers.get("content-type", "").lower().partition(";")
    charset = parameters.strip().removeprefix("charset=").strip('"') or "utf-8"
    if media_type.strip() not in ("", "application/json") or not CHARSET.fullmatch(charset):
        raise errors.MediaTypeUnsupported("send Content-Type: application/json, in UTF-8, UTF-16 or UTF-32")


async def _received(request: Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.body()
    except TimeoutError:
        raise errors.BodyTimeout(f"the body did not arrive within {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise errors.ClientGone("hung up while sending the body") from None


def _checked(kind: type[M], body: bytes, most: int, bound: int) -> M:
    body = _in_utf8(body)
    if bound > INLINE_VALUES:
        signs = marks(body)
        if (values := count_values(signs)) >= most:
            raise errors.TooManyValues(most)
        if values > MAX_FIELDS and (fields := most_fields(signs)) > MAX_FIELDS:
            raise errors.BodyInvalid([("", f"an object in the body has {fields} fields; {MAX_FIELDS} are the most")])
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise refusal(error, kind) from None


def _in_utf8(body: bytes) -> bytes:
    """Return a body in UTF-8, without a byte order mark; raises BodyMalformed where it is no text."""
    if (encoding := json.detect_encoding(body)) == "utf-8":
        return body
    try:
        return body.decode(encoding).encode()
    except UnicodeDecodeError:
        raise errors.BodyMalformed(f"the body begins as {encoding.upper()}, but is not valid in it") from None


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work as long as the client waits for it; the body must have been read before.

    Raises ClientGone if the client hung up first. What had not begun by then was dropped.
    """
    doing, hangup = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((doing, hangup), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            doing.cancel()
            await asyncio.wait((doing,))
            if doing.cancelled():
                raise errors.ClientGone("hung up before the answer")
        return doing.result()
    finally:
        doing.cancel()
        hangup.cancel()
        del doing  # it holds an error, which holds this frame: in a circle, the request would stay for long


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def journey(request: Request, settings: Settings, timeout_ms: int | None = None) -> Journey:
    """Return the journey of a request, which ends when the answer must be there.

    The shortest timeout holds: the server's maximum, a header's, or the body's (`timeout_ms`). Raises HeaderInvalid if
    a header holds no number of milliseconds.
    """
    allowed = [settings.max_timeout_ms] if timeout_ms is None else [settings.max_timeout_ms, timeout_ms]
    for name in TIMEOUT_HEADERS:
        sent = request.headers.get(name)
        if sent is not None:
            if not MILLISECONDS.fullmatch(sent.strip()):
                raise errors.HeaderInvalid(f"{name}: is not a whole number of milliseconds, 1 or more")
            allowed.append(int(sent))
    return Journey(request.state.arrived + min(allowed) / 1000)


def check_count(candidates: Sized, settings: Settings) -> None:
    """Raise TooManyCandidates where more candidates, texts or documents came than the server allows."""
    if len(candidates) > settings.max_candidates:
        raise errors.TooManyCandidates(settings.max_candidates)


def check_lengths(where: str, texts: Sequence[str], settings: Settings) -> None:
    """Raise InvalidInput where a text of a field is longer than the server allows; `where` names the field."""
    longest = max(map(len, texts), default=0)
    if longest > settings.max_text_chars:
        raise InvalidInput(
            f"{where}: a text has {longest} characters; at most {settings.max_text_chars} are allowed "
            "(the setting max_text_chars)"
        )


def marks(body: bytes) -> NDArray[np.uint8]:
    """Return the commas and brackets outside strings, as they follow each other.

    A small body can hold very many values, and parsing it would hold the interpreter lock all that time. Here NumPy
    looks at the bytes without the lock, a block at a time, so that other threads go on.

    After the first syntax error they mean nothing, because no parser reads on there.
    """
    blocks, inside, escaped = [np.empty(0, np.uint8)], np.uint8(0), False
    for start in range(0, len(body), BLOCK_BYTES):
        text = body[start + escaped : start + BLOCK_BYTES].replace(rb"\\", b"").replace(rb"\"", b"")
        escaped = text.endswith(b"\\")
        block = np.frombuffer(text, np.uint8)
        within = np.bitwise_xor.accumulate((block == _QUOTE).view(np.uint8)) ^ inside  # 1 from a string's first quote
        inside = within[-1] if len(within) else inside
        kinds = block | _CASE
        blocks.append(block[((block == _COMMA) | (kinds == _BRACE) | (kinds == _CLOSING)) & (within == 0)])
    return np.concatenate(blocks)


def count_values(marks: NDArray[np.uint8]) -> int:
    """Count the commas, and each list or object `PER_LIST` times; a key counts with its value.

    >>> count_values(marks(b'{"a, b": [1, 2, "\\\\","], "c": {}}'))
    12
    """
    return int(np.count_nonzero(marks == _COMMA) + PER_LIST * np.count_nonzero(marks | _CASE == _BRACE))


def most_fields(marks: NDArray[np.uint8]) -> int:
    """Return how many fields the largest object has.

    >>> most_fields(marks(b'[{"a": [1, 2, 3, 4], "b": {}}, {"c": 5}, 6, 7]'))
    2
    """
    kinds = marks | _CASE
    depths = np.cumsum((kinds == _BRACE).view(np.int8) - (kinds == _CLOSING).view(np.int8), dtype=np.int32)
    inside = np.flatnonzero(kinds != _CLOSING)
    # At each depth, a list or an object begins by its bracket, and its commas follow before the next one begins.
    members = marks[inside[np.argsort(depths[inside], kind="stable")]]
    begins = np.flatnonzero(members != _COMMA)
    sizes = np.diff(begins, append=len(members))
    return int(sizes[members[begins] == _BRACE].max(initial=0))
