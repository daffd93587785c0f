"""A model that fails: whose request it is, what readiness says, and how it comes back (fault F12)."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from served import Served, serve
from service_fakes import WordRanker, build_store, words_app
from waiting import until

from polyrank.service.scheduling.scheduler import MOST_FAILURES


class Fragile:
    """A server whose model fails as the test likes."""

    def __init__(self, server: Served) -> None:
        self.server = server
        self.ranker: WordRanker = server.app.state.resources.live.current.ranker
        self.real = self.ranker.encode_contexts
        self.broken: Callable[[], BaseException | None] = lambda: None
        self.gate = threading.Event()
        self.gate.set()
        self.ranker.encode_contexts = self._encode

    def _encode(self, contexts: list[list[int]]) -> Any:
        assert self.gate.wait(10)
        if error := self.broken():
            raise error
        if any(len(each) == 13 for each in contexts):
            raise ValueError("out of memory")
        return self.real(contexts)

    def status(self, path: str) -> int:
        return self.server.client.get(path).status_code

    def await_status(self, path: str, status: int) -> None:
        until(lambda: self.status(path) == status)


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[Fragile]:
    build_store(tmp_path)
    with serve(words_app(tmp_path)) as server:
        made = Fragile(server)
        yield made
        made.gate.set()


def test_f12_only_the_request_that_makes_a_batch_fail_fails(fragile: Fragile) -> None:
    thirteen = " ".join(f"w{n}" for n in range(13))
    with ThreadPoolExecutor(8) as pool:
        fragile.gate.clear()
        asked = [pool.submit(fragile.server.rank, context=each) for each in ("w1", "w2 w3", thirteen, "w4", "w5 w6")]
        until(lambda: fragile.server.metric("queue_depth") >= len(asked))
        fragile.gate.set()
        answers = [each.result() for each in asked]
    assert [each.status_code for each in answers] == [200, 200, 500, 200, 200]
    assert "memory" not in answers[2].text
    assert fragile.status("/readyz") == 200


def test_f12_a_model_that_fails_again_and_again_is_not_ready_until_it_works(fragile: Fragile) -> None:
    fragile.broken = lambda: RuntimeError("CUDA error: out of memory")
    for _ in range(MOST_FAILURES):
        assert fragile.status("/readyz") == 200
        assert fragile.server.rank(context="w1").status_code == 500
    answer = fragile.server.client.get("/readyz")
    assert answer.status_code == 503
    assert "failed" in answer.json()["detail"]
    assert fragile.status("/livez") == 200, "it may come back by itself"
    fragile.broken = lambda: None
    fragile.await_status("/readyz", 200)  # the server tries by itself
    assert fragile.server.rank(context="w1").status_code == 200


def test_when_the_models_thread_ends_only_a_restart_helps(fragile: Fragile) -> None:
    fragile.broken = lambda: SystemExit("gone")
    assert fragile.server.rank(context="w1").status_code == 500
    fragile.await_status("/livez", 503)
    assert fragile.status("/readyz") == 503
    assert fragile.server.rank(context="w1").status_code == 500
