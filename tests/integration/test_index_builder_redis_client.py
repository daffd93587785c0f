"""The client's own limits, and its store, on a real server: in time, and whole under many threads."""

import re
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from redis_process import RedisProcess, with_secret

from polyrank.index_builder.errors import StoreUnavailable
from polyrank.index_builder.redis_client import DIGEST_BYTES, Client, Seal, connect, disconnect, translated
from polyrank.index_builder.vectors.redis import HIT, MISS, RedisEmbeddings, drop_generation


@contextmanager
def connected(url: str, timeout_seconds: float, max_connections: int = 8) -> Iterator[Client]:
    client = connect(url, timeout_seconds, max_connections)
    try:
        yield client
    finally:
        disconnect(client)


@pytest.mark.parametrize("answer", [
    b"*1000000000\r\n:1\r\n",
    b"*1\r\n*1000000000\r\n",
    b"*1\r\n" * 100_000,
    b"$1000000000\r\nx",
    b":" + b"9" * 5000 + b"\r\n",
], ids=["many values", "many within", "deep", "a large value", "a large number"])  # fmt: skip
def test_a_short_answer_takes_no_memory_and_no_time(answer: bytes) -> None:
    """hiredis made room for a billion values at once: 8 GB, and seconds until they were free, in which nothing ran."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def lie() -> None:
            with listener.accept()[0] as connection:
                while connection.recv(65536):
                    connection.sendall(answer)

        thread = threading.Thread(target=lie)
        thread.start()
        address = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        with connected(address, 0.5) as client:
            held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (held + (1 << 30), hard))
            try:
                with pytest.raises(StoreUnavailable, match="Redis failed"), translated():
                    client.mget("x")
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        thread.join()


def test_more_threads_than_connections_wait_instead_of_failing(redis_tcp_url: str) -> None:
    with connected(redis_tcp_url, 5, max_connections=4) as client:
        client.set("n", 0)
        with ThreadPoolExecutor(200) as threads:
            counted = list(threads.map(lambda _: client.incr("n"), range(1000)))
        assert sorted(counted) == list(range(1, 1001))
        assert len(client.client_list()) <= 4 + 1  # the fixture may still hold one of its own


@pytest.mark.parametrize("fault", ["SIGSTOP", "pause", "SIGKILL"])
def test_a_server_that_does_not_answer_fails_within_the_timeout(redis_process: RedisProcess, fault: str) -> None:
    with connected(redis_process.url, 0.5) as client, redis_process.client() as other:
        client.ping()
        if fault == "SIGSTOP":
            redis_process.signal(signal.SIGSTOP)
        elif fault == "pause":
            other.client_pause(5000)
        else:
            redis_process.kill()
        began = time.monotonic()
        for _ in range(2):  # on the open connection, then on a new one
            with pytest.raises(StoreUnavailable, match="Redis failed"), translated():
                client.get("x")
        assert time.monotonic() - began < 7.5  # redis-py by itself: 4 s each refused, a minute stopped


def test_connections_that_are_all_in_use_fail_within_the_timeout(redis_tcp_url: str) -> None:
    with connected(redis_tcp_url, 0.05, max_connections=1) as client:
        held = client.connection_pool.get_connection()
        with pytest.raises(StoreUnavailable), translated():
            client.get("x")
        client.connection_pool.release(held)
        assert client.get("x") is None


def test_a_full_server_is_told_with_what_to_do(redis_process: RedisProcess) -> None:
    with connected(redis_process.url, 5) as client:
        client.config_set("maxmemory", "1kb")
        pipeline = client.pipeline(transaction=False)
        pipeline.set("x", b"\0" * 100)
        for call in (lambda: client.set("x", "y"), pipeline.execute):
            with pytest.raises(StoreUnavailable, match=r"^Redis is full .*: give it"), translated():
                call()


@pytest.mark.parametrize(("url", "told"), [
    ("redis://h:1/2?secret=0123456789abcdef", {"host": "h", "port": 1, "db": 2}),
    ("redis://u:p%40@h/0?secret=0123456789abcdef&db=3", {"username": "u", "password": "p@", "host": "h", "db": 3}),
    ("unix:///tmp/s?db=4&secret=%C3%A4%26%3D%3F0123456789ab", {"path": "/tmp/s", "db": 4}),
    ("rediss://h/0?ssl_check_hostname=false&secret=0123456789abcdef", {"host": "h", "ssl_check_hostname": False}),
])  # fmt: skip
def test_redis_never_hears_of_the_secret(url: str, told: dict[str, object]) -> None:
    with connected(url, 1) as client:
        given = client.connection_pool.connection_kwargs
    assert {name: given[name] for name in told} == told
    assert "secret" not in given
    assert "0123456789ab" not in str(given)


@pytest.mark.parametrize("secret", ["", "short", "x" * 15])
def test_a_secret_that_could_be_guessed_is_refused(secret: str) -> None:
    for refused in (lambda url: connect(url, 1), Seal):
        with pytest.raises(StoreUnavailable, match="the secret in the Redis URL must have 16 characters or more"):
            refused(with_secret("redis://h/0", secret))


def test_a_secret_in_the_wrong_place_is_not_ignored() -> None:
    with pytest.raises(StoreUnavailable, match="belongs behind a question mark"):
        connect("redis://h/0&secret=0123456789abcdef", 1)


def test_only_who_knows_the_secret_makes_values_that_are_opened() -> None:
    ours, others = Seal(with_secret("redis://h/0")), Seal(with_secret("redis://h/0", "another secret of 26 chars"))
    value = ours.sealed(b"key", b"value")
    assert Seal(with_secret("unix:///elsewhere?db=1")).opened(b"key", value) == b"value"
    assert len(value) == len(b"value") + DIGEST_BYTES
    forged = [b"", b"value", value[:-1], value[1:], value + b"x", others.sealed(b"key", b"value"), bytes(len(value))]
    forged += [
        value[:at] + bytes([value[at] ^ 1 << bit]) + value[at + 1 :] for at in range(len(value)) for bit in range(8)
    ]
    assert {ours.opened(b"key", each) for each in forged} == {b""}
    assert {ours.opened(key, value) for key in (b"", b"ke", b"key ", b"KEY")} == {b""}
    moved = (b"keyv", b"alue"), (b"k", b"eyvalue")  # the same bytes in the same order
    assert {ours.opened(key, body + value[-DIGEST_BYTES:]) for key, body in moved} == {b""}


def test_without_a_secret_values_are_as_they_are() -> None:
    seal = Seal("redis://h/0?db=1")
    assert seal.sealed(b"key", b"value") == seal.opened(b"key", b"value") == b"value"


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
    with (
        closing(RedisProcess("--maxmemory", "1500kb", "--maxmemory-policy", "noeviction")) as server,
        closing(store(server.url)) as made,
        pytest.raises(StoreUnavailable, match=r"^Redis is full \(maxmemory\)"),
    ):
        made.put_many([f"id{i}" * 20 for i in range(20_000)], np.ones((20_000, DIM)))


@pytest.mark.parametrize("url", ["http://x", "localhost:6379", ""])
def test_what_is_no_redis_url_is_told(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="must begin with redis://"):
        store(url)


@pytest.mark.parametrize(("url", "says"), [
    ("redis://127.0.0.1:99999/0", "a port is 65,535 at most"),
    ("redis://user:hunter2/x@h:6379/0", "in a password write %2F for /"),
    ("redis://h/0?sercet=0123456789abcdef", "has an option that there is not: 'sercet'"),
    ("rediss://h/0?ssl_cert_reqs=foo", "an option of the Redis URL is not valid"),
    ("rediss://h/0?ssl_ca_certs=/none.pem", "names a file that there is not: ssl_ca_certs=/none.pem"),
])  # fmt: skip
def test_a_url_by_which_no_redis_would_ever_be_reached_is_refused(url: str, says: str) -> None:
    with pytest.raises(StoreUnavailable, match=re.escape(says)) as caught:
        store(url)
    assert "hunter2" not in str(caught.value)


def test_a_password_is_not_told() -> None:
    with closing(store("redis://:hunter2@127.0.0.1:1/0")) as made, pytest.raises(StoreUnavailable) as caught:
        made.ping()
    assert "hunter2" not in str(caught.value)
