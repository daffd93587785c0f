"""A real server in a thread of the test's process, on a free port."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import uvloop
from fastapi import FastAPI

from polyrank.service.process.draining import DrainingServer


class Served:
    """A running server: its URL, a client, and its port for bytes that no client would send."""

    def __init__(self, app: FastAPI, port: int, stop: Callable[[], None]) -> None:
        self.app = app
        self.stop = stop  # without a delay; returns at once
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx2.Client(base_url=self.url, timeout=30)

    def rank(self, **fields: Any) -> httpx2.Response:
        return self.client.post("/rank", json=fields)

    def metric(self, name: str, **labels: str) -> float:
        value = self.app.state.resources.metrics.registry.get_sample_value(f"polyrank_{name}", labels)
        assert value is not None, f"no series {name}{labels}"
        return float(value)

    def raw(self, *parts: bytes, wait: float = 5.0) -> bytes:
        """Send bytes as they are; returns all that comes back until the server closes or falls silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as connection:
            for part in parts:
                connection.sendall(part)
            return _received(connection)


def _received(connection: socket.socket) -> bytes:
    answer = b""
    while not _is_complete(answer):
        try:
            chunk = connection.recv(65536)
        except TimeoutError:
            break
        if not chunk:
            break
        answer += chunk
    return answer


def _is_complete(answer: bytes) -> bool:
    head, blank, body = answer.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(blank and lengths) and len(body) >= int(lengths[0].split(b":")[1])


@contextmanager
def serve(app: FastAPI) -> Iterator[Served]:
    """Serve the app for the block."""
    listener = socket.create_server(("127.0.0.1", 0))
    servers: list[DrainingServer] = []
    ready = threading.Event()

    def stop() -> None:
        servers[0].should_exit = True

    served = Served(app, listener.getsockname()[1], stop)

    async def lifetime() -> None:
        async with app.router.lifespan_context(app):
            servers.append(DrainingServer(app, on_ready=ready.set))
            await servers[0].serve([listener])

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(lifetime())

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + 60
    while not ready.wait(0.01):
        assert thread.is_alive(), "the app did not start"
        assert time.monotonic() < deadline, "the app takes too long to start"
    try:
        yield served
    finally:
        served.client.close()
        stop()
        thread.join()
        listener.close()
