"""The access rule of each route, as a FastAPI dependency: it is checked before the body is read.

A router or a route says `dependencies=[RANK]`, `[ADMIN]` or `[OPEN]`; errors rise where the route's own handler sees
them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Depends
from fastapi.routing import RouteContext
from starlette.datastructures import Headers
from starlette.requests import Request

from polyrank.service.auth.access import ANYBODY
from polyrank.service.auth.keys import Scope
from polyrank.service.resources import resources


@dataclass(frozen=True, slots=True)
class Needs:
    """Lets a request through whose key has the scope, and leaves who it is in `request.state.principal`.

    Raises:
        Unauthenticated, Forbidden, RateLimited
    """

    scope: Scope
    counts: bool = True

    async def __call__(self, request: Request) -> None:
        """Check one request."""
        access = resources(request).access
        request.state.principal = principal = access.identify(credentials(request.headers))
        access.require(principal, self.scope)
        if self.counts:
            access.spend(principal)


async def anybody(request: Request) -> None:
    """Let every request through."""
    request.state.principal = ANYBODY


async def scraper(request: Request) -> None:
    """Let those through who may read the metrics, as often as they like."""
    if resources(request).settings.metrics_access == "admin":
        await Needs("admin", counts=False)(request)
    else:
        await anybody(request)


RANK = Depends(Needs("rank"))
ADMIN = Depends(Needs("admin"))
OPEN = Depends(anybody)
METRICS = Depends(scraper)


def credentials(headers: Headers) -> list[bytes]:
    """Return what may be a key: `Authorization` with or without `Bearer`, `X-API-Key`, `api-key`."""
    authorization = headers.get("authorization", "").strip()
    scheme, *rest = authorization.split(None, 1) or [""]
    bearer = "".join(rest) if scheme.lower() == "bearer" else authorization
    sent = (bearer, headers.get("x-api-key"), headers.get("api-key"))
    return [each.strip().encode("latin-1") for each in sent if each and each.strip()]


def rules(route: RouteContext) -> list[Callable[..., Any]]:
    """Return the access rules that a route declares: one, where none was forgotten."""
    dependant = getattr(route, "dependant", None)
    called = [each.call for each in dependant.dependencies] if dependant else []
    return [call for call in called if isinstance(call, Needs) or call in (anybody, scraper)]
