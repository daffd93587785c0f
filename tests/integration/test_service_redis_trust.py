"""What others write into Redis under polyrank's keys, with checksums that are right: no answer is made of it."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from redis_process import RedisProcess, with_secret
from served import Served, serve
from service_fakes import DIM, MAX_TOKENS, WordRanker, build_store, load, pool
from waiting import until

from polyrank.index_builder.redis_client import Seal
from polyrank.index_builder.vectors import redis as stored
from polyrank.model.representations import LateRows
from polyrank.service.app import create_app
from polyrank.service.caching import result_cache
from polyrank.service.caching.vectors import largest_of
from polyrank.service.live import searchable
from polyrank.service.observe.metrics import RESULTS
from polyrank.service.settings import Settings

TEXTS = [f"w{n} w{n + 1}" for n in range(8)]
IDS = [f"c{n}" for n in range(8)]
HALF = np.dtype("<f2")
Start = Callable[..., Served]

# Vectors that no model makes, by what is wrong with them.
FORGED: dict[str, list[float]] = {
    "far too long": [65_504.0] * DIM, "too long": [30.0] * DIM,
    "too long the other way": [-30.0] * DIM, "long in one place": [0.0] * (DIM - 1) + [500.0],
    "no numbers": [float("nan")] * DIM, "one is no number": [0.1] * (DIM - 1) + [float("nan")],
    "infinite": [float("inf")] * DIM, "infinite the other way": [0.0] * (DIM - 1) + [-float("inf")],
}  # fmt: skip


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers on one store, with nothing in their own memory."""
    with ExitStack() as stack:

        def started(**fields: Any) -> Served:
            settings = Settings(store=tmp_path, **{"vector_cache_mb": 0, "result_cache_mb": 0, **fields})
            return stack.enter_context(serve(create_app(settings, load)))

        yield started


def ask(server: Served, candidates: Sequence[Any] | None = None) -> tuple[Any, list[str]]:
    sent = {} if candidates is None else {"candidates": candidates}
    response = server.rank(context="w1 w2 w3", top_k=40, **sent)
    assert response.status_code == 200, response.text
    return response.json()["results"], response.json()["degraded"]


def ids(names: Sequence[str] = IDS) -> list[dict[str, str]]:
    return [{"id": name} for name in names]


def counted(server: Served, tier: str) -> dict[str, int]:
    values = {each: server.metric("cache_requests_total", tier=tier, result=each) for each in RESULTS[tier]}
    return {each: int(value) for each, value in values.items() if value}


def keys_of_texts(texts: Sequence[str]) -> list[bytes]:
    beginning = f"pe:t:{{{WordRanker().fingerprint}}}:torch:float32:float16:"
    return [f"{beginning}{sha256(text.encode()).hexdigest()}".encode() for text in texts]


def value_of(key: bytes, vector: Sequence[float] | NDArray[Any]) -> bytes:
    """A value as polyrank writes it, with a checksum that is right."""
    return stored.encode(key, np.array(vector, HALF), stored.prefix(HALF, DIM))


@pytest.mark.parametrize("kind", FORGED)
def test_vectors_of_texts_that_the_model_does_not_make_are_made_anew(
    start: Start, tmp_path: Path, redis_process: RedisProcess, kind: str
) -> None:
    build_store(tmp_path, pool(20))
    server, expected = start(redis_url=redis_process.url), ask(start(), TEXTS)
    with redis_process.client() as client:
        for key in keys_of_texts(TEXTS):
            client.set(key, value_of(key, FORGED[kind]))
        assert ask(server, TEXTS) == expected
        assert counted(server, "text") == {"corrupt": 8}
        own = keys_of_texts(TEXTS[:1])[0]
        until(lambda: client.get(own) != value_of(own, FORGED[kind]))  # and written again
        assert ask(server, TEXTS) == expected


@pytest.mark.parametrize("index", ["exact", "flat"])
@pytest.mark.parametrize("kind", ["far too long", "too long", "one is no number", "infinite"])
def test_vectors_of_a_generation_that_the_model_does_not_make_are_read_from_the_matrix(
    start: Start, tmp_path: Path, redis_process: RedisProcess, kind: str, index: str
) -> None:
    generation = build_store(tmp_path, pool(20), index=index, redis_url=redis_process.url)
    without = start()
    with redis_process.client() as client:
        for name in IDS:
            key = f"pe:{{{generation}}}:c:{name}".encode()
            assert client.exists(key)
            client.set(key, value_of(key, FORGED[kind]))
    server = start(redis_url=redis_process.url, vectors="redis")  # without an index it loads them all
    for candidates in (ids(), None):
        assert ask(server, candidates) == ask(without, candidates)
    assert counted(server, "redis")["corrupt"] >= 8
    assert counted(server, "matrix")["hit"] >= 8


def test_a_replica_without_the_matrix_encodes_what_the_model_does_not_make(
    start: Start, tmp_path: Path, redis_process: RedisProcess
) -> None:
    generation = build_store(tmp_path, pool(20), redis_url=redis_process.url)
    expected = ask(start())
    with redis_process.client() as client:
        for name in IDS:
            key = f"pe:{{{generation}}}:c:{name}".encode()
            client.set(key, value_of(key, FORGED["far too long"]))
    (tmp_path / "generations" / generation / "embeddings.bin").unlink()
    assert ask(start(redis_url=redis_process.url, vectors="redis")) == expected


@pytest.mark.parametrize("kind", ["far too long", "one is no number", "infinite", "too many"])
def test_rows_of_a_second_stage_that_the_model_does_not_make_are_not_used(
    start: Start, tmp_path: Path, redis_process: RedisProcess, kind: str
) -> None:
    late = LateRows(DIM, None)
    generation = build_store(tmp_path, pool(20), ranker=WordRanker(late=late), redis_url=redis_process.url)
    server, without = start(redis_url=redis_process.url, vectors="redis"), start()
    expected = ask(without, TEXTS)
    assert ask(server, TEXTS) == expected
    with redis_process.client() as client:
        until(lambda: len(list(client.scan_iter("pe:t:*"))) == 2 * len(TEXTS))
        forged = [f"pe:{{{generation}}}:r:{name}".encode() for name in IDS]
        forged += [key for key in client.scan_iter("pe:t:*") if b":r:" in key]
        head = stored.prefix(HALF, DIM, stored.ROWS_VERSION)
        for key in forged:
            assert client.exists(key)
            rows = [[0.1] * DIM] * (MAX_TOKENS + 2) if kind == "too many" else [[0.1] * DIM, FORGED[kind]]
            client.set(key, stored.encode(key, np.array(rows, HALF), head))
    assert ask(server, TEXTS) == expected
    assert counted(server, "text")["corrupt"] == len(TEXTS)
    for candidates in (ids(), None):
        assert ask(server, candidates) == ask(without, candidates)
    assert counted(server, "redis")["corrupt"] >= len(IDS)


def test_servers_and_builders_of_one_secret_share_what_they_wrote(start: Start, tmp_path: Path, redis_process) -> None:
    url = with_secret(redis_process.url)
    build_store(tmp_path, pool(20), index="flat", redis_url=url)
    expected = ask(start(), [*TEXTS, *ids()])
    one, other = (start(redis_url=url, vectors="redis", result_cache_ttl_s=60) for _ in range(2))
    assert ask(one, [*TEXTS, *ids()]) == expected
    with redis_process.client() as client:
        until(
            lambda: len(list(client.scan_iter("pe:t:*"))) == len(TEXTS) and len(list(client.scan_iter("pe:r:*"))) == 1
        )
        assert client.strlen(keys_of_texts(TEXTS)[0]) == 8 + 2 * DIM + 16
    assert ask(other, [*TEXTS, *ids()]) == expected
    assert ask(other, [*TEXTS[::-1], *ids()])[1] == []
    assert counted(other, "result") == {"hit": 1, "miss": 1}
    assert (counted(other, "text"), counted(other, "redis")) == ({"hit": len(TEXTS)}, {"hit": len(IDS)})


def forge(kind: str, redis: RedisProcess, key: bytes, honest: bytes, neighbour: bytes, right: bytes) -> bytes:
    """A value of the right length, or with the right checksum, by somebody who does not know the secret."""
    others = Seal(with_secret(redis.url, "another secret of 26 chars"))
    return {
        "without a digest": right,
        "with the digest of another secret": others.sealed(key, right),
        "with the digest of what was there": right + honest[-16:],
        "with a digest without a key": right + sha256(key + right).digest()[:16],
        "with zeros for a digest": right + bytes(16),
        "what lies under another key": neighbour,
        "another server's garbage": bytes(range(256)) * (len(honest) // 256) + bytes(len(honest) % 256),
    }[kind]


FORGERIES = (
    *("without a digest", "with the digest of another secret", "with the digest of what was there"),
    *("with a digest without a key", "with zeros for a digest", "what lies under another key"),
    "another server's garbage",
)


@pytest.mark.parametrize("kind", FORGERIES)
def test_with_a_secret_not_even_vectors_of_the_right_length_can_be_forged(
    start: Start, tmp_path: Path, redis_process: RedisProcess, kind: str
) -> None:
    url = with_secret(redis_process.url)
    generation = build_store(tmp_path, pool(20), index="flat", redis_url=url)
    server, expected = start(redis_url=url, vectors="redis"), ask(start(), [*TEXTS, *ids()])
    assert ask(server, [*TEXTS, *ids()]) == expected
    unit = WordRanker().encode_candidates(WordRanker().tokenize_candidates(["w1 w2 w3"])[0])[0]
    keys = [*keys_of_texts(TEXTS), *(f"pe:{{{generation}}}:c:{name}".encode() for name in IDS)]
    with redis_process.client() as client:
        until(lambda: len(list(client.scan_iter("pe:t:*"))) == len(TEXTS))
        honest = {key: client.get(key) for key in keys}
        for at, key in enumerate(keys):
            own, neighbour = honest[key], honest[keys[at - 1]]
            client.set(key, forge(kind, redis_process, key, own, neighbour, value_of(key, unit)))
        assert ask(server, [*TEXTS, *ids()]) == expected
    assert counted(server, "text")["corrupt"] == counted(server, "redis")["corrupt"] == 8


# What is no answer, in bytes that a checksum covers.
NO_ANSWERS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "a list": lambda _: b"[]",
    "a list of objects": lambda answer: json.dumps([answer]).encode(),
    "a string": lambda _: b'"text"',
    "a number": lambda _: b"5",
    "null": lambda _: b"null",
    "an empty object": lambda _: b"{}",
    "no JSON": lambda _: b"{not json}",
    "half an answer": lambda answer: json.dumps(answer).encode()[:-20],
    "blanks behind it": lambda answer: json.dumps(answer).encode() + b" ",
    "one bracket more": lambda answer: json.dumps(answer).encode() + b"}",
    "no results": lambda answer: json.dumps({**answer, "results": None}).encode(),
    "results of numbers": lambda answer: json.dumps({**answer, "results": [1, 2]}).encode(),
    "an object for the results": lambda answer: json.dumps({**answer, "results": {}}).encode(),
    "a text for the results": lambda answer: json.dumps({**answer, "results": "ab"}).encode(),
    "the last result is none": lambda answer: json.dumps({**answer, "results": [*answer["results"], {}]}).encode(),
    "a field less": lambda answer: json.dumps({name: answer[name] for name in answer if name != "model"}).encode(),
    "a field more": lambda answer: json.dumps({**answer, "advice": "send money"}).encode(),
    "a text as revision": lambda answer: json.dumps({**answer, "revision": "1"}).encode(),
    "a score that is none": lambda answer: json.dumps(
        {**answer, "results": [{**each, "score": float("nan")} for each in answer["results"]]}
    ).encode(),
    "a score without end": lambda answer: re.sub(rb'"score": [^,]+', b'"score": 1e999', json.dumps(answer).encode()),
    "deep nesting": lambda _: b"[" * 100_000 + b"}",
    "no UTF-8": lambda answer: json.dumps(answer).encode().replace(b'"text": "', b'"text": "\xff', 1),
}


@pytest.mark.parametrize("kind", NO_ANSWERS)
def test_a_kept_answer_that_is_none_is_a_miss(start: Start, tmp_path: Path, redis_process, kind: str) -> None:
    build_store(tmp_path, pool(20))
    server = start(redis_url=redis_process.url, result_cache_ttl_s=60)
    expected = ask(server)
    with redis_process.client() as client:
        until(lambda: len(list(client.scan_iter("pe:r:*"))) == 1)
        [key] = client.scan_iter("pe:r:*")
        assert ask(server) == expected
        honest = client.get(key)
        client.set(key, result_cache._encoded(key, NO_ANSWERS[kind](json.loads(honest[5:]))), ex=60)
        assert ask(server) == expected
    assert counted(server, "result") == {"miss": 1, "hit": 1, "corrupt": 1}


@pytest.mark.parametrize("kind", FORGERIES[:-2])
def test_with_a_secret_not_even_an_answer_of_the_right_form_can_be_forged(
    start: Start, tmp_path: Path, redis_process: RedisProcess, kind: str
) -> None:
    build_store(tmp_path, pool(20))
    url = with_secret(redis_process.url)
    server = start(redis_url=url, result_cache_ttl_s=60)
    expected = ask(server)
    with redis_process.client() as client:
        until(lambda: len(list(client.scan_iter("pe:r:*"))) == 1)
        [key] = client.scan_iter("pe:r:*")
        honest = client.get(key)
        forged = result_cache._encoded(key, honest[5:-16].replace(b'"w', b'"bought w'))
        client.set(key, forge(kind, redis_process, key, honest, honest, forged), ex=60)
        assert ask(server) == expected
    assert counted(server, "result") == {"miss": 1, "corrupt": 1}


def test_a_switch_that_keeps_the_model_asks_it_nothing_more(start: Start, tmp_path, redis_process, monkeypatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(searchable, "largest_of", lambda encode, rows: asked.append(rows) or largest_of(encode, rows))
    build_store(tmp_path, pool(20))
    server, other = start(redis_url=redis_process.url), build_store(tmp_path, pool(30), activate=False)
    assert server.client.post("/index/activate", json={"generation": other}).status_code == 200
    assert server.rank(context="w1").json()["generation"] == other
    assert len(asked) == 1


def test_the_fakes_vectors_have_room_and_no_more_than_that() -> None:
    """The lengths that are forged here lie beyond what the fake model makes, and its own within."""
    ranker = WordRanker(late=LateRows(DIM, None))
    bounds = largest_of(lambda texts: ranker.represent_candidates(ranker.tokenize_candidates(texts)[0]), MAX_TOKENS)
    assert 1 < bounds.vector < 30 * DIM**0.5
    assert bounds.row < 65_504
