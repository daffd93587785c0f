"""Reads the body of a request into a checked model, or raises an error that says what is wrong with it."""

import asyncio
import re
import time
from collections.abc import Callable, Collection, Coroutine, Sequence, Sized
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from polyrank.model.errors import InvalidInput
from polyrank.service import errors
from polyrank.service.http.plumbing.findings import MAX_FOUND, refusal
from polyrank.service.http.plumbing.gzipped import CODING
from polyrank.service.http.plumbing.json_values import count_values, marks, most_fields
from polyrank.service.ranking.stages import Timings
from polyrank.service.resources import resources
from polyrank.service.settings import Settings

BODY_SECONDS = 30.0
# Up to these a body is validated in 2 ms at most, on the event loop; using a thread costs more than it frees.
INLINE_BYTES = 64 * 1024
INLINE_VALUES = 1000
MAX_VALUES = 1_000_000
MAX_FIELDS = 10_000  # of one object; the metadata of a candidate have no room for more
TIMEOUT_HEADERS = ("X-Request-Timeout-Ms", "X-Client-Timeout-Ms")
MILLISECONDS = re.compile("0{0,99}[1-9][0-9]{0,99}", re.ASCII)

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


async def read(
    request: Request, kind: type[M], settings: Settings, ranked: Collection[str] = (), max_values: int = MAX_VALUES
) -> M:
    """Read and validate a JSON body.

    `ranked` names the fields that hold candidates: a list there that is longer than any server allows raises
    TooManyCandidates. `check_count` checks this server's own bound.

    Raises:
        MediaTypeUnsupported, BodyTimeout, ClientGone: no JSON body arrived.
        TooManyValues: the body holds `max_values` or more, at any depth.
        TooManyCandidates: see above.
        BodyMalformed, BodyInvalid: the body is no JSON, or not what the model says.
    """
    _check_media_type(request)
    body = await _received(request)
    values = count_values(marks(body)) if INLINE_VALUES < len(body) <= INLINE_BYTES else len(body)
    return await beside(request, partial(_checked, kind, body, settings, ranked, max_values), values)


async def beside(request: Request, work: Callable[[], T], values: int, until: float | None = None) -> T:
    """Do work on what a request holds: beside the event loop unless there are few values, the fewest first.

    `until` is on the monotonic clock; None: it may take as long as an answer.

    Raises:
        DeadlineExceeded: the time was over before.
    """
    if values <= INLINE_VALUES:
        return work()
    held = resources(request)
    try:
        async with asyncio.timeout(held.settings.max_timeout_ms / 1000 if until is None else until - time.monotonic()):
            return await held.reading.run(0, values, work, Timings())
    except TimeoutError:
        raise errors.DeadlineExceeded("reading the body") from None


def _check_media_type(request: Request) -> None:
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", CODING):  # `BodyBound` has decompressed it
        raise errors.MediaTypeUnsupported("Content-Encoding: only gzip is supported; or send the body as it is")
    media_type, _, parameters = request.headers.get("content-type", "").lower().partition(";")
    charset = parameters.strip().removeprefix("charset=").strip('"') or "utf-8"
    if media_type.strip() not in ("", "application/json") or charset not in ("utf-8", "utf8"):
        raise errors.MediaTypeUnsupported("send Content-Type: application/json, in UTF-8")


async def _received(request: Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.body()
    except TimeoutError:
        raise errors.BodyTimeout(f"the body did not arrive within {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise errors.ClientGone("hung up while sending the body") from None


def _checked(kind: type[M], body: bytes, settings: Settings, ranked: Collection[str], max_values: int) -> M:
    if len(body) > INLINE_VALUES:
        found = marks(body)
        if (values := count_values(found)) >= max_values:
            raise errors.TooManyValues(max_values)
        if values > MAX_FIELDS and (fields := most_fields(found)) > MAX_FIELDS:
            raise errors.BodyInvalid([("", f"an object in the body has {fields} fields; {MAX_FIELDS} are the most")])
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        if not _too_long(error).isdisjoint(ranked):
            raise errors.TooManyCandidates(settings.max_candidates) from None
        raise refusal(error, kind) from None


def _too_long(error: ValidationError) -> set[str | int]:
    """Return the fields with lists that are longer than any server allows."""
    if error.error_count() > MAX_FOUND:
        return set()
    found = error.errors(include_input=False, include_url=False, include_context=False)
    return {one["loc"][0] for one in found if one["type"] == "too_long" and one["loc"]}


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work as long as the client waits for it; the body must have been read before.

    Raises:
        ClientGone: the client hung up first. What had not begun by then was dropped.
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


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def deadline(request: Request, settings: Settings, timeout_ms: int | None = None) -> float:
    """Return when the answer must be there, on the monotonic clock.

    The shortest timeout holds: the server's maximum, a header's, or the body's (`timeout_ms`). `request.state.hurried`
    says afterwards whether it is shorter than the server promises to answer in.

    Raises:
        HeaderInvalid: a header holds no number of milliseconds.
    """
    allowed = [settings.max_timeout_ms] if timeout_ms is None else [settings.max_timeout_ms, timeout_ms]
    for name in TIMEOUT_HEADERS:
        sent = request.headers.get(name)
        if sent is not None:
            if not MILLISECONDS.fullmatch(sent.strip()):
                raise errors.HeaderInvalid(f"{name}: is not a whole number of milliseconds, 1 or more")
            allowed.append(int(sent))
    request.state.hurried = min(allowed) < settings.promised_ms
    return float(request.state.arrived) + min(allowed) / 1000


def check_count(candidates: Sized, settings: Settings) -> None:
    """Check how many candidates, texts or documents came with a request.

    Raises:
        TooManyCandidates: more than the server allows.
    """
    if len(candidates) > settings.max_candidates:
        raise errors.TooManyCandidates(settings.max_candidates)


def check_lengths(where: str, texts: Sequence[str], settings: Settings) -> None:
    """Check the length of each text of a field; `where` names the field.

    Raises:
        InvalidInput: a text is longer than the server allows.
    """
    longest = max(map(len, texts), default=0)
    if longest > settings.max_text_chars:
        raise InvalidInput(
            f"{where}: a text has {longest} characters; at most {settings.max_text_chars} are allowed "
            "(the setting max_text_chars)"
        )
