"""Who may call a route: rules that routes declare, by the keys that requests carry."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import Depends
from fastapi.routing import APIRoute, RouteContext
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from polyrank.service.auth.keys import ANYBODY, Scope
from polyrank.service.resources import Resources


@dataclass(frozen=True, slots=True)
class Needs:
    """Lets requests through whose key has the scope; puts the caller into `request.state.principal`.

    A request that `counts` spends from its key's rate. A key for some pools must be for that of the path; it is for
    none of them where a route is `of` the server, and for any where it is of every pool. Raises Unauthenticated,
    Forbidden or RateLimited.
    """

    scope: Scope
    counts: bool = True
    of: Literal["pool", "server", "any pool"] = "pool"

    async def __call__(self, request: Request) -> None:
        """Check one request."""
        resources: Resources = request.state.resources
        pool = None if self.of == "any pool" else "" if self.of == "server" else resources.pool
        # The log names also those who are refused.
        request.state.principal = principal = resources.access.identify(credentials(request.headers))
        resources.access.require(principal, self.scope, pool)
        if self.counts:
            resources.access.spend(principal)


async def anybody(request: Request) -> None:
    """Let every request through."""
    request.state.principal = ANYBODY


async def pool_needed(request: Request) -> None:
    """Refuse a request whose path names none of the server's pools; raises PoolNotFound."""
    resources: Resources = request.state.resources
    if resources.settings.store and resources.live.absent is not None:
        raise resources.live.absent()


async def scraper(request: Request) -> None:
    """Let those through who may read the metrics; their calls do not count against a rate."""
    resources: Resources = request.state.resources
    if resources.settings.metrics_access == "admin":
        await Needs("admin", counts=False, of="server")(request)
    else:
        await anybody(request)


class ByHand(APIRoute):
    """A route that reads the request by hand: FastAPI need not look for parameters, only describe it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the endpoint behind its access rules."""
        rules = [each.dependency for each in self.dependencies if each.dependency is not None]

        async def answered(request: Request) -> Response:
            for rule in rules:
                await rule(request)
            response: Response = await self.endpoint(request)
            return response

        return answered


RANK = Depends(Needs("rank"))
RANK_ANY = Depends(Needs("rank", of="any pool"))
ADMIN = Depends(Needs("admin"))
OPEN = Depends(anybody)
IN_POOL = Depends(pool_needed)
METRICS = Depends(scraper)


def credentials(headers: Headers) -> list[bytes]:
    """Return what may be keys: of each `Authorization`, with or without `Bearer`, each `X-API-Key` and `api-key`."""
    sent = [*headers.getlist("x-api-key"), *headers.getlist("api-key")]
    for authorization in headers.getlist("authorization"):
        scheme, *rest = authorization.split(None, 1) or [""]
        sent.append("".join(rest) if scheme.lower() == "bearer" else authorization)
    return [key.strip().encode("latin-1") for key in sent if key.strip()]


def rules(route: RouteContext) -> list[Callable[..., Any]]:
    """Return the access rules that a route declares. A list without any means that the rule was forgotten."""
    dependant = getattr(route, "dependant", None)
    called = [dependency.call for dependency in dependant.dependencies] if dependant else []
    return [call for call in called if isinstance(call, Needs) or call in (anybody, scraper)]
