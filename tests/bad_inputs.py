"""What tests of bad inputs share: a server, its problems, and how long a refusal may take."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from served import Served, serve
from service_fakes import build_store, words_app

BOUND = 1 << 20
# A refusal takes less than 50 ms, and keeps nobody else waiting longer; a busy machine may be five times as slow.
SECONDS = 0.25
HEAD = b"POST /rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ASK = b'{"context": "a"}'


@contextmanager
def serve_words(root: Path, **settings: Any) -> Iterator[Served]:
    """Serve a small store with the bounds that the inputs are made for."""
    build_store(root)
    bounds = {"max_body_bytes": BOUND, "max_candidates": 10_000, "max_text_chars": 20_000, "reranker": "cross"}
    with serve(words_app(root, **{**bounds, **settings})) as served:
        served.rank(context="warm")
        yield served


def post(server: Served, body: bytes, **headers: str) -> httpx2.Response:
    """Send a body to /rank as it is."""
    sent = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return server.client.post("/rank", content=body, headers=sent)


def is_problem(response: httpx2.Response, *statuses: int) -> dict[str, Any]:
    """Check that an answer is one of these problems; returns it."""
    assert response.status_code in statuses, response.text[:500]
    assert response.headers["content-type"] == "application/problem+json"
    body = dict(response.json())
    assert set(body) >= {"type", "title", "status", "detail", "request_id"}
    assert body["status"] == response.status_code
    assert body["request_id"] == response.headers["x-request-id"]
    assert (response.status_code == 422) == ("errors" in body)
    return body


def best_of_three(seconds: Callable[[], float]) -> None:
    """Hold a time against the bound; something else may take the machine up twice."""
    taken: list[float] = []
    while len(taken) < 3 and min(taken, default=SECONDS) >= SECONDS:
        taken.append(seconds())
    assert min(taken) < SECONDS, taken


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
