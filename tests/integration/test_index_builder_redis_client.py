"""The client's own limits, on a real server: in time, and whole under many threads."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from redis.utils import HIREDIS_AVAILABLE
from redis_process import RedisProcess

from polyrank.index_builder.errors import StoreUnavailable
from polyrank.index_builder.redis_client import Client, connect, disconnect, translated


@contextmanager
def connected(url: str, timeout_seconds: float, max_connections: int = 8) -> Iterator[Client]:
    client = connect(url, timeout_seconds, max_connections)
    try:
        yield client
    finally:
        disconnect(client)


def test_answers_are_parsed_by_hiredis() -> None:
    assert HIREDIS_AVAILABLE


def test_more_threads_than_connections_wait_instead_of_failing(redis_tcp_url: str) -> None:
    with connected(redis_tcp_url, 5, max_connections=4) as client:
        client.set("n", 0)
        with ThreadPoolExecutor(200) as threads:
            counted = list(threads.map(lambda _: client.incr("n"), range(1000)))
        assert sorted(counted) == list(range(1, 1001))
        assert len(client.client_list()) <= 4 + 1  # the fixture may still hold one of its own


@pytest.mark.parametrize("fault", ["SIGSTOP", "pause", "SIGKILL"])
def test_a_server_that_does_not_answer_fails_within_the_timeout(redis_process: RedisProcess, fault: str) -> None:
    with connected(redis_process.url, 0.05) as client, redis_process.client() as other:
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
