"""The access rules of routes, as FastAPI dependencies, which are checked before the body is read.

Every router or route declares one: `dependencies=[RANK]`, `[ADMIN]`, `[METRICS]` or `[OPEN]`.
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
    """Lets requests through whose key has the scope; puts the caller into `request.state.principal`.

    A request that `counts` spends from its key's rate. Raises Unauthenticated, Forbidden or RateLimited.
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
    """Let those through who may read the metrics; their calls do not count against a rate."""
    if resources(request).settings.metrics_access == "admin":
        await Needs("admin", counts=False)(request)
    else:
        await anybody(request)


RANK = Depends(Needs("rank"))
ADMIN = Depends(Needs("admin"))
OPEN = Depends(anybody)
METRICS = Depends(scraper)


def credentials(headers: Headers) -> list[bytes]:
    """Return what may be keys: `Authorization` with or without `Bearer`, `X-API-Key`, `api-key`."""
    authorization = headers.get("authorization", "").strip()
    scheme, *rest = authorization.split(None, 1) or [""]
    bearer = "".join(rest) if scheme.lower() == "bearer" else authorization
    sent = (bearer, headers.get("x-api-key"), headers.get("api-key"))
    return [key.strip().encode("latin-1") for key in sent if key and key.strip()]


def rules(route: RouteContext) -> list[Callable[..., Any]]:
    """Return the access rules that a route declares. A list without any means that the rule was forgotten."""
    dependant = getattr(route, "dependant", None)
    called = [dependency.call for dependency in dependant.dependencies] if dependant else []
    return [call for call in called if isinstance(call, Needs) or call in (anybody, scraper)]
