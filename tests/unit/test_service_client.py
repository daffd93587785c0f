"""The Python clients against answers made up for them: what is sent, what is tried again, which errors come out."""

import asyncio
import inspect
import json
import pickle
import time
from collections.abc import AsyncIterator, Callable
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import httpx2
import pytest
from pydantic import BaseModel

import polyrank
from polyrank.service.api.answers import FeedbackOut, RankOut, ResultOut
from polyrank.service.api.generations import CandidateOut, CandidatesOut, IndexOut, JobOut, StoredOut, UpsertedOut
from polyrank.service.client import attempts, calls
from polyrank.service.feedback import records


def least(kind: type[BaseModel]) -> dict[str, Any]:
    """An answer with all fields that it must have, each with the least value."""
    return {name: _least(field.annotation) for name, field in kind.model_fields.items() if field.is_required()}


def _least(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return least(annotation)
    if get_origin(annotation) is Literal:
        return get_args(annotation)[0]
    return None if NoneType in get_args(annotation) else (get_origin(annotation) or annotation)()


REPLY = {**least(ResultOut), "rank": 1, "text": "hello"}
RANKING = {**least(RankOut), "results": [REPLY], "generation": "g1", "a_later_field": 1}
RANKING["model"] |= {"architecture": "poly", "new": True}
UPSERTED = {**least(UpsertedOut), "revision": 4}
JOB = {**least(JobOut), "id": "j1", "state": "queued"}

Outcome = httpx2.Response | httpx2.RequestError | UnicodeError


def problem(status: int, slug: str, **fields: Any) -> httpx2.Response:
    told = {"type": f"urn:polyrank:problem:{slug}", "title": "T", "status": status, "detail": "D", "request_id": "r9"}
    retry = {"Retry-After": str(fields.pop("retry"))} if "retry" in fields else {}
    return httpx2.Response(status, json={**told, **fields}, headers=retry)


class Both:
    """Makes one call with each client, over the same outcomes; returns what both of them return."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outcomes: list[Outcome] = []
        self.sent: list[httpx2.Request] = []
        self.pauses: list[float] = []
        monkeypatch.setattr(time, "sleep", self.pauses.append)
        self._monkeypatch = monkeypatch

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.sent.append(request)
        outcome = self.outcomes[len(self.sent) - 1]
        if isinstance(outcome, Exception):
            raise outcome
        return httpx2.Response(outcome.status_code, headers=outcome.headers, content=outcome.content)

    def do(self, call: Callable[[Any], Any], *outcomes: Outcome, **options: Any) -> Any:
        self.outcomes = [*outcomes]
        options["transport"] = httpx2.MockTransport(self._answer)
        self.sent, self.pauses[:] = [], []
        with polyrank.Client("http://ranker.test", "key", **options) as client:
            first = _ended(lambda: call(client))
        seen, paused = [(each.method, each.url.path) for each in self.sent], len(self.pauses)
        self.sent = []

        async def sleep(seconds: float) -> None:
            self.pauses.append(seconds)

        async def awaited() -> Any:
            async with polyrank.AsyncClient("http://ranker.test", "key", **options) as client:
                return await call(client)

        with self._monkeypatch.context() as patch:
            patch.setattr("polyrank.service.client.clients.asyncio.sleep", sleep)
            second = _ended(lambda: asyncio.run(awaited()))
        assert seen == [(each.method, each.url.path) for each in self.sent]
        assert len(self.pauses) == 2 * paused
        assert type(first) is type(second)
        assert str(first) == str(second)
        if isinstance(first, Exception):
            raise first
        return first


def _ended(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except polyrank.CallFailed as error:
        return error


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Both:
    return Both(monkeypatch)


def body(request: httpx2.Request) -> Any:
    return json.loads(request.content)


def rank(client: Any) -> Any:
    return client.rank(["hi", {"role": "user", "content": "my parcel"}], top_k=3, timeout_ms=2000)


def upsert(client: Any) -> Any:
    return client.upsert([{"id": "a", "text": "hello"}])


def rebuild(client: Any) -> Any:
    return client.rebuild(pool="new.jsonl")


def ok(answer: Any) -> httpx2.Response:
    return httpx2.Response(200, json=answer)


def test_a_ranking(both: Both) -> None:
    ranking = both.do(rank, ok(RANKING))
    assert (ranking.results[0].text, ranking.results[0].index, ranking.model.architecture) == ("hello", None, "poly")
    [sent] = both.sent
    assert sent.headers["authorization"] == "Bearer key"
    told = body(sent)
    assert 1500 < told.pop("timeout_ms") <= 2000
    assert told == {"context": ["hi", {"role": "user", "content": "my parcel"}], "top_k": 3}


def test_what_is_busy_is_asked_again_as_it_says(both: Both) -> None:
    answers = [problem(503, "overloaded", retry=1), problem(429, "rate-limited", retry=1), ok(RANKING)]
    assert both.do(lambda client: client.rank("hi", timeout_ms=60_000), *answers).generation == "g1"
    assert both.pauses[:2] == [1, 1]
    both.do(lambda client: client.rank("hi"), httpx2.ReadError("broken"), ok(RANKING))
    assert 0.1 <= both.pauses[0] <= 0.15


def test_it_gives_up(both: Both) -> None:
    busy = [problem(503, "overloaded", retry=2)] * 3
    with pytest.raises(polyrank.Busy, match=r"D \(status 503, request r9\)") as raised:
        both.do(lambda client: client.rank("hi"), *busy)
    assert (raised.value.kind, raised.value.title, raised.value.retry_after) == ("overloaded", "T", 2.0)
    assert len(both.sent) == 3
    with pytest.raises(polyrank.Busy):
        both.do(lambda client: client.rank("hi"), *busy, max_retries=0)
    assert len(both.sent) == 1


def test_it_does_not_wait_beyond_the_deadline(both: Both) -> None:
    with pytest.raises(polyrank.Busy):
        both.do(rank, problem(503, "overloaded", retry=2), ok(RANKING))
    assert (len(both.sent), both.pauses) == (1, [])
    with pytest.raises(polyrank.Busy):
        both.do(lambda client: client.rank("hi"), problem(503, "overloaded", retry=31), ok(RANKING))


def test_what_came_too_late_is_not_asked_for_again(both: Both) -> None:
    with pytest.raises(polyrank.TimeOver):
        both.do(rank, problem(504, "deadline-exceeded"), ok(RANKING))
    assert len(both.sent) == 1


@pytest.mark.parametrize("outcome", [
    httpx2.ConnectError("refused"), httpx2.ConnectTimeout("slow"), problem(503, "overloaded", retry=1),
    problem(503, "store-busy", retry=1), problem(429, "rate-limited", retry=1),
])  # fmt: skip
def test_a_change_is_repeated_where_it_was_surely_not_made(both: Both, outcome: Outcome) -> None:
    assert both.do(upsert, outcome, ok(UPSERTED)).revision == 4
    assert len(both.sent) == 2


@pytest.mark.parametrize(
    "call",
    [upsert, lambda client: client.delete(["a"]), lambda c: c.activate("g"), lambda c: c.rollback()],
    ids=["upsert", "delete", "activate", "rollback"],
)
@pytest.mark.parametrize("outcome", [
    httpx2.ReadError("broken"), httpx2.ReadTimeout("slow"), httpx2.RemoteProtocolError("closed"),
    problem(503, "shortage", retry=1), httpx2.Response(503, text="a proxy's", headers={"Retry-After": "1"}),
    httpx2.Response(502, text="a proxy's"), problem(500, "internal"),
])  # fmt: skip
def test_a_change_that_may_have_been_made_is_not_repeated(
    both: Both, call: Callable[[Any], Any], outcome: Outcome
) -> None:
    with pytest.raises(polyrank.CallFailed) as raised:
        both.do(call, outcome)
    assert len(both.sent) == 1
    assert isinstance(raised.value, polyrank.Refused) or "may have been made" in str(raised.value)


def test_a_rebuild_is_repeated_under_its_key(both: Both) -> None:
    assert both.do(rebuild, httpx2.ReadError("broken"), ok(JOB)).id == "j1"
    keys = [each.headers["idempotency-key"] for each in both.sent]
    assert keys[0] == keys[1]
    assert body(both.sent[0]) == {"pool": "new.jsonl"}
    both.do(lambda client: client.rebuild(candidates=[{"text": "a"}], idempotency_key="mine"), ok(JOB))
    assert both.sent[0].headers["idempotency-key"] == "mine"


def test_feedback_that_is_repeated_is_the_same_events(both: Both) -> None:
    def call(client: Any) -> Any:
        return client.feedback("r1", "edited", id="a", text="hello you")

    taken = {**least(FeedbackOut), "accepted": 1}
    assert both.do(call, httpx2.ReadError("broken"), problem(503, "overloaded", retry=1), ok(taken)).accepted == 1
    first, second, third = map(body, both.sent)
    assert first == second == third
    [event] = first["events"]
    assert len(event.pop("event_id")) == 32
    assert event == {"ranking_id": "r1", "kind": "edited", "id": "a", "text": "hello you"}
    both.do(lambda client: client.feedback("r1", "resolved", event_id="mine"), ok(taken))
    assert body(both.sent[0]) == {"events": [{"ranking_id": "r1", "kind": "resolved", "event_id": "mine"}]}
    two = [{"ranking_id": "r1", "kind": "none_good"}, {"ranking_id": "r2", "kind": "up", "id": "a", "event_id": "e"}]
    both.do(lambda client: client.feedback_batch(two), httpx2.ReadError("broken"), ok(taken))
    first, second = map(body, both.sent)
    assert first == second
    assert first["events"] == [{**two[0], "event_id": first["events"][0]["event_id"]}, two[1]]
    assert "event_id" not in two[0]
    with pytest.raises(TypeError, match="events"):
        both.do(lambda client: client.feedback_batch(two[0]))
    assert get_args(calls.Kind) == records.KINDS


@pytest.mark.parametrize(("status", "kind"), [
    (400, "RequestWrong"), (401, "KeyRefused"), (403, "KeyRefused"), (404, "NotThere"),
    (409, "Conflicting"), (413, "RequestWrong"), (422, "RequestWrong"), (429, "Busy"),
    (500, "ServerFailed"), (503, "Busy"), (504, "TimeOver"), (507, "ServerFailed"),
])  # fmt: skip
def test_each_status_has_its_error(both: Both, status: int, kind: str) -> None:
    errors = [{"where": "top_k", "what": "too large"}]
    with pytest.raises(polyrank.Refused) as raised:
        both.do(rank, problem(status, "some", errors=errors, job="/index/jobs/j2"), max_retries=0)
    error = raised.value
    assert type(error) is getattr(polyrank, kind)
    assert (error.status, error.kind, error.detail, error.job) == (status, "some", "D", "/index/jobs/j2")
    assert [(each.where, each.what) for each in error.findings] == [("top_k", "too large")]


def test_errors_of_compatible_routes_and_of_others(both: Both) -> None:
    cohere = {"detail": "no", "message": "no", "error": "no", "error_type": "Validation", "code": 422}
    with pytest.raises(polyrank.RequestWrong, match="no"):
        both.do(lambda client: client.rerank("q", ["a"], timeout_ms=900), httpx2.Response(422, json=cohere))
    assert 0 < int(both.sent[0].headers["x-request-timeout-ms"]) <= 900
    inner = {"error": {"message": "no vectors", "type": "x", "param": None, "code": "invalid-input"}}
    with pytest.raises(polyrank.RequestWrong, match="no vectors") as raised:
        both.do(lambda client: client.embed(["a"]), httpx2.Response(422, json=inner))
    assert raised.value.kind == "invalid-input"
    with pytest.raises(polyrank.ServerFailed, match="status 502"):
        both.do(rank, httpx2.Response(502, text="<html>"))
    for other in (httpx2.Response(200, text="hello"), ok([1]), ok({"results": []})):
        with pytest.raises(polyrank.NotAnAnswer, match="not as polyrank"):
            both.do(rank, other)
    with pytest.raises(polyrank.NotAnAnswer, match="not as polyrank"):
        both.do(lambda client: client.rank_batch([{"context": "hi"}]), ok({"answers": ["hi"]}))
    for errors in (["no"], "no", 5, [{"where": 1}], {"where": "a", "what": "b"}):
        with pytest.raises(polyrank.RequestWrong) as raised:
            both.do(rank, httpx2.Response(422, json={"errors": errors}))
        assert raised.value.findings == []
    with pytest.raises(polyrank.NoAnswer, match="may have been made"):
        both.do(upsert, httpx2.DecodingError("no gzip"))
    running = r"^http://ranker\.test: no answer \(refused\); is polyrank serve running"
    with pytest.raises(polyrank.NoAnswer, match=running):
        both.do(rank, httpx2.ConnectError("refused"), max_retries=0)
    with pytest.raises(polyrank.NoAnswer, match="label empty"):  # of the host's name
        both.do(upsert, UnicodeError("label empty"), max_retries=0)


def test_servers_of_other_versions(both: Both) -> None:
    later = {**RANKING, "degraded": ["a_later_reason"], "results": [{**REPLY, "why": {"w": 1}}], "timings_ms": {}}
    ranking = both.do(rank, ok(later))
    assert ranking.model_dump(mode="json", exclude_unset=True) == later
    assert isinstance(ranking, RankOut)
    assert (ranking.degraded, ranking.timings_ms.late) == (["a_later_reason"], None)
    served = {"active": {"id": "g1", "recall": {"recall@10": 1.0}}, "others": [{"id": "g0"}], "job": {"id": "j1"}}
    index = both.do(lambda client: client.index(), ok({**served, "job": None}))
    assert isinstance(index, IndexOut)
    assert pickle.loads(pickle.dumps(index)) == index
    assert (index.active.id, index.active.recall.recall_at_10, index.others[0].model) == ("g1", 1.0, None)
    job = both.do(
        lambda client: client.job("j1"), ok({"id": "j1", "state": "paused", "progress": {"done": 1, "total": 2}})
    )
    assert (job.progress.done, job.links, job.is_finished) == (1, None, True)
    with pytest.raises(polyrank.NotAnAnswer):
        both.do(lambda client: client.index(), ok(served))  # a job without a state


def test_only_what_reads_follows_redirections(both: Both) -> None:
    moved = httpx2.Response(301, headers={"Location": "http://ranker.test/api/index/jobs/j1"})
    assert both.do(lambda client: client.job("j1"), moved, ok(JOB)).id == "j1"
    assert both.sent[1].url.path == "/api/index/jobs/j1"
    with pytest.raises(polyrank.RequestWrong, match=r"status 301, moved to http://ranker\.test/api/index/jobs/j1"):
        both.do(rank, moved)
    assert len(both.sent) == 1


@pytest.mark.parametrize("call", [
    lambda client: client.rank("hi", filter={"price": float("nan")}),
    lambda client: next(client.candidates({"price": float("inf")})),
], ids=["body", "query"])  # fmt: skip
def test_numbers_that_json_has_not(call: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match="NaN, infinite numbers"), polyrank.Client() as client:
        call(client)


def collecting(of: Callable[[Any], Any], seen: list[Any]) -> Callable[[Any], Any]:
    """A call that goes through what comes one by one."""

    async def every(coming: AsyncIterator[Any]) -> None:
        async for each in coming:
            seen.append(each)

    return lambda client: seen.extend(of(client)) if isinstance(client, polyrank.Client) else every(of(client))


STEPS = [JOB, {**JOB, "state": "running", "progress": {"done": 3, "total": 9}}]


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_a_job_is_watched_to_its_end(both: Both, state: str) -> None:
    seen: list[JobOut] = []
    watch = collecting(lambda client: client.watch("j1"), seen)
    last = {**JOB, "state": state, "error": "no room" if state == "failed" else None}
    answers = [ok(each) for each in (*STEPS, last)]
    if state == "succeeded":
        both.do(watch, *answers)
    else:
        with pytest.raises(polyrank.JobEnded, match=f"job j1 {state}: no r"):
            both.do(watch, *answers)
    assert [(job.state, job.progress.done) for job in seen] == [("queued", 0), ("running", 3), (state, 0)] * 2
    assert [job.is_finished for job in seen[:3]] == [False, False, True]


def test_candidates_come_page_by_page(both: Both) -> None:
    stored = [{**least(CandidateOut), "id": f"c/{n}"} for n in range(3)]
    page = least(CandidatesOut)
    pages = [
        ok({**page, "candidates": stored[:2], "next": "g.2"}),
        ok({**page, "candidates": stored[2:], "next": None}),
    ]
    seen: list[StoredOut] = []
    both.do(collecting(lambda client: client.candidates({"lang": "en"}, page=2), seen), *pages)
    assert [each.id for each in seen] == ["c/0", "c/1", "c/2"] * 2
    assert [dict(each.url.params) for each in both.sent] == [
        {"limit": "2", "filter": '{"lang": "en"}'},
        {"limit": "2", "after": "g.2", "filter": '{"lang": "en"}'},
    ]


@pytest.mark.parametrize(("call", "said"), [
    (lambda client: client.delete("abc"), "ids: give a list, not one text"),
    (lambda client: client.embed("abc"), "texts: give a list, not one text"),
    (lambda client: client.classify("q", "abc"), "texts: give a list, not one text"),
    (lambda client: client.rerank("q", "abc"), "documents: give a list, not one text"),
    (lambda client: client.upsert({"id": "a", "text": "b"}), "candidates: give a list, not one object"),
    (lambda client: client.rank_batch({"context": "a"}), "requests: give a list, not one object"),
], ids=["delete", "embed", "classify", "rerank", "upsert", "rank_batch"])  # fmt: skip
def test_one_text_is_not_taken_for_a_list_of_letters(both: Both, call: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        both.do(call)
    assert both.sent == []


def test_an_id_is_one_part_of_a_path(both: Both) -> None:
    for candidate_id, path in ((".", "%2E"), ("..", "%2E%2E"), ("a/../b?c", "a%2F..%2Fb%3Fc"), ("v1.2", "v1.2")):
        stored = {**least(StoredOut), "id": candidate_id}
        assert both.do(lambda client, name=candidate_id: client.candidate(name), ok(stored)).id == candidate_id
        assert both.sent[0].url.raw_path.decode() == f"/index/candidates/{path}"


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        public = {name: each for name, each in vars(kind).items() if inspect.isfunction(each) and name[0] != "_"}
        return {name: [*inspect.signature(each).parameters] for name, each in public.items()}

    assert methods(polyrank.Client) == methods(polyrank.AsyncClient)


def test_a_proxy_is_not_asked_for_this_machine() -> None:
    for url, is_asked in (
        ("http://127.0.0.1:8000", False),
        ("http://127.1.2.3:8000", False),
        ("http://localhost:8000", False),
        ("http://LOCALHOST:8000", False),
        ("http://[::1]:8000", False),
        ("https://rank.shop.example", True),
    ):
        assert attempts.options(url, None)["trust_env"] is is_asked


@pytest.mark.parametrize("url", ["http://127.0.0.1:65536", "http://127.0.0.1:8000?a=b", "http://127.0.0.1:8000/#a"])
def test_what_is_no_url_of_a_server(url: str) -> None:
    """A socket takes a port modulo 65,536; a path behind ? or # would reach another route."""
    with pytest.raises(ValueError, match="this is no URL"):
        polyrank.Client(url)
