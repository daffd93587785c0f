"""Requests that send more texts than fit their time: they end in a number, and hold up nobody."""

import re
import threading
import time
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

SECONDS = 0.01  # of one text
TEXTS = [f"word{n} " + "w1 " * 15 for n in range(600)]  # more than twice as long as a request may take
TIMEOUT_MS = 2500  # longer than a busy machine stands still


class SlowRanker(WordRanker):
    """Takes its time for each candidate."""

    def encode_candidate_batch(self, candidates: Sequence[list[int]]) -> Any:
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
            return stack.enter_context(serve(create_app(settings, load, load)))

        yield started


def test_others_are_answered_meanwhile(start: Start) -> None:
    server = start()
    stop, others = threading.Event(), []

    def ask_for_little() -> None:
        number = 0
        with httpx2.Client(base_url=server.url, timeout=30) as client:
            while not stop.is_set():
                number += 1
                body = {"context": f"w{number}", "candidates": [f"fresh{number} w1", "w2 w3"]}
                asked = (body, {"context": f"w{number}"}, {**body, "top_k": 1, "timeout_ms": TIMEOUT_MS * 9 // 10})
                others.extend(client.post("/rank", json=each).status_code for each in asked)

    colleague = threading.Thread(target=ask_for_little)
    colleague.start()
    try:
        large = [server.rank(context="w1 w2", candidates=[f"a{n} {text}" for text in TEXTS]) for n in range(8)]
    finally:
        stop.set()
        colleague.join()
    assert {each.status_code for each in large} <= {413, 503, 504}, "it is more than fits its time"
    assert others.count(200) > max(5, 0.9 * len(others))
    assert set(others) <= {200, 503}


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
