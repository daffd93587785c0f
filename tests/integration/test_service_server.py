"""The server as a process: its start, its end, and what it says when it cannot start."""

import http.client
import json
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from server_process import ServerProcess
from service_fakes import pool
from starlette.testclient import TestClient

import model
from index_builder.build import build
from model.errors import InvalidInput
from service.app import create_app
from service.settings import Settings

Start = Callable[..., ServerProcess]


@pytest.fixture(scope="module")
def store(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    build(model.load(checkpoints / "poly"), pool(50), root)
    return root


def rank(port: int, candidates: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    texts = [f"w{n % 40} w{n % 7}" for n in range(candidates)]
    body = json.dumps({"context": "w1", "candidates": texts})
    try:
        connection.request(
            "POST", "/rank", body, {"Content-Type": "application/json", "X-Request-ID": f"r{candidates}"}
        )
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def test_sigterm_answers_what_has_begun_and_is_no_failure(start: Start, store: Path) -> None:
    server = start(store=store, max_queue_tokens=1_000_000)
    port = server.ready()
    assert (rank(port, 1), rank(port, 3000)) == (200, 200)  # from the second it learns how long others take
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(rank(port, 3000))) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    server.process.terminate()
    for thread in threads:
        thread.join()
    _, log = server.end()
    assert statuses == [200, 200, 200]
    assert server.process.returncode == 0, log
    assert "Traceback" not in log
    lines = [line for line in log.splitlines() if "request_id=r1 " in line]
    assert len(lines) == 1, log
    assert "route=/rank" in lines[0]
    assert "status=200" in lines[0]
    assert "ms=" in lines[0]
    assert not re.search(r"\bw1\b", log), "no text in the log"


def test_ctrl_c_is_no_failure_and_logs_may_be_json(start: Start, store: Path) -> None:
    server = start(store=store, log_format="json")
    port = server.ready()
    assert rank(port, 2) == 200
    server.process.send_signal(signal.SIGINT)
    _, log = server.end()
    assert server.process.returncode == 0, log
    lines = [json.loads(line) for line in log.splitlines()]
    [request] = [line for line in lines if line["message"] == "request"]
    assert (request["request_id"], request["route"], request["status"]) == ("r2", "/rank", 200)


def test_a_port_in_use_is_one_line(start: Start, store: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = start(store=store, port=taken.getsockname()[1], log_level="error")
        out, log = server.end()
    assert (server.process.returncode, out) == (1, "")
    [line] = log.splitlines()
    assert "cannot listen on 127.0.0.1:" in line
    assert "in use" in line


def test_a_reranker_that_is_none_is_one_line(start: Start, store: Path) -> None:
    server = start(store=store, reranker=store / "nothing", log_level="error")
    _, log = server.end()
    assert server.process.returncode == 1
    [line] = log.splitlines()
    assert "nothing" in line


def test_a_reranker_that_is_no_cross_encoder_is_refused(store: Path, checkpoints: Path) -> None:
    app = create_app(Settings(store=store, reranker=str(checkpoints / "poly")))
    with pytest.raises(InvalidInput, match="poly is a poly-encoder; give a cross-encoder"), TestClient(app):
        pass


def test_a_killed_server_comes_back_on_the_same_generation(start: Start, store: Path) -> None:
    server = start(store=store)
    port = server.ready()
    server.process.kill()
    server.end()
    again = start(store=store, port=port)
    assert again.ready() == port
    assert rank(port, 1) == 200
