"""More requests than the model can take, and callers who do not wait: told early, and nothing done for nobody."""

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from served import Served, serve
from service_fakes import build_store, words_app
from waiting import until

from polyrank.index_builder.building.job_records import JobRequest, JobStore
from polyrank.service.http.plumbing import bodies
from polyrank.service.scheduling.admission import TOKENS_A_REQUEST

QUEUE = 4
HEAD = b"POST /rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class Busy:
    """A server whose model is at work for as long as the test likes."""

    def __init__(self, server: Served, pool: ThreadPoolExecutor) -> None:
        self.server, self.pool = server, pool
        ranker = server.app.state.resources.live.current.ranker
        self.real: Callable[..., Any] = ranker.encode_contexts
        self.entered, self.released = threading.Event(), threading.Event()
        self.encoded: list[int] = []  # contexts a batch
        ranker.encode_contexts = self._encode

    def _encode(self, contexts: list[list[int]]) -> Any:
        self.encoded.append(len(contexts))
        self.entered.set()
        assert self.released.wait(20)
        return self.real(contexts)

    def ask(self, text: str, **fields: Any) -> "Future[httpx2.Response]":
        return self.pool.submit(self.server.rank, context=text, **fields)

    def occupy(self) -> "Future[httpx2.Response]":
        first = self.ask("first")
        assert self.entered.wait(10)
        return first

    def waiting(self) -> int:
        """Behind the one that runs."""
        return int(self.server.metric("queue_depth")) - 1

    def await_waiting(self, count: int) -> None:
        until(lambda: self.waiting() == count)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Busy]:
    build_store(tmp_path)
    app = words_app(tmp_path, max_queue_tokens=QUEUE * TOKENS_A_REQUEST)
    with ThreadPoolExecutor(8) as pool, serve(app) as server:
        made = Busy(server, pool)
        yield made
        made.released.set()


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(busy: Busy) -> None:
    accepted = [busy.occupy()] + [busy.ask(f"w{n}") for n in range(QUEUE - 1)]
    busy.await_waiting(QUEUE - 1)
    began = time.perf_counter()
    response = busy.server.rank(context="too many")
    assert time.perf_counter() - began < 5
    assert response.status_code == 503
    assert response.json()["type"].endswith("overloaded")
    assert int(response.headers["retry-after"]) > 0
    assert busy.server.metric("rejected_total", reason="queue_full") == 1
    assert busy.server.client.get("/readyz").status_code == 200, "the event loop is free"
    busy.released.set()
    assert [each.result().status_code for each in accepted] == [200] * QUEUE
    assert busy.encoded == [1, QUEUE - 1], "those that waited went together"
    assert busy.server.rank(context="again").status_code == 200


def test_a_deadline_in_the_queue_is_told_in_time_and_costs_nothing(busy: Busy) -> None:
    first = busy.occupy()
    began = time.perf_counter()
    response = busy.server.rank(context="late", timeout_ms=400)
    assert 0.35 < time.perf_counter() - began < 10
    assert response.status_code == 504
    assert response.json()["type"].endswith("deadline-exceeded")
    assert busy.server.metric("rejected_total", reason="deadline") == 1
    busy.released.set()
    assert first.result().status_code == 200
    assert busy.encoded == [1]


def test_a_caller_who_hangs_up_in_the_queue_is_forgotten(busy: Busy) -> None:
    first = busy.occupy()
    body = b'{"context": "gone"}'
    with socket.create_connection(("127.0.0.1", busy.server.port)) as connection:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        busy.await_waiting(1)
    busy.await_waiting(0)
    busy.released.set()
    assert first.result().status_code == 200
    assert busy.server.rank(context="after").status_code == 200
    assert busy.encoded == [1, 1]
    assert busy.server.metric("client_cancelled_total") == 1
    assert busy.server.metric("http_requests_total", route="/rank", method="POST", code="499") == 1


def test_the_wait_is_part_of_the_answer(busy: Busy) -> None:
    first, second = busy.occupy(), busy.ask("second")
    busy.await_waiting(1)
    time.sleep(0.05)
    busy.released.set()
    first.result()
    timings = second.result().json()["timings_ms"]
    assert timings["queue"] >= 50
    assert timings["total"] >= timings["queue"]


def test_a_body_that_does_not_come_is_given_up(busy: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.1)
    answer = busy.server.raw(HEAD + b'Content-Length: 100\r\n\r\n{"context"')
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"body-timeout" in answer


@pytest.mark.parametrize(
    ("number", "status", "slug"), [(errno.EROFS, 409, "store-read-only"), (errno.ENOSPC, 507, "disk-full")]
)
@pytest.mark.parametrize("call", ["rebuild", "rollback"])
def test_a_store_that_cannot_be_written(
    busy: Busy, monkeypatch, call: str, number: int, status: int, slug: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, "no")

    root = busy.server.app.state.resources.settings.store[""]
    build_store(root)
    jobs = JobStore(root)
    jobs.update(jobs.create(JobRequest(pool=())).evolve(state="running"))  # its process has died
    monkeypatch.setattr("polyrank.index_builder.building.job_records.write_atomically", refuse)
    monkeypatch.setattr("polyrank.index_builder.store.pointer.write_atomically", refuse)
    if call == "rebuild":
        response = busy.server.client.post("/index", json={"candidates": [{"text": "w1"}]})
    else:
        response = busy.server.client.post("/index/rollback")
    assert response.status_code == status, response.text
    assert response.json()["type"].endswith(slug)
    assert busy.server.client.get("/index").json()["job"] is None
    assert [job["state"] for job in busy.server.client.get("/index/jobs").json()["jobs"]] == ["failed"]
