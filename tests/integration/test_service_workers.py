"""Several serving processes on one socket and one store: one of them killed, their metrics, rates, updates and jobs."""

import json
import os
import re
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import Callers, Load, ServerProcess, get
from service_fakes import pool
from waiting import until

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.service.auth.keys import hashed

Start = Callable[..., ServerProcess]
ROWS = 60


class Pair:
    """A server of two workers over a pool in three parts."""

    def __init__(self, root: Path, checkpoints: Path) -> None:
        build(polyrank.load(checkpoints / "poly"), pool(ROWS), root, parts=3)
        self.root = root
        self.server = ServerProcess(store=root, workers=2, model_root=checkpoints, pool_root=root)
        self.port = self.server.ready()

    def workers(self) -> set[int]:
        return set(children(self.server))

    def kill(self, victim: int, number: signal.Signals = signal.SIGKILL) -> None:
        """End a worker, and wait until another one accepts connections in its place."""
        before = self.workers()
        os.kill(victim, number)
        [new] = until(lambda: self.workers() - before)
        until(lambda: f"a worker is ready pid={new}\n" in self.server.logged())

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Over a connection of its own, to whichever worker takes it."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                content = response.read()
        except ConnectionError as error:
            error.add_note(self.server.logged())
            raise
        return json.loads(content) if response.headers["content-type"] == "application/json" else content.decode()

    def metrics(self, name: str) -> dict[str, float]:
        """Every series of a metric, by its labels."""
        found = re.findall(rf"^polyrank_{name}(?:\{{(.*)\}})? (\S+)$", self.call("GET", "/metrics"), re.MULTILINE)
        return {labels: float(value) for labels, value in found}

    def ranked(self) -> float:
        return sum(value for labels, value in self.metrics("http_requests_total").items() if 'route="/rank"' in labels)


@pytest.fixture(scope="module")
def pair(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    served = Pair(tmp_path_factory.mktemp("store"), checkpoints)
    yield served
    served.server.process.terminate()
    _, log = served.server.end()
    assert served.server.process.returncode == 0, log
    assert "Traceback" not in log


def children(server: ServerProcess) -> list[int]:
    parent = server.process.pid
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def test_metrics_of_any_worker_are_those_of_all(pair: Pair) -> None:
    before = pair.ranked()
    for _ in range(12):
        pair.call("POST", "/rank", {"context": "w1"})
    # An answer is counted after it was sent, and each worker keeps its text for a while.
    until(lambda: {pair.ranked() for _ in range(12)} == {before + 12})
    assert list(pair.metrics("index_info").values()) == [1.0]
    assert list(pair.metrics("model_info").values()) == [1.0]
    # The scrape itself, once the one before is counted out, in whichever worker it was.
    until(lambda: pair.metrics("http_requests_in_flight") == {"": 1.0})
    assert pair.metrics("queue_depth") == {"": 0.0}
    rows = {row for _ in range(6) for row in pair.metrics("index_candidates").values()}
    assert len(rows) == 1
    assert rows.pop() <= ROWS + 1
    text = pair.call("GET", "/metrics")
    assert "pid=" not in text
    assert "process_" not in text


def test_an_update_is_seen_through_every_connection(pair: Pair) -> None:
    for turn in range(5):
        written = pair.call("PUT", "/index/candidates", [{"id": "new", "text": f"w{turn} w39 w38"}])
        for _ in range(8):
            body = {"context": "w39", "candidates": [{"id": "new"}], "min_revision": written["revision"]}
            answer = pair.call("POST", "/rank", body)
            assert answer["results"][0]["text"] == f"w{turn} w39 w38"
            assert answer["revision"] >= written["revision"]


def test_a_killed_worker_is_replaced_and_no_new_connection_fails(pair: Pair) -> None:
    before, ranked = pair.workers(), pair.ranked()
    victim = min(before)
    with Load(pair.port, clients=4, fresh=True) as load:
        load.wait_for(20)
        pair.kill(victim)
        load.wait_for(40)
        in_flight = list(load.lost)
        load.wait_for(100)
    assert load.refused == 0
    assert load.lost == in_flight
    assert len(in_flight) <= 4, "what the killed one was answering"
    assert before - pair.workers() == {victim}
    until(lambda: pair.ranked() >= ranked + load.answered.total())  # what the killed one had counted, too
    # The scrape itself, once the one before is counted out, in whichever worker it was.
    until(lambda: pair.metrics("http_requests_in_flight") == {"": 1.0})


def test_a_worker_that_sigbus_ended_is_logged_as_such(pair: Pair) -> None:
    victim = min(pair.workers())
    pair.kill(victim, signal.SIGBUS)
    assert f"serving process {victim} was ended by SIGBUS" in pair.server.logged()


def test_metrics_need_no_disk_and_outlive_their_directory(pair: Pair) -> None:
    other, victim = pair.workers()
    environment = Path(f"/proc/{other}/environ").read_bytes().split(b"\0")
    named = dict(each.partition(b"=")[::2] for each in environment)[b"PROMETHEUS_MULTIPROC_DIR"]
    directory = Path(os.fsdecode(named))
    for file in directory.iterdir():  # a full disk would end a process that maps a file of it
        assert os.readlink(f"/proc/{other}/fd/{Path(os.readlink(file)).name}").startswith("/memfd:")
    before = pair.ranked()
    pair.call("POST", "/rank", {"context": "w1"})
    until(lambda: {pair.ranked() for _ in range(12)} == {before + 1})  # by both workers
    shutil.rmtree(directory)
    pair.kill(victim)
    assert pair.ranked() == before + 1
    assert other in pair.workers()


def test_one_job_at_a_time_and_any_worker_can_cancel_it(pair: Pair) -> None:
    many = [{"id": f"x{n}", "text": f"w{n % 40} w{n % 37}"} for n in range(30_000)]
    job = pair.call("POST", "/index", {"candidates": many, "model": "poly"})
    for _ in range(6):
        with pytest.raises(urllib.error.HTTPError) as refused:
            pair.call("POST", "/index", {"candidates": [{"text": "w1"}], "model": "poly"})
        assert refused.value.code == 409
        refused.value.close()
    for _ in range(6):
        pair.call("POST", f"/index/jobs/{job['id']}/cancel")
    until(lambda: pair.call("GET", f"/index/jobs/{job['id']}")["state"] == "cancelled")


class Hammer(Callers):
    """Callers who send a key as fast as they can, each request over a connection of its own.

    Attributes:
        allowed: how many requests were answered.
        refusals: how many were refused.
        refused: the statuses of these, and what they said in Retry-After.
    """

    def __init__(self, port: int, key: str, callers: int) -> None:
        self.url, self.key = f"http://127.0.0.1:{port}/rank", key
        self.allowed, self.refusals, self.refused = 0, 0, set[tuple[int, str | None]]()
        self._lock = threading.Lock()
        super().__init__(*[self._call] * callers)

    def _call(self) -> None:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        while not self.stop.is_set():
            request = urllib.request.Request(self.url, b'{"context": "w1"}', headers)
            try:
                with urllib.request.urlopen(request, timeout=30), self._lock:
                    self.allowed += 1
            except urllib.error.HTTPError as refused:
                self.refused.add((refused.code, refused.headers["Retry-After"]))
                self.refusals += 1
                refused.close()
            except OSError:  # what a killed worker was answering
                pass


def test_the_rate_of_a_key_holds_for_all_workers_and_those_in_their_place(start: Start, pair: Pair, tmp_path) -> None:
    rate, burst, rows = 20.0, 30, [{"name": name, "sha256": hashed(name.encode())} for name in ("shop", "other")]
    limits = {"scopes": ["rank"], "rate_per_s": rate, "burst": burst}
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [{**row, **limits} for row in rows]}))
    server = start(store=pair.root, workers=2, keys_file=tmp_path / "keys.json")
    port = server.ready()
    began = time.monotonic()
    with Hammer(port, "shop", callers=4) as hammer:
        time.sleep(1.5)
        os.kill(min(children(server)), signal.SIGKILL)
        until(lambda: server.logged().count("a worker is ready") == 1)
        time.sleep(1.5)
        before = hammer.refusals
        until(lambda: hammer.refusals > before)  # nothing is left over: callers of a busy machine may have paused
        least = 0.9 * (burst + rate * (time.monotonic() - began))
        assert hammer.allowed >= least
    assert hammer.allowed <= burst + rate * (time.monotonic() - began) + 1
    assert hammer.refused == {(429, "1")}
    with Hammer(port, "other", callers=1) as hammer:
        until(lambda: hammer.allowed >= burst)


def test_workers_that_cannot_start_are_one_line(start: Start, tmp_path: Path) -> None:
    server = start(store=tmp_path, workers=2, reranker=tmp_path / "nothing", log_level="error")
    out, log = server.end()
    assert (server.process.returncode, out) == (1, "")
    [line] = log.splitlines()
    assert line.startswith("polyrank: ")
    assert "nothing" in line


@pytest.mark.soak
def test_a_worker_that_hangs_is_replaced_as_soon_as_one_can_start(
    start: Start, pair: Pair, checkpoints: Path, tmp_path: Path
) -> None:
    reranker = shutil.copytree(checkpoints / "cross", tmp_path / "cross")
    before = "import polyrank.service.process.supervisor; polyrank.service.process.supervisor.SILENT_SECONDS = 6; "
    server = start(python=None, store=pair.root, workers=2, reranker=reranker, before=before)
    port = server.ready()
    hanging, other = children(server)
    reranker.rename(tmp_path / "away")
    os.kill(hanging, signal.SIGSTOP)
    until(lambda: "a worker hangs" in server.logged())
    until(lambda: f"why=model '{reranker}' is neither" in server.logged())  # the first try
    assert {get(port, "/readyz")[0] for _ in range(5)} == {200}
    (tmp_path / "away").rename(reranker)
    until(lambda: "a worker is ready" in server.logged())
    now = children(server)
    assert len(now) == 2
    assert set(now) & {hanging, other} == {other}
    assert {get(port, "/readyz")[0] for _ in range(5)} == {200}
    server.process.terminate()
    server.end()
    assert server.process.returncode == 0


def test_workers_end_with_their_parent(start: Start, pair: Pair) -> None:
    server = start(store=pair.root, workers=2)
    port = server.ready()
    assert get(port, "/readyz")[0] == 200
    server.process.kill()

    def refuses() -> bool:
        try:
            get(port, "/readyz")
        except ConnectionRefusedError:
            return True
        except OSError:  # reset: it was about to end
            pass
        return False

    until(refuses)
