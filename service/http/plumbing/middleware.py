"""What happens around every request, as plain ASGI middleware.

A request gets an id, a metric, a log line and a span; HEAD is answered as GET; large answers are compressed; an error
that nobody caught is an answer without a traceback. What browsers send for pages that may not call this server is
refused, and so is a body over its bound.
"""

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from random import Random
from urllib.parse import urlsplit

from opentelemetry.trace import Span
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyrank.model.errors import RankingError, shortage_in
from polyrank.service.errors import (
    BodiesHeld,
    BodyTooLarge,
    HostNotAllowed,
    InferenceFailed,
    OriginNotAllowed,
    PoolNotFound,
)
from polyrank.service.http.plumbing.compression import CODING, LEAST_BYTES, Unzipped, zipped
from polyrank.service.http.plumbing.problems import InForm, from_error
from polyrank.service.observe.labels import QUIET, Account
from polyrank.service.observe.logs import POOL
from polyrank.service.observe.metrics import UNMATCHED, Metrics
from polyrank.service.observe.tracing import Tracing

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
ANSWER_BYTES = 1024 * 1024  # handed on at once at most: handing on all of a large answer would hold the event loop
MOST_FIELDS, MOST_LETTERS = 5, 64  # of a refused request, in the log
KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

log = logging.getLogger("polyrank.request")


class Requests:
    """The outermost: names a request and finds its pool; counts, logs and traces its answer; answers if the app raises.

    Below `/pools/NAME` stand all routes for the pool of that name; routes know no names. In ASGI's words, `/pools/NAME`
    is their `root_path`.
    """

    def __init__(self, app: ASGIApp, sites: "Sites", metrics: Metrics, tracing: Tracing, in_form: InForm) -> None:
        self.app, self.sites, self.metrics, self.tracing, self.in_form = app, sites, metrics, tracing, in_form
        self._random = Random()  # asking the system for each id would give the interpreter lock away

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        began = state.setdefault("arrived", time.monotonic())  # a connection knows it before it is its turn
        headers = Headers(scope=scope)
        sent_id = headers.get("x-request-id", "")
        request_id = sent_id if REQUEST_ID.fullmatch(sent_id) else f"{self._random.getrandbits(128):032x}"
        state.update(request_id=request_id, account=Account())
        status = 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        with self.metrics.in_flight.track_inprogress(), self.tracing.request(scope["path"], headers) as span:
            try:
                if (refusal := _find_pool(scope) or self.sites.refusal(scope["method"], headers)) is None:
                    await self.app(scope, receive, send_named)
                else:
                    if refusal.rejected:
                        self.metrics.count_rejected(refusal.rejected)
                    await self.in_form(scope, from_error(refusal, request_id))(scope, receive, send_named)
            except Exception as error:
                shortage = None if isinstance(error, InferenceFailed) else shortage_in(error)  # it may fail for ever
                log.error("request %s failed: %s", request_id, shortage or "", exc_info=None if shortage else error)
                if not status:
                    problem = from_error(shortage or RankingError("unexpected"), request_id)
                    await self.in_form(scope, problem)(scope, receive, send_named)
            self._record(scope, span, status or 499, time.monotonic() - began)

    def _record(self, scope: Scope, span: Span, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path_format", UNMATCHED)
        method = scope["method"] if scope["method"] in KNOWN_METHODS else "OTHER"
        account: Account = scope["state"]["account"]
        resources = scope["state"].get("resources")
        (self.metrics if resources is None else resources.metrics).observe_request(route, method, status, seconds)
        began = time.time_ns() - round(seconds * 1e9)
        trace_id = self.tracing.complete(span, method, route, status, account, began)
        fields = {"request_id": scope["state"]["request_id"], "trace_id": trace_id}
        if (principal := scope["state"].get("principal")) and principal.name:
            fields["key"] = principal.name
        fields |= {"route": route, "method": method, "status": status, "ms": round(seconds * 1000, 1)}
        if problem := scope["state"].get("problem"):
            wrong = [where[:MOST_LETTERS] for where in problem.where[:MOST_FIELDS]]  # never what was sent in them
            fields |= {"problem": problem.kind.slug, "wrong": wrong or None}
        if account.generation is not None:
            fields |= {"generation": account.generation, "degraded": list(account.degraded)}
        if account.seconds:
            fields["stages_ms"] = {stage: round(value * 1000, 3) for stage, value in account.seconds.items()}
        if account.refused:
            fields["refused"] = dict(account.refused)
        logged = {name: value for name, value in fields.items() if value is not None}
        log.log(logging.DEBUG if route in QUIET else logging.INFO, "request", extra={"fields": logged})


_POOLS = "/pools/"


def _find_pool(scope: Scope) -> PoolNotFound | None:
    """Put into the state what serves the pool that the path names, or the one without a name, and cut the path."""
    name = ""
    if scope["path"].startswith(_POOLS):
        name, slash, _ = scope["path"][len(_POOLS) :].partition("/")
        if name:
            scope["root_path"] = f"{_POOLS}{name}"
            scope["path"] += "" if slash else "/"
    resources = scope["app"].state.pools.get(name)
    POOL.set(name if resources else "")  # the log holds nothing else that a path says
    if name and resources is None:
        return PoolNotFound(name)
    scope["state"]["resources"] = resources  # None before the lifespan begins
    return None


class Answers:
    """Sends answers: to HEAD that of the route for GET, without the body; large ones compressed, or in pieces.

    Compressed is what comes in one piece, for callers that accept it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_head = scope["method"] == "HEAD"
        begin: Message = {}
        as_get = {**scope, "method": "GET"} if is_head else scope

        async def send_message(message: Message) -> None:
            nonlocal begin
            if message["type"] == "http.response.start":
                begin = {**message}
                return
            if begin:
                if len(message.get("body", b"")) >= LEAST_BYTES and not message.get("more_body"):
                    message = await zipped(scope, begin, message)
                await send(begin)
                begin = {}
            body, at = b"" if is_head else message.get("body", b""), 0
            while len(body) - at > ANSWER_BYTES:
                await send({**message, "body": body[at : at + ANSWER_BYTES], "more_body": True})
                await asyncio.sleep(0)
                at += ANSWER_BYTES
            await send({**message, "body": body[at:]})

        try:
            await self.app(as_get, receive, send_message)
        finally:
            if is_head:
                scope["route"] = as_get.get("route")  # `Requests`, around this, counts by it


# All bodies in flight together may take so many times the bound of one; bodies up to SMALL_BYTES do not count.
BODIES_HELD = 8
SMALL_BYTES = 64 * 1024
DRAIN_SECONDS = 2.0


class BodyBound:
    """Refuses a body over the bound, whether its length is announced or it comes in chunks; decompresses gzip.

    The bound holds for a compressed body and for what comes out of it.

    Bodies in flight have a common bound, too: one that would exceed it raises BodiesHeld where it is read.
    """

    def __init__(self, app: ASGIApp, limit: int, metrics: Metrics, in_form: InForm) -> None:
        self.app, self.limit, self.metrics, self.in_form = app, limit, metrics, in_form
        self._bytes, self._most_bytes = 0, BODIES_HELD * limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        announced = headers.get("content-length", "")
        if announced.isascii() and announced.isdigit() and int(announced[:20]) > self.limit:
            await self._refuse(scope, receive, send, more=True)
            return
        unzipped = Unzipped(receive, self.limit) if headers.get("content-encoding", "").lower() == CODING else None
        received = counted = 0
        answering, more = False, True

        async def receive_bounded() -> Message:
            nonlocal received, counted, more
            message = await (unzipped or receive)()
            received += len(message.get("body", b""))
            more = unzipped.more if unzipped else message.get("more_body", False)
            if received > self.limit:
                raise BodyTooLarge(self.limit)
            if received > SMALL_BYTES:
                self._bytes += received - counted
                counted = received
                if self._bytes > self._most_bytes:
                    raise BodiesHeld(self._most_bytes)
            return message

        async def send_watched(message: Message) -> None:
            nonlocal answering
            answering = True
            await send(message)

        try:
            await self.app(scope, receive_bounded, send_watched)
            return
        except BodyTooLarge:  # it holds what was read
            if answering:
                raise
        finally:
            self._bytes -= counted
        await self._refuse(scope, receive, send, unzipped.more if unzipped else more)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, more: bool) -> None:
        """Answer at once, then read on for a while: closing on unread data would reset the connection."""
        self.metrics.count_rejected("too_large")
        problem = from_error(BodyTooLarge(self.limit), scope["state"]["request_id"])
        answer = self.in_form(scope, problem)
        answer.headers["Connection"] = "close"
        await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
        await send({"type": "http.response.body", "body": answer.body, "more_body": True})
        drained = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while more and drained <= 8 * self.limit:
                    message = await receive()
                    drained += len(message.get("body", b""))
                    more = message.get("more_body", False)  # absent from a disconnect, too
        await send({"type": "http.response.body", "body": b""})


READING = frozenset({"GET", "HEAD", "OPTIONS"})


class Sites:
    """Lets requests through that name an allowed host, and change something only for pages of allowed origins.

    A page of any site can make its visitors' browsers send requests here. It cannot choose `Host` and `Origin`: the
    first one names a host that it does not own unless it points its own name at this machine (DNS rebinding), and the
    second one names the page's site.
    """

    def __init__(self, hosts: "Hosts", origins: Sequence[str]) -> None:
        self.is_allowed = lru_cache(maxsize=256)(hosts.allow)
        self.origins = frozenset(origins)

    def refusal(self, method: str, headers: Headers) -> HostNotAllowed | OriginNotAllowed | None:
        """Return why a request is refused; None: it is let through."""
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None and not self.is_allowed(host):  # only HTTP/1.0 may leave it out, which no browser speaks
            return HostNotAllowed(host)
        site = headers.get("sec-fetch-site", "none")  # browsers send it; "none": the user, not a page, asks
        if method in READING or site == "same-origin" or (origin is None and site == "none"):
            return None
        own = {f"{scheme}://{host.lower()}" for scheme in ("http", "https")} if host else set()
        if origin and (origin in self.origins | own or "*" in self.origins):
            return None
        return OriginNotAllowed(origin)


class Hosts:
    """The hosts as which a server may be called: its own address, names of this machine for itself, and those given.

    `bound` is where it listens; a wildcard address stands for every address. A name that begins with `*.` stands for
    all names that end so, and `*` for every name.
    """

    def __init__(self, names: Sequence[str], bound: str) -> None:
        self._any = "*" in names
        self._names = {"localhost", bound.lower(), *names}
        self._ends = (".localhost", *(name[1:] for name in names if name.startswith("*.")))
        self._bound = _address(bound)

    def allow(self, host: str) -> bool:
        """Whether a request may name this host; `host` is the header's value, perhaps with a port."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        except ValueError:
            return False
        if self._any or name in self._names or name.endswith(self._ends):
            return True
        if (address := _address(name)) is None:
            return False
        return address.is_loopback or self._bound is None or self._bound.is_unspecified or address == self._bound


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def base_of(scope: Scope) -> str:
    """Return what goes before the paths of routes: `/pools/NAME`, or nothing."""
    return str(scope.get("root_path", ""))


def path_of(scope: Scope) -> str:
    """Return a request's path as routes know it."""
    return str(scope["path"])[len(base_of(scope)) :]
