"""The form of an error: problem details, or what the clients of a compatible route understand."""

from collections.abc import Callable
from typing import Any, Final

import orjson
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from polyrank.service.errors import HeaderInvalid
from polyrank.service.http.compat.dialects import choice, cohere, infinity, openai, tei, voyage
from polyrank.service.http.plumbing.problems import ProblemAnswer

Form = Callable[[ProblemAnswer], dict[str, Any]]

RERANK_PATHS: Final = ("/rerank", "/v1/rerank", "/v2/rerank")
OF_PATH: Final[dict[str, Form]] = {
    **dict.fromkeys(RERANK_PATHS, cohere.error),  # until the dialect is known
    **dict.fromkeys(("/v1/embeddings", "/embeddings", "/v1/models", "/models"), openai.error),
    **dict.fromkeys(("/embed", "/similarity", "/tokenize"), tei.error),
}
OF_DIALECT: Final[dict[choice.Dialect, Form]] = {
    "tei": tei.error,
    "cohere": cohere.error,
    "jina": cohere.error,
    "infinity": infinity.error,
    "voyage": voyage.error,
}
TOO_MANY_REQUESTS = 429


def of_route(scope: Scope, problem: ProblemAnswer) -> Response:
    """Render a problem as the route's clients expect it; of all other routes, as it is.

    A full queue is 429 there: their clients wait and try again on that status.
    """
    form = _form(scope)
    if form is None or problem.kind.slug == "dialect-unknown":
        return problem
    if problem.kind.slug == "overloaded":
        problem.status_code = TOO_MANY_REQUESTS
    headers = {name: value for name, value in problem.headers.items() if not name.startswith("content-")}
    return Response(orjson.dumps(form(problem)), problem.status_code, headers, media_type="application/json")


def _form(scope: Scope) -> Form | None:
    path = scope["path"]
    if path not in RERANK_PATHS:
        return OF_PATH.get(path)
    dialect = scope.get("state", {}).get("dialect") or _announced(scope)
    return OF_PATH[path] if dialect is None else OF_DIALECT[dialect]


def _announced(scope: Scope) -> choice.Dialect | None:
    """The dialect that the header or the setting names, before the body is read."""
    try:
        named = choice.of_header(Headers(scope=scope).get(choice.HEADER))
    except HeaderInvalid:
        named = None
    resources = getattr(scope["app"].state, "resources", None)
    return named or (resources and resources.settings.rerank_dialect)
