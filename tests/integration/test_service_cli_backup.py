"""`polyrank store backup` and `restore`: beside a server under updates and a switch, and through pipes."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from command_line import COMMAND, call, pool_rows, start, write_rows
from server_process import ServerProcess

from polyrank.index_builder.store.generation_store import GenerationStore

Capture = pytest.CaptureFixture[str]
Start = Callable[..., ServerProcess]


def build(capsys: Capture, tmp_path: Path, count: int, *options: object) -> str:
    pool = write_rows(tmp_path / f"{count}.jsonl", pool_rows(count))
    store = ["--store", tmp_path / "store", "--json"]
    return str(call(capsys, "build", "--model", "lexical", "--pool", pool, *store, *options).result["generation"])


@pytest.fixture
def store(capsys: Capture, tmp_path: Path) -> Path:
    """Two generations, the second one active."""
    for count in (20, 30):
        build(capsys, tmp_path, count)
    return tmp_path / "store"


@pytest.fixture
def updating() -> Iterator[Callable[[int], Callable[[], int]]]:
    """Begins to put one candidate after the other; returns what ends that, and tells how many were acknowledged."""
    stop, acknowledged, threads = threading.Event(), [0], list[threading.Thread]()

    def work(port: int) -> None:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            while not stop.is_set():
                row = {"id": f"new-{acknowledged[0] + 1}", "text": f"hello {acknowledged[0] + 1}"}
                assert client.put("/index/candidates", json=[row]).status_code == 200
                acknowledged[0] += 1

    def end() -> int:
        stop.set()
        for thread in threads:
            thread.join()
        return acknowledged[0]

    def begin(port: int) -> Callable[[], int]:
        threads.append(threading.Thread(target=work, args=(port,)))
        threads[-1].start()
        while not acknowledged[0]:
            pass
        return end

    yield begin
    end()


def test_beside_updates_and_switches_each_backup_is_one_moment(
    capsys: Capture, store: Path, tmp_path: Path, start: Start, updating: Callable[[int], Callable[[], int]]
) -> None:
    first, second = GenerationStore(store).ids()
    port = start(store=store).ready()
    end = updating(port)
    found = []
    for number in range(3):
        arguments = ["--store", store, "--to", tmp_path / f"{number}.tar.zst", "--json"]
        found.append(call(capsys, "store", "backup", *arguments).result)
        if number == 1:
            path = "/index/rollback" if found[0]["current"] == second else "/index/activate"
            assert httpx2.post(f"http://127.0.0.1:{port}{path}", timeout=60).status_code == 200
    last = end()
    assert [each["current"] for each in found] == [second, second, first]
    assert found[0]["generations"] == [first, second]
    assert 1 <= found[0]["revision"] <= found[1]["revision"] <= last
    for number, each in enumerate(found):
        root = tmp_path / f"restored-{number}"
        assert (
            call(capsys, "store", "restore", "--from", tmp_path / f"{number}.tar.zst", "--store", root, "--json").result
            == each
        )
        assert call(capsys, "store", "verify", "--store", root).status == 0
    server = start(store=tmp_path / "restored-1").ready()
    with httpx2.Client(base_url=f"http://127.0.0.1:{server}", timeout=60) as client:
        revision = found[1]["revision"]
        assert client.get("/index").json()["active"]["revision"] == revision
        assert client.get(f"/index/candidates/new-{revision}").status_code == 200
        assert client.get(f"/index/candidates/new-{revision + 1}").status_code == 404
        assert client.put("/index/candidates", json=[{"id": "x", "text": "y"}]).json()["revision"] == revision + 1
        assert client.post("/rank", json={"context": ["hello 1"]}).status_code == 200


def test_through_a_pipe(capsys: Capture, store: Path, tmp_path: Path) -> None:
    write = [*COMMAND, "store", "backup", "--store", store, "--to", "-"]
    read = [*COMMAND, "store", "restore", "--from", "-", "--store", tmp_path / "new"]
    with subprocess.Popen(write, stdout=subprocess.PIPE) as writing:
        assert subprocess.run(read, stdin=writing.stdout, check=False, capture_output=True).returncode == 0
    assert writing.returncode == 0
    assert GenerationStore(tmp_path / "new").current() == GenerationStore(store).current()
    assert call(capsys, "rank", "hello", "--store", tmp_path / "new").status == 0


def test_what_is_printed(capsys: Capture, store: Path, tmp_path: Path) -> None:
    file, current = tmp_path / "b.tar.zst", GenerationStore(store).current()
    said = f"generation {current} at revision 0, and 1 before it\n"
    assert call(capsys, "store", "backup", "--store", store, "--to", file).out == f"{file}: {said}"
    outcome = call(capsys, "store", "restore", "--from", file, "--store", tmp_path / "new")
    assert outcome.out == f"{tmp_path / 'new'}: {said}"


def test_what_is_refused(capsys: Capture, store: Path, tmp_path: Path) -> None:
    file, before = tmp_path / "b.tar.zst", (store / "CURRENT").read_text()
    failure = call(capsys, "store", "backup", "--store", store, "--to", store / "CURRENT").failure(2)
    assert "is in the store" in failure
    assert (store / "CURRENT").read_text() == before
    os.mkfifo(tmp_path / "pipe")
    failure = call(capsys, "store", "backup", "--store", store, "--to", tmp_path / "pipe").failure(2)
    assert "is no plain file" in failure
    assert (tmp_path / "pipe").is_fifo()
    call(capsys, "store", "backup", "--store", store, "--to", file)
    (tmp_path / "cut").write_bytes(file.read_bytes()[:-100])
    failure = call(capsys, "store", "restore", "--from", tmp_path / "cut", "--store", tmp_path / "n").failure(1)
    assert failure.startswith(f"{tmp_path / 'cut'} cannot be restored: it is cut off")
    assert not (tmp_path / "n").exists()


def test_ctrl_c_leaves_no_archive(store: Path, tmp_path: Path) -> None:
    process = start("store", "backup", "--store", store, "--to", tmp_path / "b.tar.zst")
    while process.poll() is None and not list(tmp_path.glob(".b.tar.zst*")):
        pass
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert not list(tmp_path.glob(".b.tar.zst*")), "either it was complete, or nothing is left"
