"""Texts that were made to be tokenised slowly, in every field that holds texts: no other caller waits for them.

The model is a fake, which takes no time; its tokenizer is that of all-MiniLM-L6-v2.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import httpx2
import orjson
import pytest
from served import Served, serve
from service_fakes import WordRanker, build_store, pool
from service_fakes import load as load_words

from polyrank.model.checkpoint.lookup import MINILM, resolve_base
from polyrank.model.config import ModelConfig
from polyrank.model.text.assembly import Assembler, Conversation, Truncation
from polyrank.model.text.reading import Steps
from polyrank.model.text.sequences import Pairs
from polyrank.model.text.tokenizer import Token, Tokenizer
from polyrank.service.app import create_app
from polyrank.service.settings import Settings

INPUTS = int(os.environ.get("SOAK_EXAMPLES", "100"))
LONGEST = 20_000  # letters of one text
LETTERS = 8_000_000  # of one request: nearly 16 MiB in UTF-8
MORE_SECONDS = 0.5  # than in calm, where the machine has nothing else to do
MORE_SECONDS_BESIDE_OTHER_TESTS = 2.0


@cache
def assembler() -> Assembler:
    tokenizer = Tokenizer(resolve_base(MINILM).directory / "tokenizer.json")
    return Assembler(tokenizer, ModelConfig(architecture="poly", base_name="", n_codes=4, max_context_tokens=128))


class PiecesRanker(WordRanker):
    """Takes word pieces for words."""

    def context_steps(self, conversation: Conversation) -> Steps[tuple[list[int], Truncation]]:
        return assembler().context_steps(conversation)

    def tokenize_candidates(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        return assembler().candidates(texts)

    def pieces(self, texts: Sequence[str], wrapped: bool) -> list[list[Token]]:
        return assembler().tokenizer.pieces(texts, wrapped)


def load(path: str) -> Any:
    """Load a model that reads word pieces."""
    loaded = load_words(path)
    if isinstance(loaded, WordRanker):
        return PiecesRanker(loaded.seed)

    def pair_steps(conversation: Conversation, texts: Sequence[str]) -> Steps[tuple[Pairs, Truncation]]:
        return assembler().pair_steps(conversation, texts)

    loaded.pair_steps = pair_steps
    return loaded


# What makes a word of a text. The first two are the slowest known: words that are read letter by letter.
MADE: dict[str, Callable[[random.Random], str]] = {
    "letters of two bytes": lambda chance: "".join(chance.choices("абвгдежзийклмно", k=100)) + " ",
    "unknown at its end": lambda chance: "".join(chance.choices("qzxjvkw", k=99)) + "\U0001f9ff\n",
    "one letter": lambda chance: "№" * 100 + " ",
    "marks": lambda chance: "e" + "".join(chance.choices("\u0301\u0316\u0345\u05b0", k=500)),
    "no space": lambda chance: "".join(chance.choices("abcdefghij", k=500)),
    "signs": lambda chance: "".join(chance.choices(".,;!?", k=50)),
    "spaces": lambda chance: "a" + " " * 500,
    "any letters": lambda chance: "".join(
        chr(chance.choice((chance.randrange(32, 0xD800), 0x1F9FF))) for _ in range(50)
    ),
}


def made_text(kind: str, seed: int) -> str:
    chance = random.Random(seed)
    some = "".join(MADE[kind](chance) for _ in range(40))
    return (some * (LONGEST // len(some) + 1))[: LONGEST - 8]


def texts_of(kind: str, seed: int, letters: int) -> list[str]:
    """Make texts that differ, of so many letters in all, and that take no more than a request may have."""
    text = made_text(kind, seed)
    count = min(letters, LETTERS * 2 * len(text) // len(text.encode())) // LONGEST
    return [f"{at} {text}" for at in range(max(count, 1))]


# Field -> the call, with the texts in that field. What is bounded in number takes as many as it may.
FIELDS: dict[str, Callable[[list[str]], tuple[str, str, Any]]] = {
    "context": lambda texts: ("POST", "/rank", {"context": texts[0]}),
    "turns": lambda texts: ("POST", "/rank", {"context": texts}),
    "persona": lambda texts: ("POST", "/rank", {"context": "hello", "persona": texts[:100]}),
    "candidates": lambda texts: ("POST", "/rank", {"context": "hello", "candidates": texts}),
    "query": lambda texts: ("POST", "/rerank", {"query": texts[0], "texts": ["hello"] * 100}),
    "texts": lambda texts: ("POST", "/rerank", {"query": "hello", "texts": texts}),
    "documents": lambda texts: ("POST", "/v1/rerank", {"query": "hello", "documents": texts}),
    "inputs": lambda texts: ("POST", "/embed", {"inputs": texts}),
    "input": lambda texts: ("POST", "/v1/embeddings", {"input": texts}),
    "sentences": lambda texts: ("POST", "/similarity", {"inputs": {"source_sentence": texts[0], "sentences": texts}}),
    "tokens": lambda texts: ("POST", "/tokenize", {"inputs": texts[:19]}),
    "index": lambda texts: ("PUT", "/index/candidates", [{"text": text} for text in texts]),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("slow")
    build_store(root, pool(20))
    with serve(create_app(Settings(store=root, reranker="cross", vector_cache_mb=0), load, load)) as served:
        yield served


class Colleague:
    """Another caller, who asks for something usual again and again; `longest` is the longest wait in seconds."""

    def __init__(self, server: Served) -> None:
        self._client = server.client
        self.waits: list[float] = []

    def ask(self) -> None:
        number = len(self.waits)
        context = [f"hello {number}", "where is my parcel? " * 60]
        began = time.monotonic()
        answer = self._client.post("/rank", json={"context": context, "candidates": ["let me check", f"no {number}"]})
        self.waits.append(time.monotonic() - began)
        assert answer.status_code == 200, answer.text


def longest_wait(server: Served, field: str, kind: str, seed: int, letters: int, timeout_ms: int) -> float:
    """Send one request of such texts; returns how long another caller waited at most meanwhile, in seconds."""
    method, path, body = FIELDS[field](texts_of(kind, seed, letters))
    content = orjson.dumps(body)
    headers = {"Content-Type": "application/json", "X-Request-Timeout-Ms": str(timeout_ms)}
    told: list[int] = []

    def send() -> None:
        with httpx2.Client(base_url=server.url, timeout=120) as client:
            told.append(client.request(method, path, content=content, headers=headers).status_code)

    colleague, sending = Colleague(server), threading.Thread(target=send)
    sending.start()
    colleague.ask()
    while sending.is_alive():
        colleague.ask()
    sending.join()
    assert told[0] in (200, 413, 429, 503, 504), told
    return max(colleague.waits)


def calm_wait(server: Served) -> float:
    colleague = Colleague(server)
    for _ in range(20):
        colleague.ask()
    return max(colleague.waits)


@pytest.mark.parametrize("field", FIELDS)
def test_nobody_waits_for_slow_texts(server: Served, field: str) -> None:
    calm, letters = calm_wait(server), 1_000_000 if field == "index" else 2_000_000  # an update has no deadline
    waited = longest_wait(server, field, "letters of two bytes", 0, letters, 300)
    assert waited <= calm + MORE_SECONDS_BESIDE_OTHER_TESTS


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("field", FIELDS)
def test_nobody_waits_for_the_largest_texts_of_any_kind(server: Served, field: str) -> None:
    calm, kinds = calm_wait(server), list(MADE)
    waits = {
        (kinds[seed % len(kinds)], seed): longest_wait(server, field, kinds[seed % len(kinds)], seed, LETTERS, 1000)
        for seed in range(INPUTS)
    }
    worst = max(waits, key=waits.__getitem__)
    assert waits[worst] <= calm + MORE_SECONDS, (worst, calm)
