"""What a server keeps of requests that it refuses: nothing, and it needs no collector to let go of them."""

import gc
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from served import Served, serve
from service_fakes import build_store, pool, words_app

PATIENCE_SECONDS = 5.0
MANY = [{"text": f"a{number}"} for number in range(2000)]
REFUSED: dict[str, tuple[str, str, Any]] = {
    "a wrong field": ("POST", "/rank", {"context": 1}),
    "no JSON": ("POST", "/rank", "[" * 5000),
    "a wrong field beside many values": ("POST", "/rank", {"context": 1, "candidates": MANY}),
    "wrong values": ("PUT", "/index/candidates", [{"text": 1}] * 5000),
    "too many candidates": ("POST", "/rank", {"context": "a", "candidates": MANY}),
    "too many updates": ("PUT", "/index/candidates", MANY),
    "too little time": ("POST", "/rank", {"context": "a", "candidates": MANY[:900], "timeout_ms": 1}),
    "another generation": ("POST", "/rank", {"context": "a", "candidates": MANY[:900], "expect": {"generation": "x"}}),
    "wrong rankings": ("POST", "/rank/batch", {"requests": [{"context": "a", "x": 1}] * 100}),
    "a wrong document": ("POST", "/rerank", {"query": "a", "documents": [*["a"] * 5000, 1]}),
    "too many texts": ("POST", "/v1/embeddings", {"input": ["a"] * 2000}),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("store")
    build_store(root, pool(20))
    with serve(words_app(root, reranker="cross", max_candidates=1000)) as served:
        served.rank(context="warm")
        yield served


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def kept() -> list[str]:
    """Names of the errors and bodies that there are."""
    with warnings.catch_warnings(action="ignore"):  # looking at all objects wakes some that warn
        return [type(one).__name__ for one in gc.get_objects() if isinstance(one, BaseException | BaseModel)]


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_let_go_of(served: Served, refused: tuple[str, str, Any]) -> None:
    method, path, body = refused
    for _ in range(3):
        served.client.request(method, path, json=body)
    until = time.monotonic() + PATIENCE_SECONDS
    while (left := kept()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left
