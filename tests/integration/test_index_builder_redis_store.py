import signal
import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from redis_process import RedisProcess

from polyrank.index_builder.errors import StoreUnavailable
from polyrank.index_builder.vectors.redis import HIT, MISS, RedisEmbeddings, drop_generation

DIM = 4


def store(url: str, generation: str = "20261121T013000123456-1a2b3c4d", timeout_seconds: float = 5) -> RedisEmbeddings:
    return RedisEmbeddings(url, generation, DIM, "float16", timeout_seconds)


@pytest.fixture
def filled(redis_tcp_url: str) -> Iterator[RedisEmbeddings]:
    with closing(store(redis_tcp_url)) as made:
        made.put_many(["a", "b", "c"], np.arange(12).reshape(3, DIM))
        made.commit()
        yield made


def test_keys_carry_the_generation_in_braces(filled: RedisEmbeddings, redis_tcp_url: str) -> None:
    client = filled._client
    prefix = b"pe:{20261121T013000123456-1a2b3c4d}:"
    assert sorted(client.keys()) == [prefix + b"c:a", prefix + b"c:b", prefix + b"c:c", prefix + b"meta"]
    assert len(client.get(prefix + b"c:a")) == 8 + 2 * DIM


def test_a_value_of_another_redis_type_is_a_miss(filled: RedisEmbeddings) -> None:
    filled._client.delete(filled._key + b"a")
    filled._client.lpush(filled._key + b"a", "x")
    assert filled.get_many(["a", "b"]).status.tolist() == [MISS, HIT]


@pytest.mark.parametrize(
    "meta", [b"", b"[]", b"not json", b'{"count": 3, "dim": 5, "dtype": "float16"}', b'{"dim": 4, "dtype": "float16"}']
)
def test_a_copy_that_does_not_declare_itself_complete_counts_nothing(filled: RedisEmbeddings, meta: bytes) -> None:
    filled._client.set(filled._meta_key, meta)
    assert filled.count() == 0


def test_generations_do_not_meet_and_one_can_be_dropped(filled: RedisEmbeddings, redis_tcp_url: str) -> None:
    with closing(store(redis_tcp_url, "20261121T013000123457-1a2b3c4d")) as other:
        other.put_many([f"id{i}" for i in range(2500)], np.ones((2500, DIM)))
        other.commit()
        assert other.get_many(["a"]).status.tolist() == [MISS]
        drop_generation(redis_tcp_url, "20261121T013000123457-1a2b3c4d")
        assert other.count() == 0
    assert filled._client.dbsize() == 4
    assert (filled.get_many(["a", "b", "c"]).status == HIT).all()


def test_a_redis_that_refuses_fails_at_once() -> None:
    with closing(store("redis://127.0.0.1:1/0", timeout_seconds=0.05)) as made:
        began = time.monotonic()
        for call in (made.ping, made.count, made.commit, lambda: made.get_many(["a"])):
            with pytest.raises(StoreUnavailable, match="Redis failed"):
                call()
        assert time.monotonic() - began < 12  # redis-py by itself: 4 s each


def test_a_redis_that_hangs_fails_within_the_timeout(redis_process: RedisProcess) -> None:
    with closing(store(redis_process.url, timeout_seconds=0.3)) as made:
        made.put_many(["a"], np.ones((1, DIM)))
        redis_process.signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                made.get_many(["a"])
            assert time.monotonic() - began < 10  # redis-py by itself: a minute
        finally:
            redis_process.signal(signal.SIGCONT)
        assert made.get_many(["a"]).status.tolist() == [HIT]


def test_a_dropped_connection_is_replaced(redis_process: RedisProcess) -> None:
    with closing(store(redis_process.url)) as made, redis_process.client() as other:
        made.put_many(["a"], np.ones((1, DIM)))
        other.client_kill_filter(_type="normal", skipme=True)  # gone when this returns, as its own would not be
        assert made.get_many(["a"]).status.tolist() == [HIT]


def test_a_full_redis_refuses_in_our_words() -> None:
    server = RedisProcess("--maxmemory", "1500kb", "--maxmemory-policy", "noeviction")
    try:
        with closing(store(server.url)) as made, pytest.raises(StoreUnavailable, match=r"^Redis is full \(maxmemory\)"):
            made.put_many([f"id{i}" * 20 for i in range(20_000)], np.ones((20_000, DIM)))
    finally:
        server.close()


@pytest.mark.parametrize("url", ["http://x", "localhost:6379", ""])
def test_what_is_no_redis_url_is_told(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="must begin with redis://"):
        store(url)


def test_a_password_is_not_told() -> None:
    with closing(store("redis://:hunter2@127.0.0.1:1/0")) as made, pytest.raises(StoreUnavailable) as caught:
        made.ping()
    assert "hunter2" not in str(caught.value)
