"""The log says why a request was refused, and the metrics which deadlines were the caller's own wish."""

import logging
import time
from typing import Any

import httpx2
import pytest
from served import Served


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("DEBUG", logger="polyrank.request")
    return caplog


def told(logged: pytest.LogCaptureFixture, answer: httpx2.Response) -> tuple[int, dict[str, Any]]:
    """The level and the fields of the line about an answer, which is written after it was sent."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for record in list(logged.records):
            fields = vars(record).get("fields", {})
            if fields.get("request_id") == answer.headers["X-Request-ID"]:
                return record.levelno, fields
        time.sleep(0.01)
    pytest.fail("no line about the answer")


def test_a_refused_request_is_logged_with_its_problem_and_fields(server: Served, logged) -> None:
    answer = server.client.post("/rank", json={"context": "confidential", "topk": 3, "filter": {"$nor": "private"}})
    level, fields = told(logged, answer)
    assert level == logging.INFO
    assert (fields["status"], fields["problem"]) == (422, "invalid-input")
    assert "topk" in fields["wrong"]
    assert "confidential" not in str(fields)
    assert "private" not in str(fields)


@pytest.mark.parametrize(("method", "path", "sent", "problem"), [
    ("POST", "/rank", {"content": b"{"}, "malformed-body"),
    ("GET", "/nowhere", {}, "not-found"),
    ("GET", "/rank", {}, "method-not-allowed"),
    ("GET", "/index/candidates?limit=x", {}, "invalid-input"),
    ("POST", "/rerank", {"json": {"query": "a"}}, "dialect-unknown"),
    ("POST", "/v1/embeddings", {"json": {"model": "m"}}, "invalid-input"),
    ("POST", "/rank", {"json": {}, "headers": {"Origin": "https://evil.example"}}, "origin-not-allowed"),
])  # fmt: skip
def test_every_kind_of_refusal_names_its_problem(
    server: Served, logged: pytest.LogCaptureFixture, method: str, path: str, sent: dict[str, Any], problem: str
) -> None:
    answer = server.client.request(method, path, **sent)
    assert answer.is_client_error
    assert told(logged, answer)[1]["problem"] == problem


def test_long_names_of_fields_are_cut_and_few_are_told(server: Served, logged: pytest.LogCaptureFixture) -> None:
    answer = server.client.post("/rank", json={"context": "a", **{f"{n}{'x' * 500}": 1 for n in range(20)}})
    wrong = told(logged, answer)[1]["wrong"]
    assert len(wrong) <= 5
    assert max(map(len, wrong)) <= 64


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/metrics"])
def test_probes_are_logged_for_debugging_alone(server: Served, logged: pytest.LogCaptureFixture, path: str) -> None:
    level, fields = told(logged, server.client.get(path))
    assert (level, fields["route"]) == (logging.DEBUG, path)


def test_an_answered_request_has_no_problem(server: Served, logged: pytest.LogCaptureFixture) -> None:
    answer = server.rank(context="w1")
    assert answer.status_code == 200
    level, fields = told(logged, answer)
    assert level == logging.INFO
    assert "problem" not in fields


@pytest.fixture
def stalled(server: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """No ranking is in time."""
    from polyrank.service.errors import DeadlineExceeded

    async def late(*_: object) -> None:
        raise DeadlineExceeded("a test")

    monkeypatch.setattr(server.app.state.resources.engine, "rank", late)
    return server


def test_rankings_of_a_batch_are_told_apart_one_by_one(stalled: Served, logged: pytest.LogCaptureFixture) -> None:
    requests = [{"context": "w1", "timeout_ms": 5}, {"context": "w2"}, {"context": "w3", "top_k": "private"}]
    answer = stalled.client.post("/rank/batch", json={"requests": requests})
    assert answer.status_code == 200
    assert told(logged, answer)[1]["refused"] == {"deadline-exceeded": 2, "invalid-input": 1}
