"""What HTTP says of methods, for every path: HEAD answers as GET without a body, 405 names all that a path has."""

from collections.abc import Iterable

from fastapi.routing import iter_route_contexts
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    """Answers HEAD by the route for GET; the length that is told is that of the body which is not sent."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        asked = {**scope, "method": "GET"}
        try:
            await self.app(asked, receive, send_head)
        finally:
            scope["route"] = asked.get("route")  # for who counts requests around this


def allowed(routes: Iterable[BaseRoute], scope: Scope) -> str:
    """List the methods of the path that a request came to, as the header Allow does.

    Empty where the route is none of FastAPI's: such a route knows all its methods itself.
    """
    path = getattr(scope.get("route"), "path", None)
    here = [each for each in iter_route_contexts(list(routes)) if each.path_format == path]
    methods = {method for each in here for method in each.methods or ()}
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))
