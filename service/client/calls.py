"""The calls of the server's routes: what each sends, and how its answer is read. Both clients have them as methods."""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial, reduce
from importlib.util import find_spec
from operator import or_
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Union, Unpack, get_args, get_origin
from urllib.parse import quote, urlencode
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, create_model

from polyrank.service.api import answers, generations
from polyrank.service.client.attempts import Call, Refused, in_json, refused

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

# What may have become of a ranking, as `POST /feedback` takes it.
Kind = Literal["chosen", "edited", "written", "up", "down", "none_good", "handed_over", "resolved"]
Context = str | Sequence[str | Mapping[str, Any]]
Documents = Sequence[str | Mapping[str, Any]]


class RankOptions(TypedDict, total=False):
    """Options of `rank`, as `POST /rank` takes them (docs/reference/http.md); `timeout_ms` covers all attempts."""

    persona: Sequence[str]
    candidates: Documents
    top_k: int
    retrieve_k: int
    exact: bool
    rerank: bool | Mapping[str, int]
    filter: Mapping[str, Any]
    exclude_ids: Sequence[str]
    score_threshold: float
    group_by: str
    limit_per_group: int
    collapse: bool
    answer_if: float
    generation: Literal["live", "trial"]
    expect: Mapping[str, str]
    min_revision: int
    conversation: str
    log: bool
    timeout_ms: int


class ExplainOptions(TypedDict, total=False):
    """Options of `explain`, as `POST /explain` takes them; `timeout_ms` covers all attempts."""

    persona: Sequence[str]
    against: str
    codes: int
    pairs: bool
    occlusion: bool
    cross: Literal["turns", "words"] | None
    generation: str
    timeout_ms: int


class RerankOptions(TypedDict, total=False):
    """Options of `rerank`: `raw_scores` are the model's own, not between 0 and 1; `timeout_ms` covers all attempts."""

    top_n: int
    model: str
    raw_scores: bool
    timeout_ms: int


class ClassifyOptions(TypedDict, total=False):
    """Options of `classify`; `timeout_ms` covers all attempts."""

    persona: Sequence[str]
    timeout_ms: int


class RebuildOptions(TypedDict, total=False):
    """Options of `rebuild`: `pool` or `candidates`, and what `POST /index` takes besides.

    Rebuilds with one `idempotency_key` start one job; absent: a new key, so that this call alone may be repeated.
    """

    pool: str
    encoding: str
    candidates: Sequence[Mapping[str, Any]]
    model: str
    activate: bool
    idempotency_key: str


class _OfAnyVersion(BaseModel):
    """What makes a kind of answer keep the fields that a later server adds, and lets its objects be pickled."""

    model_config = ConfigDict(extra="allow")

    def __reduce__(self) -> tuple[Any, ...]:
        return _read, (type(self).__bases__[0], self.model_dump(by_alias=True, exclude_unset=True))


# The fields that answers of these kinds must have; the others may be missing. Other kinds must have all.
_NEEDED: dict[type[BaseModel], Sequence[str]] = {
    answers.TimingsOut: (),
    generations.IndexOut: ("active", "others"),
    **dict.fromkeys((generations.GenerationOut, generations.ActiveOut, generations.TrialOut), ("id",)),
    **dict.fromkeys((generations.RecallOut, generations.IndexTimesOut, generations.LateRowsOut), ()),
    generations.JobOut: ("id", "state"),
}


def _as(kind: type[M]) -> Callable[[Any], M]:
    """Return what reads an answer of this kind from servers of other versions.

    Fields that it does not know are kept, those that may be missing are None, and what is one word of a list may be a
    new one.
    """
    return partial(_read, kind)


def _each(kind: type[M], name: str) -> Callable[[Any], list[M]]:
    """Return what reads a list of answers of this kind, which the answer holds under a name."""
    return lambda answer: [_read(kind, each) for each in _list_in(answer, name)]


def _list_in(answer: Any, name: str, count: int | None = None) -> list[Any]:
    """Return the list that an answer holds under a name; raises ValueError where it is none, or not of this length."""
    entries = answer[name]
    if not isinstance(entries, list) or count not in (None, len(entries)):
        raise ValueError(f"{name} is no list of the length asked for")
    return entries


def _read(kind: type[M], answer: Any) -> M:
    parsed: M = _tolerant(kind).model_validate(answer)
    return parsed


@cache
def _tolerant(kind: type[M]) -> type[M]:
    fields: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        annotation = _tolerated(field.annotation)
        if name not in _NEEDED.get(kind, kind.model_fields):
            fields[name] = (annotation | None, Field(default=None, alias=field.alias))
        else:
            fields[name] = (annotation, field)
    bases: Any = (kind, _OfAnyVersion)
    model: type[M] = create_model(kind.__name__, __base__=bases, **fields)
    return model


def _tolerated(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _tolerant(annotation)
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return str
    if origin in (Union, UnionType):
        return reduce(or_, map(_tolerated, parts))
    return origin[tuple(map(_tolerated, parts))] if origin else annotation


def _several(name: str, values: Iterable[T]) -> list[T]:
    """Return a list; raises TypeError for one text or one object, of which letters or names would be sent."""
    if isinstance(values, str | Mapping):
        raise TypeError(f"{name}: give a list, not one {'text' if isinstance(values, str) else 'object'}")
    return [*values]


def _in_path(name: str) -> str:
    """Return a name as a part of a path; `.` and `..` would be taken for directories."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def rank(context: Context, **options: Unpack[RankOptions]) -> Call[answers.RankOut]:
    """Rank replies, those sent as `candidates` or the served ones, for a conversation, oldest turn first."""
    body = {"context": context, **options}
    timeout_ms = options.get("timeout_ms")
    return Call("POST", "/rank", _as(answers.RankOut), body, timeout_ms=timeout_ms, deadline_in="body")


def feedback(
    ranking_id: str, kind: Kind, *, id: str | None = None, text: str | None = None, event_id: str | None = None
) -> Call[answers.FeedbackOut]:
    """Say what became of a ranking; `id` is the reply's, `text` what was sent. It is on the disk on return.

    An event counts once by its `event_id`; without one it gets a new one, so that this call alone may be repeated.
    """
    more = {"id": id, "text": text, "event_id": event_id}
    return feedback_batch(
        [{"ranking_id": ranking_id, "kind": kind, **{name: value for name, value in more.items() if value is not None}}]
    )


def feedback_batch(events: Iterable[Mapping[str, Any]]) -> Call[answers.FeedbackOut]:
    """Say what became of rankings, by 1 to 100 events with the fields of `feedback`: all of them count, or none."""
    with_ids = [{"event_id": uuid4().hex, **event} for event in _several("events", events)]
    return Call("POST", "/feedback", _as(answers.FeedbackOut), {"events": with_ids})


def explain(context: Context, candidates: Documents, **options: Unpack[ExplainOptions]) -> Call[answers.ExplainOut]:
    """Tell where the scores of candidates come from, 1 to 10 of them: texts, or ids as `{"id": …}`."""
    body = {"context": context, "candidates": _several("candidates", candidates), **options}
    timeout_ms = options.get("timeout_ms")
    return Call("POST", "/explain", _as(answers.ExplainOut), body, timeout_ms=timeout_ms, deadline_in="body")


def rank_batch(
    requests: Sequence[Mapping[str, Any]], *, timeout_ms: int | None = None
) -> Call[list[answers.RankOut | Refused]]:
    """Rank several bodies of `POST /rank` in one call; what is refused is returned in its place, not raised."""
    body = {"requests": _several("requests", requests)}

    def read(answer: Any) -> list[answers.RankOut | Refused]:
        return [_ranking_or_refusal(entry) for entry in _list_in(answer, "answers", len(body["requests"]))]

    return Call("POST", "/rank/batch", read, body, timeout_ms=timeout_ms, deadline_in="body")


def _ranking_or_refusal(entry: Any) -> answers.RankOut | Refused:
    if entry.get("answer") is not None:
        return _as(answers.RankOut)(entry["answer"])
    seconds = entry.get("retry_after")
    headers = {} if seconds is None else {"retry-after": str(seconds)}
    return refused(entry["status"], headers, entry["problem"])


def rerank(query: str, documents: Documents, **options: Unpack[RerankOptions]) -> Call[list[answers.RerankResultOut]]:
    """Order documents by the server's reranker, or by its model where it has none; the best first."""
    body: dict[str, Any] = {"query": query, "documents": _several("documents", documents), **options}
    timeout_ms = body.pop("timeout_ms", None)
    headers = {"X-Rerank-Dialect": "cohere"}  # whatever the server's setting is
    read = partial(_reranked, len(body["documents"]))
    return Call("POST", "/v2/rerank", read, body, headers, timeout_ms=timeout_ms)


def _reranked(count: int, answer: Any) -> list[answers.RerankResultOut]:
    results = _each(answers.RerankResultOut, "results")(answer)
    if any(not 0 <= each.index < count for each in results):
        raise ValueError("a result is of a document that was not sent")
    return results


def classify(context: Context, texts: Sequence[str], **options: Unpack[ClassifyOptions]) -> Call[answers.ClassifyOut]:
    """Tell which of the served classifier's classes each text is; `context` may be empty for single texts."""
    body = {"texts": _several("texts", texts), **options}
    if context:
        body["context"] = context
    timeout_ms = options.get("timeout_ms")
    return Call("POST", "/classify", _as(answers.ClassifyOut), body, timeout_ms=timeout_ms, deadline_in="body")


def embed(texts: Sequence[str], *, timeout_ms: int | None = None) -> Call["NDArray[np.float32]"]:
    """Return the vectors of texts as candidates, (N, D), of length 1; raises ImportError where NumPy is missing."""
    if find_spec("numpy") is None:
        raise ImportError("embed returns a NumPy array: pip install numpy")
    body = {"input": _several("texts", texts), "encoding_format": "base64"}
    return Call("POST", "/v1/embeddings", partial(_vectors, len(body["input"])), body, timeout_ms=timeout_ms)


def _vectors(count: int, answer: Any) -> "NDArray[np.float32]":
    import numpy as np

    rows = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in _list_in(answer, "data", count)]
    return np.stack(rows).astype(np.float32, copy=False)


def pools() -> Call[list[generations.PoolOut]]:
    """Return the server's pools; the `path` of one ends the URL of a client for it."""
    return Call("GET", "/pools", _each(generations.PoolOut, "pools"))


def index() -> Call[generations.IndexOut]:
    """Return what is served, what is kept, and the job that runs."""
    return Call("GET", "/index", _as(generations.IndexOut))


def candidate(candidate_id: str) -> Call[generations.StoredOut]:
    """Return a stored candidate; raises NotThere if there is none."""
    return Call("GET", f"/index/candidates/{_in_path(candidate_id)}", _as(generations.StoredOut))


def candidates(after: str | None, limit: int, filter: Mapping[str, Any] | None) -> Call[generations.CandidatesOut]:
    """Return a page of stored candidates."""
    query = {"limit": limit, **({} if after is None else {"after": after})}
    if filter is not None:
        query["filter"] = in_json(filter)
    return Call("GET", f"/index/candidates?{urlencode(query)}", _as(generations.CandidatesOut))


def upsert(candidates: Iterable[Mapping[str, Any]]) -> Call[generations.UpsertedOut]:
    """Add candidates (`text`, `id`, `metadata`), or replace those with the same ids; searchable on return."""
    body = _several("candidates", candidates)
    return Call("PUT", "/index/candidates", _as(generations.UpsertedOut), body, may_repeat=False)


def delete(ids: Iterable[str]) -> Call[generations.DeletedOut]:
    """Remove candidates; ids that are not there are no error."""
    path, body = "/index/candidates/delete", {"ids": _several("ids", ids)}
    return Call("POST", path, _as(generations.DeletedOut), body, may_repeat=False)


def rebuild(**options: Unpack[RebuildOptions]) -> Call[generations.JobOut]:
    """Start a rebuild from a `pool` under the server's pool root, or from `candidates`; `watch` follows it."""
    body: dict[str, Any] = {**options}
    key = body.pop("idempotency_key", None) or uuid4().hex
    return Call("POST", "/index", _as(generations.JobOut), body, {"Idempotency-Key": key})


def job(job_id: str) -> Call[generations.JobOut]:
    """Return how far a job is."""
    return Call("GET", f"/index/jobs/{_in_path(job_id)}", _as(generations.JobOut))


def jobs(limit: int = 20) -> Call[list[generations.JobOut]]:
    """Return the latest jobs, newest first."""
    return Call("GET", f"/index/jobs?limit={limit}", _each(generations.JobOut, "jobs"))


def cancel(job_id: str) -> Call[generations.JobOut]:
    """Stop a job and remove what it has built; one that has ended stays as it is."""
    return Call("POST", f"/index/jobs/{_in_path(job_id)}/cancel", _as(generations.JobOut))


def activate(generation: str) -> Call[generations.IndexOut]:
    """Switch to a generation."""
    body = {"generation": generation}
    return Call("POST", "/index/activate", _as(generations.IndexOut), body, may_repeat=False)


def rollback() -> Call[generations.IndexOut]:
    """Switch back to the generation that was active before."""
    return Call("POST", "/index/rollback", _as(generations.IndexOut), may_repeat=False)


def trial(generation: str) -> Call[generations.IndexOut]:
    """Load a generation beside the live one; `generation="trial"` of `rank` and `explain` asks for it."""
    return Call("POST", "/index/trial", _as(generations.IndexOut), {"generation": generation})


def end_trial() -> Call[generations.IndexOut]:
    """End the trial, if there is one."""
    return Call("POST", "/index/trial/end", _as(generations.IndexOut))
