"""The end of a server under load, by real processes: no request is lost that a client could still send."""

import http.client
import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from server_process import HEADERS, Load, ServerProcess, get
from waiting import until

Start = Callable[..., ServerProcess]


def catches(process: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    [caught] = re.findall(r"^SigCgt:\s+(\w+)$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.parametrize(
    ("workers", "number", "fresh", "heeds"),
    [(1, signal.SIGTERM, True, False), (1, signal.SIGINT, False, True), (2, signal.SIGTERM, True, False)],
)
def test_no_request_is_lost_while_it_drains(
    start: Start, store: Path, workers: int, number: int, fresh: bool, heeds: bool
) -> None:
    server = start(store=store, drain_delay_s=0.8, workers=workers)
    port = server.ready()
    with Load(port, fresh=fresh, heeds_readyz=heeds) as load:
        load.wait_for(20)
        server.process.send_signal(number)
        if not heeds:
            load.wait_for(20)
        began = time.monotonic()
        load.join()  # until refused, or not ready
    assert load.lost == []
    assert load.closing >= 4, "answers said that their connections ended"
    assert load.refused == (0 if heeds else 4)
    assert time.monotonic() - began < 30
    _, log = server.end()
    assert server.process.returncode == 0, log
    assert "Traceback" not in log
    assert "cancel" not in log.lower()


def test_while_it_drains_it_is_alive_but_not_ready(start: Start, store: Path) -> None:
    server = start(store=store, drain_delay_s=30)
    port = server.ready()
    kept = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for expected in (None, "close"):
        kept.request("POST", "/rank", json.dumps({"context": "w1"}), HEADERS)
        answer = kept.getresponse()
        answer.read()
        assert (answer.status, answer.getheader("connection")) == (200, expected)
        if expected is None:
            assert get(port, "/readyz")[0] == 200
            server.process.terminate()
            until(lambda: get(port, "/readyz")[0] != 200)
    status, body = get(port, "/readyz")
    assert (status, json.loads(body)["type"]) == (503, "urn:polyrank:problem:draining")
    assert [get(port, path)[0] for path in ("/livez", "/healthz", "/metrics")] == [200, 200, 200]
    server.process.terminate()
    began = time.monotonic()
    server.end()
    assert time.monotonic() - began < 15, "the second signal ends it at once"
    assert server.process.returncode == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_while_it_loads_ends_it_at_once(start: Start, store: Path, workers: int) -> None:
    server = start(python=None, store=store, drain_delay_s=30, workers=workers)
    while not catches(server.process.pid, signal.SIGTERM):
        assert server.process.poll() is None
        time.sleep(0.01)
    server.process.terminate()
    began = time.monotonic()
    out, _ = server.end()
    assert (server.process.returncode, out) == (0, "")
    assert time.monotonic() - began < 15
