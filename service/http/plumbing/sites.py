"""Refuses what browsers send for pages that may not call this server.

A page of any site can make its visitors' browsers send requests here. It cannot choose `Host` and `Origin`: the first
one names a host that it does not own unless it points its own name at this machine (DNS rebinding), and the second one
names the page's site.
"""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from polyrank.model.errors import RankingError
from polyrank.service.errors import HostNotAllowed, OriginNotAllowed
from polyrank.service.http.plumbing.middleware import InForm
from polyrank.service.http.plumbing.problems import from_error
from polyrank.service.observe.metrics import Metrics

READING = frozenset({"GET", "HEAD", "OPTIONS"})


class Sites:
    """Lets requests through that name an allowed host, and change something only for pages of allowed origins."""

    def __init__(self, app: ASGIApp, hosts: "Hosts", origins: Sequence[str], metrics: Metrics, in_form: InForm) -> None:
        self.app, self.metrics, self.in_form = app, metrics, in_form
        self.is_allowed = lru_cache(maxsize=256)(hosts.allow)
        self.origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        try:
            if scope["type"] == "http":
                self._check(scope["method"], Headers(scope=scope))
        except RankingError as error:
            self.metrics.count_rejected(error.rejected or "")
            problem = from_error(error, scope["state"]["request_id"])
            await self.in_form(scope, problem)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _check(self, method: str, headers: Headers) -> None:
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None and not self.is_allowed(host):  # only HTTP/1.0 may leave it out, which no browser speaks
            raise HostNotAllowed(host)
        site = headers.get("sec-fetch-site", "none")  # browsers send it; "none": the user, not a page, asks
        if method in READING or site == "same-origin" or (origin is None and site == "none"):
            return
        own = {f"{scheme}://{host.lower()}" for scheme in ("http", "https")} if host else set()
        if origin and (origin in self.origins | own or "*" in self.origins):
            return
        raise OriginNotAllowed(origin)


class Hosts:
    """The hosts as which a server may be called: its own address, names of this machine for itself, and those given.

    `bound` is where it listens; a wildcard address stands for every address. A name that begins with `*.` stands for
    all names that end so, and `*` for every name.
    """

    def __init__(self, given: Sequence[str], bound: str) -> None:
        self._any = "*" in given
        self._names = {"localhost", bound.lower(), *given}
        self._ends = (".localhost", *(name[1:] for name in given if name.startswith("*.")))
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
