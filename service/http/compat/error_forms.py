"""The form of an error on the routes for other systems' clients; which form goes with which route and dialect."""

from collections.abc import Callable
from typing import Final

from pydantic import BaseModel, RootModel
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from polyrank.service.errors import HeaderInvalid
from polyrank.service.http.compat import cohere, openai, tei, voyage
from polyrank.service.http.compat.rerank_request import HEADER, Dialect, dialect_of_header
from polyrank.service.http.plumbing.problems import TOO_MANY_REQUESTS, ProblemAnswer

Form = Callable[[ProblemAnswer], BaseModel]

RERANK_PATHS: Final = ("/rerank", "/v1/rerank", "/v2/rerank")
OF_PATH: Final[dict[str, Form]] = {
    **dict.fromkeys(RERANK_PATHS, cohere.error),  # until the dialect is known
    **dict.fromkeys(("/v1/embeddings", "/embeddings", "/v1/models", "/models"), openai.error),
    **dict.fromkeys(("/", "/embed", "/similarity", "/tokenize"), tei.error),
    **dict.fromkeys(("/v1/embed", "/v2/embed"), cohere.error),
}
OF_DIALECT: Final[dict[Dialect, Form]] = {
    "tei": tei.error,
    "cohere": cohere.error,
    "jina": cohere.error,
    "infinity": openai.error,
    "voyage": voyage.error,
}


class RerankErrorOut(RootModel[cohere.AnyErrorOut | tei.TeiErrorOut | voyage.DetailErrorOut | openai.OpenAiErrorOut]):
    """An error in the dialect's form; the first one where the dialect is not known yet."""


def of_route(scope: Scope, problem: ProblemAnswer) -> Response:
    """Put a problem in the form that the route's clients expect; on all other routes it stays as it is.

    A full queue is status 429 there, not 503: on 429 their clients wait and try again. The problem is kept for the log.
    """
    scope.setdefault("state", {})["problem"] = problem
    form = _form(scope)
    if form is None or problem.kind.slug == "dialect-unknown":
        return problem
    if problem.kind.slug == "overloaded":
        problem.status_code = TOO_MANY_REQUESTS
    headers = {name: value for name, value in problem.headers.items() if not name.startswith("content-")}
    body = form(problem).model_dump_json()
    return Response(body, problem.status_code, headers, media_type="application/json")


def _form(scope: Scope) -> Form | None:
    path = scope["path"]
    if path not in RERANK_PATHS:
        return OF_PATH.get(path)
    dialect = scope.get("state", {}).get("dialect") or _announced(scope)
    return OF_PATH[path] if dialect is None else OF_DIALECT[dialect]


def _announced(scope: Scope) -> Dialect | None:
    """Return the dialect that the header or the setting names, before the body is read."""
    try:
        named = dialect_of_header(Headers(scope=scope).get(HEADER))
    except HeaderInvalid:
        named = None
    resources = getattr(scope["app"].state, "resources", None)
    return named or (resources and resources.settings.rerank_dialect)
