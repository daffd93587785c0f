"""From the bytes of a request to a checked model, or an error that says what is wrong with them."""

import asyncio
import re
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.service.errors import (
    BodyTimeout,
    ClientGone,
    HeaderInvalid,
    MediaTypeUnsupported,
    TooManyCandidates,
    TooManyValues,
)
from polyrank.service.http.native.schemas import CandidateIn, IndexIn, RankIn, UpsertIn
from polyrank.service.http.plumbing import problems
from polyrank.service.http.plumbing.json_values import count_values
from polyrank.service.ranking.values import Given, RankRequest
from polyrank.service.settings import Settings

BODY_SECONDS = 30.0
INLINE_BYTES = 64 * 1024  # validated in some 2 ms; a thread costs more than it frees
MAX_VALUES = 1_000_000
RANK_VALUES = 100_000  # filters, ids and turns; a candidate is four more at most
TIMEOUT_HEADERS = ("X-Request-Timeout-Ms", "X-Client-Timeout-Ms")
MILLISECONDS = re.compile("0{0,99}[1-9][0-9]{0,99}", re.ASCII)

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


async def read(request: Request, kind: type[M], max_values: int = MAX_VALUES) -> tuple[M, bytes]:
    """Read and validate a JSON body.

    Args:
        request: whose body.
        kind: what it must be.
        max_values: how many values it may hold, at any depth.

    Raises:
        MediaTypeUnsupported: it is not plain application/json in UTF-8.
        BodyTimeout: it did not arrive in time.
        ClientGone: it never arrived.
        TooManyValues: it holds more than anybody needs.
        pydantic.ValidationError: it is not what the model says.
    """
    _check_media_type(request)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await request.body()
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise ClientGone("hung up while sending the body") from None
    if len(body) <= INLINE_BYTES:
        return kind.model_validate_json(body), body
    # Counting needs no interpreter lock, and validating gives it back wherever a text is checked.
    return await asyncio.to_thread(_validated, kind, body, max_values), body


def _validated(kind: type[M], body: bytes, max_values: int) -> M:
    if count_values(body) >= max_values:
        raise TooManyValues(max_values)
    return kind.model_validate_json(body)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work as long as somebody waits for it; the whole body was read before.

    Raises:
        ClientGone: the client hung up first, and what had not begun was dropped.
    """
    doing, hangup = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((doing, hangup), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            doing.cancel()
            await asyncio.wait((doing,))
            if doing.cancelled():
                raise ClientGone("hung up before the answer")
        return doing.result()
    finally:
        doing.cancel()
        hangup.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def read_rank(request: Request, settings: Settings) -> RankIn:
    """Read the body of a ranking; errors as `read`, and:

    Raises:
        TooManyCandidates: more than any server allows; `to_request` checks this server's own bound.
    """
    try:
        return (await read(request, RankIn, RANK_VALUES + 4 * settings.max_candidates))[0]
    except ValidationError as error:
        if ("candidates",) in _too_long(error):
            raise TooManyCandidates(settings.max_candidates) from None
        raise


async def read_compat(request: Request, kind: type[M], settings: Settings) -> M:
    """Read the body of a compatible route; errors as `read`, and:

    Raises:
        TooManyCandidates: more than any server allows; `check_texts` checks this server's own bound.
    """
    try:
        return (await read(request, kind))[0]
    except ValidationError as error:
        if any(where[0] != "rank_fields" for where in _too_long(error)):
            raise TooManyCandidates(settings.max_candidates) from None
        raise


def _too_long(error: ValidationError) -> list[tuple[str | int, ...]]:
    """Where there are longer lists than any server allows."""
    few = error.error_count() <= problems.MAX_FOUND
    found = error.errors(include_input=False, include_url=False, include_context=False) if few else []
    return [each["loc"] for each in found if each["type"] == "too_long"]


def deadline(request: Request, settings: Settings, timeout_ms: int | None = None) -> float:
    """When the answer must be there, on the monotonic clock.

    The shortest of what the server allows, what a header asks for, and what the body does.

    Args:
        request: its headers, and when it came.
        settings: the server's bound.
        timeout_ms: of the body.

    Raises:
        HeaderInvalid: a header holds no number of milliseconds.
    """
    asked = [settings.max_timeout_ms] if timeout_ms is None else [settings.max_timeout_ms, timeout_ms]
    for name in TIMEOUT_HEADERS:
        sent = request.headers.get(name)
        if sent is not None:
            if not MILLISECONDS.fullmatch(sent.strip()):
                raise HeaderInvalid(f"{name}: is not a whole number of milliseconds, 1 or more")
            asked.append(int(sent))
    return float(request.state.arrived) + min(asked) / 1000


def _check_media_type(request: Request) -> None:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise MediaTypeUnsupported("Content-Encoding is not supported; send the body as it is")
    media_type, _, parameters = request.headers.get("content-type", "").lower().partition(";")
    charset = parameters.strip().removeprefix("charset=").strip('"') or "utf-8"
    if media_type.strip() != "application/json" or charset not in ("utf-8", "utf8"):
        raise MediaTypeUnsupported("send Content-Type: application/json, in UTF-8")


def refuses_caches(request: Request) -> bool:
    """Whether the caller wants an answer that was not given before, and will not be given again."""
    given = ",".join(request.headers.getlist("cache-control")).lower().split(",")
    return not {"no-cache", "no-store"}.isdisjoint(each.strip() for each in given)


def to_request(body: RankIn, settings: Settings, deadline: float) -> RankRequest:
    """Translate a checked body into the ranking to do.

    Args:
        body: what was sent.
        settings: the bounds.
        deadline: on the monotonic clock.

    Raises:
        TooManyCandidates: more than the server allows.
        InvalidInput: a text is longer than the server allows.
    """
    if body.candidates is not None and len(body.candidates) > settings.max_candidates:
        raise TooManyCandidates(settings.max_candidates)
    candidates = None if body.candidates is None else tuple(_given(each) for each in body.candidates)
    sent = [body.context] if isinstance(body.context, str) else body.context
    turns = tuple(Turn(turn) if isinstance(turn, str) else Turn(turn.text, turn.role) for turn in sent)
    _check_lengths("context", [turn.text for turn in turns], settings)
    _check_lengths("persona", body.persona, settings)
    _check_lengths("candidates", [given.text for given in candidates or () if given.text is not None], settings)
    return RankRequest(
        conversation=Conversation(turns, tuple(body.persona)),
        deadline=deadline,
        candidates=candidates,
        top_k=body.top_k,
        retrieve_k=body.retrieve_k,
        exact=body.exact,
        top_n=body.top_n(),
        filter=body.filter,
        exclude_ids=tuple(body.exclude_ids),
    )


def check_pool(body: IndexIn, settings: Settings) -> None:
    """Check the bounds of candidates sent for a new generation.

    Raises:
        InvalidInput: a text is longer than the server allows.
    """
    _check_lengths("candidates", [candidate.text for candidate in body.candidates or ()], settings)


def check_upsert(body: UpsertIn, settings: Settings) -> None:
    """Check the bounds of an update.

    Raises:
        TooManyCandidates: more than the server allows.
        InvalidInput: a text is longer than the server allows.
    """
    if len(body.root) > settings.max_candidates:
        raise TooManyCandidates(settings.max_candidates)
    _check_lengths("candidates", [candidate.text for candidate in body.root], settings)


def check_texts(where: str, texts: list[str], settings: Settings) -> None:
    """Check the bounds of texts sent to a compatible route.

    Raises:
        TooManyCandidates: more than the server allows.
        InvalidInput: a text is longer than the server allows.
    """
    check_count(texts, settings)
    _check_lengths(where, texts, settings)


def check_count(sent: Sequence[object], settings: Settings) -> None:
    """Check the bound of texts, or of what holds one, sent to a compatible route.

    Raises:
        TooManyCandidates: more than the server allows.
    """
    if len(sent) > settings.max_candidates:
        raise TooManyCandidates(settings.max_candidates)


def _given(sent: str | CandidateIn) -> Given:
    return Given(None, sent) if isinstance(sent, str) else Given(sent.id, sent.text)


def _check_lengths(where: str, texts: list[str], settings: Settings) -> None:
    longest = max(map(len, texts), default=0)
    if longest > settings.max_text_chars:
        raise InvalidInput(f"{where}: a text has {longest} characters; at most {settings.max_text_chars} are allowed")
