"""The server as a process: its start, its end, and what it says when it cannot start."""

import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from server_process import HEADERS, Load, ServerProcess, get
from waiting import until

from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.locks import locked
from polyrank.service.auth import keys

Start = Callable[..., ServerProcess]


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


def in_flight(port: int) -> int:
    """How many requests are being answered, besides this one."""
    found = re.search(rb"^polyrank_http_requests_in_flight (\S+)$", get(port, "/metrics")[1], re.MULTILINE)
    return int(float(found[1])) - 1


def call(port: int, method: str, path: str, body: object) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), HEADERS, method=method
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return dict(json.load(response))


@pytest.mark.quick
def test_sigterm_answers_what_has_begun_and_is_no_failure(start: Start, store: Path) -> None:
    server = start(python=None, store=store, max_queue_tokens=1_000_000)
    port = server.ready()
    assert (rank(port, 1), rank(port, 3000)) == (200, 200)  # from the second it learns how long others take
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(rank(port, 3000))) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(statuses) + in_flight(port) >= 3)
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
    assert rank(server.ready(), 2) == 200
    server.process.send_signal(signal.SIGINT)
    _, log = server.end()
    assert server.process.returncode == 0, log
    lines = [json.loads(line) for line in log.splitlines()]
    [request] = [line for line in lines if line["message"] == "request"]
    assert (request["request_id"], request["route"], request["status"]) == ("r2", "/rank", 200)


@pytest.mark.quick
def test_a_server_killed_under_load_comes_back_as_it_was(start: Start, store: Path, tmp_path: Path) -> None:
    root = shutil.copytree(store, tmp_path / "store")
    server = start(store=root)
    port = server.ready()
    generation = json.loads(get(port, "/readyz")[1])["generation"]
    for turn in range(1, 3):
        with Load(port, clients=3) as load:
            load.wait_for(10)
            added = [{"id": f"new {turn}", "text": "w1 w2"}]
            assert call(port, "PUT", "/index/candidates", added)["revision"] == turn
            load.wait_for(10)
            server.process.kill()
        server.end()
        assert len(load.lost) <= 3, "what it was answering"
        server = start(store=root, port=port)
        assert server.ready() == port
        assert json.loads(get(port, "/readyz")[1]) == {"status": "ready", "generation": generation}
        answer = call(port, "POST", "/rank", {"context": "w1", "top_k": 1000, "exact": True})
        assert (answer["generation"], answer["revision"]) == (generation, turn)
        assert {f"new {each}" for each in range(1, turn + 1)} <= {each["id"] for each in answer["results"]}


def test_what_is_loaded_is_no_garbage_to_look_through_and_threads_let_each_other_in_soon(store: Path) -> None:
    code = (
        "import gc, os, signal, sys; from polyrank.service.process import server\n"
        "from polyrank.service.process.listening import bind\n"
        "from polyrank.service.settings import Settings\n"
        "def ready():\n"
        "    print(gc.get_freeze_count(), len(gc.get_objects()), sys.getswitchinterval())\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "settings = Settings(store=sys.argv[1], port=0, drain_delay_s=0)\n"
        "server.serve(settings, bind('127.0.0.1', 0), server.StopSignals(), ready)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, str(store)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    frozen, looked_through, switch = map(float, run.stdout.split())
    assert frozen > 10 * looked_through, "or a large request halts everybody while Python looks for garbage"
    assert switch <= 0.001, "or each event of the event loop waits long while a large request is read"


@pytest.mark.parametrize(
    ("host", "workers", "has_keys", "is_open"),
    [("0.0.0.0", 1, False, True), ("0.0.0.0", 2, False, True), ("0.0.0.0", 1, True, False), ("::1", 1, False, False)],
)
def test_a_server_without_keys_beyond_this_machine_says_so_once(
    start: Start, store: Path, tmp_path: Path, host: str, workers: int, has_keys: bool, is_open: bool
) -> None:
    file = tmp_path / "keys.json"
    if has_keys:
        with keys.changing(file) as held:
            held.append(keys.Key(name="a", sha256=keys.hashed(b"a"), scopes=("rank",)))
    server = start(store=store, host=host, workers=workers, keys_file=file if has_keys else None)
    port, headers = server.ready(), {"Authorization": "Bearer a"}
    url = f"http://[::1]:{port}" if ":" in host else f"http://127.0.0.1:{port}"
    for path, says in (("/info", f'"open":{str(is_open).lower()}'), ("/metrics", f"\npolyrank_open {is_open:.1f}\n")):
        with urllib.request.urlopen(urllib.request.Request(url + path, headers=headers), timeout=30) as response:
            assert says in response.read().decode(), path
    warnings = [line for line in server.logged().splitlines() if " WARNING " in line and "no keys" in line]
    assert len(warnings) == is_open, server.logged()


# Standard error becomes a pipe of a page that nobody reads, and few lines may wait for a reader.
NOBODY_READS = "import fcntl, os; from polyrank.service.observe import logs; logs.WAITING_BYTES = 4096; "
NOBODY_READS += "reads, writes = os.pipe(); fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096); os.dup2(writes, 2); "


@pytest.mark.parametrize("workers", [1, 2])
def test_a_log_that_nobody_reads_holds_nothing_up(start: Start, store: Path, workers: int) -> None:
    server = start(store=store, workers=workers, before=NOBODY_READS)
    port = server.ready()
    for _ in range(80 * workers):
        assert get(port, "/info")[0] == 200  # probes are not logged
    dropped = re.search(rb"^polyrank_log_lines_dropped_total (\S+)$", get(port, "/metrics")[1], re.MULTILINE)
    assert float(dropped[1]) > 10 or workers > 1  # which have all the room that is usual
    server.process.terminate()
    server.end()
    assert server.process.returncode == 0


@pytest.mark.soak
def test_a_held_lock_keeps_no_server_from_stopping(start: Start, store: Path) -> None:
    server = start(store=store, drain_delay_s=0)
    port = server.ready()
    [generation] = GenerationStore(store).ids()
    with locked(store / "pointer.lock"), ThreadPoolExecutor(1) as caller:
        switch = caller.submit(call, port, "POST", "/index/activate", {"generation": generation})
        time.sleep(1)
        server.process.send_signal(signal.SIGTERM)
        assert isinstance(switch.exception(20), urllib.error.HTTPError)
        assert server.process.wait(20) == 0
