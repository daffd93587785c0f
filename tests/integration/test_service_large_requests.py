"""Requests that send more texts than fit their time: they end in an answer or in a number, and hold up nobody."""

import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from served import Served, serve
from service_fakes import WordRanker, build_store, pool
from service_fakes import load as load_words

from polyrank.model.text.sequences import Pairs
from polyrank.service.app import create_app
from polyrank.service.settings import Settings

SECONDS = 0.004  # of one text
TEXTS = [f"word{n} " + "w1 " * 15 for n in range(600)]  # two and a half times as long as a request may take
TIMEOUT_MS = 1000
ATTEMPTS = 12


class SlowRanker(WordRanker):
    """Takes its time for each candidate, and counts them by their first word."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.encoded: Counter[int] = Counter()

    def encode_candidate_batch(self, candidates: Sequence[list[int]]) -> Any:
        self.encoded.update(each[0] for each in candidates)
        time.sleep(SECONDS * len(candidates))
        return super().encode_candidate_batch(candidates)


def load(path: str) -> Any:
    """Load a model that takes its time."""
    loaded = load_words(path)
    if isinstance(loaded, WordRanker):
        return SlowRanker(loaded.seed)
    score = loaded.score_pair_batch

    def slowly(pairs: Pairs) -> Any:
        time.sleep(SECONDS * len(pairs.owners))
        return score(pairs)

    loaded.score_pair_batch = slowly
    return loaded


Start = Callable[..., Served]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers with a slow model."""
    build_store(tmp_path, pool(20))
    with ExitStack() as stack:

        def started(**fields: Any) -> Served:
            settings = Settings(store=tmp_path, max_timeout_ms=TIMEOUT_MS, **fields)
            served = stack.enter_context(serve(create_app(settings, load, load)))
            ranker_of(served).encoded.clear()  # of the warm-up
            return served

        yield started


def ranker_of(server: Served) -> SlowRanker:
    ranker = server.app.state.resources.live.current.ranker
    assert isinstance(ranker, SlowRanker)
    return ranker


def until_answered(ask: Callable[[], httpx2.Response]) -> list[httpx2.Response]:
    """Send the same request until it is answered."""
    told = [ask()]
    while told[-1].status_code != 200:
        assert len(told) < ATTEMPTS, told[-1].text
        time.sleep(float(told[-1].headers.get("Retry-After", 0)))
        told.append(ask())
    return told


def encoded_texts(response: httpx2.Response) -> int:
    found = re.search(r"(\d+) of its 600 texts", response.json()["detail"])
    assert found, response.text
    return int(found[1])


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_same_request_sent_again_ends_in_an_answer(start: Start, deterministic: bool) -> None:
    server = start(deterministic=deterministic)
    *late, answered = until_answered(lambda: server.rank(context="w1 w2", candidates=TEXTS))
    assert late, "it is more than fits its time"
    assert {(each.status_code, each.json()["type"]) for each in late} == {(504, "urn:polyrank:problem:texts-left")}
    progress = [encoded_texts(each) for each in late]
    assert progress == sorted(set(progress)), "each went further than the one before"
    encoded = ranker_of(server).encoded
    assert len(encoded) == 600
    assert set(encoded.values()) == {1}, "nothing is encoded twice"
    assert server.metric("texts_kept_total") >= progress[0]
    assert server.rank(context="w1 w2", candidates=TEXTS).json()["results"] == answered.json()["results"]


def test_clients_of_other_systems_get_there_too(start: Start) -> None:
    server = start()
    body = {"query": "w1 w2", "texts": TEXTS}
    *late, answered = until_answered(lambda: server.client.post("/rerank", json=body))
    assert {each.status_code for each in late} == {504}
    assert len(answered.json()) == 600
    assert set(ranker_of(server).encoded.values()) == {1}


def test_what_clients_who_hang_up_have_waited_for_is_kept(start: Start) -> None:
    server = start()
    body = httpx2.Request("POST", server.url, json={"context": "w1", "candidates": TEXTS}).content
    head = b"POST /rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    for _ in range(ATTEMPTS):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head % len(body) + body)
            time.sleep(0.5)  # the caller's patience
        deadline = time.monotonic() + 60
        while server.metric("queue_depth"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if len(ranker_of(server).encoded) == 600:
            break
    assert server.metric("client_cancelled_total") > 1
    assert server.rank(context="w1", candidates=TEXTS).status_code == 200


def test_others_are_answered_meanwhile(start: Start) -> None:
    server = start()
    stop, others = threading.Event(), []

    def ask_for_little() -> None:
        number = 0
        with httpx2.Client(base_url=server.url, timeout=30) as client:
            while not stop.is_set():
                number += 1
                body = {"context": f"w{number}", "candidates": [f"fresh{number} w1", "w2 w3"]}
                asked = (body, {"context": f"w{number}"}, {**body, "top_k": 1, "timeout_ms": 900})
                others.extend(client.post("/rank", json=each).status_code for each in asked)

    colleague = threading.Thread(target=ask_for_little)
    colleague.start()
    try:
        until_answered(lambda: server.rank(context="w1 w2", candidates=TEXTS))
    finally:
        stop.set()
        colleague.join()
    assert len(others) > 20
    assert set(others) == {200}


@pytest.mark.parametrize("path", ["/rank", "/rerank", "/embed"])
def test_what_is_not_kept_is_refused_at_once_with_what_fits(start: Start, path: str) -> None:
    """Without room in memory, vectors are lost; scores of pairs and embeddings always are."""
    fields = {"vector_cache_mb": 0} if path == "/rank" else {"reranker": "cross"} if path == "/rerank" else {}
    server = start(**fields)

    def ask(texts: list[str]) -> httpx2.Response:
        bodies = {
            "/rank": {"context": "w1 w2", "candidates": texts},
            "/rerank": {"query": "w1 w2", "texts": texts},
            "/embed": {"inputs": texts},
        }
        return server.client.post(path, json=bodies[path])

    def batches() -> float:
        return server.metric("batch_size_count", lane="pair" if path == "/rerank" else "candidate")

    while (tried := ask(TEXTS)).status_code != 413:
        assert tried.status_code == 504, "nothing is refused before the speed is known"
        assert batches() < 20
    before = batches()
    refused = ask(TEXTS)
    assert refused.status_code == 413, refused.text
    assert batches() == before, "nothing of it was tried"
    [fitting] = re.findall(r"about (\d+) fit", refused.text)
    assert 20 < int(fitting) < 250
    assert server.metric("rejected_total", reason="too_large") >= 1
    answered = ask(TEXTS[: int(fitting)])
    assert answered.status_code == 200, answered.text
    assert np.shape(answered.json().get("results") if path == "/rank" else answered.json())[0] > 0
