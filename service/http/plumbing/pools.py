"""The pool that a request's path names, as plain ASGI middleware; routes know no names.

Below `/pools/NAME` stand all routes for the pool of that name. In ASGI's words, `/pools/NAME` is their `root_path`.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from polyrank.service.errors import PoolNotFound
from polyrank.service.http.plumbing.middleware import InForm
from polyrank.service.http.plumbing.problems import from_error
from polyrank.service.observe.logs import POOL

_POOLS = "/pools/"


class Pools:
    """Finds what serves the pool that a path names, or the one without a name: `resources` returns it to routes."""

    def __init__(self, app: ASGIApp, in_form: InForm) -> None:
        self.app, self.in_form = app, in_form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "http":
            name = _named(scope) if scope["path"].startswith(_POOLS) else ""
            held = scope["app"].state.pools.get(name)
            POOL.set(name if held else "")  # the log holds nothing else that a path says
            if name and held is None:
                problem = from_error(PoolNotFound(name), scope["state"]["request_id"])
                await self.in_form(scope, problem)(scope, receive, send)
                return
            scope["state"]["resources"] = held  # None before the lifespan begins
        await self.app(scope, receive, send)


def _named(scope: Scope) -> str:
    """Return the name in a path, and make what goes before the route's path the root."""
    name, slash, _ = scope["path"][len(_POOLS) :].partition("/")
    if name:
        scope["root_path"] = f"{_POOLS}{name}"
        scope["path"] += "" if slash else "/"
    return str(name)


def base_of(scope: Scope) -> str:
    """Return what goes before the paths of routes: `/pools/NAME`, or nothing."""
    return str(scope.get("root_path", ""))


def path_of(scope: Scope) -> str:
    """Return a request's path as routes know it."""
    return str(scope["path"])[len(base_of(scope)) :]
