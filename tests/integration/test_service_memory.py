"""What a server keeps of generations, and models, that it does not serve any more, and of large requests: nothing."""

import gzip
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.load.worst import MOST_BYTES
from server_process import Load, ServerProcess
from service_fakes import pool
from waiting import until

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions

ROWS = 4000
# Each generation was served, under load, so often before it is measured what that takes.
WARM_UPS = 6
ANSWERS_A_SWITCH = 8

Start = Callable[..., ServerProcess]


def resident(process: int) -> int:
    """KiB of its memory, files that it maps included."""
    [found] = re.findall(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    return int(found)


def generations_mapped(process: int) -> set[str]:
    """Generations of which it maps files."""
    return set(re.findall(r"/generations/([^/\n]+)/", Path(f"/proc/{process}/maps").read_text()))


def size(directory: Path) -> int:
    """Bytes of the files that are mapped or read when it is served; models are as small as those of the tests."""
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())


def activate(port: int, generation: str) -> None:
    body = json.dumps({"generation": generation}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/index/activate", body)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as response:
        assert json.load(response)["active"]["id"] == generation


@pytest.mark.parametrize("switches", [20, pytest.param(100, marks=pytest.mark.soak)])
def test_memory_does_not_grow_with_switches(start: Start, checkpoints: Path, tmp_path: Path, switches: int) -> None:
    prefixes: dict[str, str] = {}
    for prefix, name, kind in (("a", "poly", "flat"), ("b", "other", "hnsw")):
        built = build(polyrank.load(checkpoints / name), pool(ROWS, prefix), tmp_path, BuildOptions(index=kind))
        prefixes[built.generation] = prefix

    def fault(answer: dict[str, Any]) -> str | None:
        ids = [each["id"] for each in answer["results"]]
        is_whole = len(ids) == 10 and all(each.startswith(prefixes[answer["generation"]]) for each in ids)
        return None if is_whole else str(answer)

    server = start(store=tmp_path)
    port = server.ready()
    taken: list[int] = []
    with Load(port, clients=3, body={"context": "w1 w2", "top_k": 10}, check=fault) as load:
        for n in range(WARM_UPS + switches):
            activate(port, list(prefixes)[n % 2])
            load.wait_for(ANSWERS_A_SWITCH)
            taken.append(resident(server.process.pid))
        assert load.lost == []
        until(lambda: len(generations_mapped(server.process.pid)) <= 1)  # what nobody reads is not mapped
    before, after = max(taken[:WARM_UPS]), taken[-1]
    assert after <= 1.1 * before, f"{before} KiB became {after}"
    leaked = switches * min(size(tmp_path / "generations" / each) for each in prefixes) / 1024
    assert after - before < leaked / 2, f"{before} KiB became {after}: part of a generation is kept with each switch"


def test_large_requests_leave_no_memory_taken(start: Start, checkpoints: Path, tmp_path: Path) -> None:
    build(polyrank.load(checkpoints / "poly"), pool(10), tmp_path)
    server = start(store=tmp_path)
    url = f"http://127.0.0.1:{server.ready()}/rank"
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    bomb = urllib.request.Request(url, gzip.compress(b" " * (2 * MOST_BYTES), 1), headers)

    def refused(times: int) -> None:
        for _ in range(times):
            with pytest.raises(urllib.error.HTTPError, match="413"):
                urllib.request.urlopen(bomb, timeout=60)

    refused(1)
    before, most = resident(server.process.pid), MOST_BYTES >> 10
    refused(8)
    until = time.monotonic() + 60
    while (now := resident(server.process.pid)) > before + most:
        assert time.monotonic() < until, f"{before} KiB became {now}"
        time.sleep(0.5)
