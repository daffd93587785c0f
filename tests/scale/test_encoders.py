"""Builds by encoders on real raylets, whatever is killed: byte for byte the files of a build on one machine."""

import importlib.util
import json
import queue
import random
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
from ray_cluster import WITHIN_SECONDS, Cluster
from tiny import write_base

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.generation import candidates
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.pool.rows import read_pool
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.rankers.load import load_retriever

if importlib.util.find_spec("ray") is None:
    pytest.skip("needs Ray: make test-scale", allow_module_level=True)

HERE = Path(__file__).parent
CHUNK, CHUNKS = 16, 60
ROWS = CHUNK * CHUNKS - 3
STALLED_SECONDS = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("scale") / "base", seed=0)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw, path = random.Random(7), tmp_path_factory.mktemp("pool") / "pool.jsonl"
    texts = (" ".join(f"w{draw.randrange(40)}" for _ in range(draw.randrange(1, 80))) for _ in range(ROWS))
    path.write_text("".join(json.dumps({"id": f"c{at}", "text": text}) + "\n" for at, text in enumerate(texts)))
    return path


@pytest.fixture(scope="module")
def local(model: Path, pool: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """A build in this process, in the same chunks."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(candidates, "BATCH_ROWS", CHUNK)
        return built_here(tmp_path_factory.mktemp("local"), model, pool)


def built_here(root: Path, model: Path, pool: Path) -> Manifest:
    return GenerationStore(root).manifest(build(load_retriever(model), read_pool([pool], root), root).generation)


class Builder:
    """A builder of its own process, which writes a chunk when it is told to."""

    def __init__(self, cluster: Cluster, store: Path, pool: Path, model: Path, encoders: int) -> None:
        command = [HERE / "builder.py", store, pool, model, cluster.address, encoders]
        self._errors = cluster.directory / "builder.log"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=cluster.environment,
                text=True,
            )
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.appended: list[int] = []
        self.told: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End it, if it has not come to its end."""
        self.process.kill()
        self.process.wait(WITHIN_SECONDS)
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def next(self, within_seconds: float = WITHIN_SECONDS) -> dict[str, Any]:
        """What it says next, apart from lines for the user; raises queue.Empty where it says nothing."""
        while True:
            line = self._lines.get(timeout=within_seconds)
            if line is None:
                raise AssertionError(self._errors.read_text())
            if "told" in line:
                self.told.append(line["told"])
                continue
            if "append" in line:
                self.appended.append(line["append"])
            return line

    def write(self) -> None:
        """Let it write the chunk that it has announced."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def until_all_have_begun(self, count: int) -> None:
        while self.next().get("begun") != count:
            time.sleep(1)
            self.write()

    def until_it_stalls(self) -> None:
        while True:
            self.write()
            try:
                assert "append" in self.next(STALLED_SECONDS), "it came to its end without encoders"
            except queue.Empty:
                return

    def rest(self) -> dict[str, Any]:
        """Let it come to its end; what it says then."""
        self.process.stdin.close()  # it reads the end of the file again and again
        while "append" in (line := self.next()):
            pass
        assert self.process.wait(WITHIN_SECONDS) == 0
        return line


def assert_equal(root: Path, expected: Manifest) -> None:
    store = GenerationStore(root)
    (only,) = store.ids()
    manifest = store.verify(only)
    assert manifest.files == expected.files
    assert manifest.build.truncated == expected.build.truncated > 0
    assert [path.name for path in (root / "generations").iterdir()] == [only]


def run(cluster: Cluster, *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**cluster.environment, **variables}
    return subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True, timeout=WITHIN_SECONDS
    )


def test_the_command_makes_the_files_of_a_build_on_one_machine(
    cluster: Cluster, model: Path, pool: Path, tmp_path: Path
) -> None:
    expected = built_here(tmp_path / "local", model, pool)
    store = tmp_path / "store"
    command = ["-m", "polyrank.service.cli", "build", "--model", model, "--pool", pool, "--store", store]
    done = run(cluster, *command, "--cluster", "auto", "--encoders", 1, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["encoders"] == 1
    assert json.loads(done.stdout)["encoder_retries"] == 0
    assert_equal(store, expected)
    command += ["--cluster", cluster.address, "--encoders", "1"]
    refused = run(cluster, *command, RAY_AUTH_TOKEN="", HOME=str(tmp_path))
    assert refused.returncode == 1
    assert refused.stderr.splitlines(keepends=True)[-1] == (
        f"polyrank: the Ray cluster at {cluster.address} cannot be used: the token is missing or wrong; give the "
        "cluster's by RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH\n"
    )


def test_a_killed_encoders_chunk_is_encoded_again(
    cluster: Cluster, model: Path, pool: Path, local: Manifest, tmp_path: Path
) -> None:
    with Builder(cluster, tmp_path, pool, model, encoders=2) as builder:
        builder.until_all_have_begun(2)
        one, other = cluster.actors("Encoder")
        one.suspend()
        other.suspend()
        builder.until_it_stalls()  # each of them has a chunk
        one.kill()
        other.resume()
        end = builder.rest()
    assert end == {"retries": 1, "resumed": 0}
    assert [line for line in builder.told if "are encoded again" in line]
    assert builder.appended == list(range(0, ROWS, CHUNK)), "every chunk is written once, in order"
    assert_equal(tmp_path, local)


def test_a_killed_builder_is_continued(cluster: Cluster, model: Path, pool: Path, local: Manifest, tmp_path) -> None:
    with Builder(cluster, tmp_path, pool, model, encoders=1) as first:
        for _ in range(5):
            first.next()
            first.write()
        first.next()
        listening = cluster.listening(psutil.Process(first.process.pid))
        assert len(listening) > 5
        assert set(listening) <= {"127.0.0.1", "::ffff:127.0.0.1"}
        first.kill()
    with Builder(cluster, tmp_path, pool, model, encoders=1) as second:
        end = second.rest()
    assert end == {"retries": 0, "resumed": 5 * CHUNK}
    assert first.appended[:5] + second.appended == list(range(0, ROWS, CHUNK))
    assert_equal(tmp_path, local)
    deadline = time.monotonic() + WITHIN_SECONDS
    while cluster.actors("Encoder"):
        assert time.monotonic() < deadline, "the encoders end with their builder"
        time.sleep(0.1)


def test_a_killed_nodes_chunk_is_encoded_on_another(
    cluster: Cluster, model: Path, pool: Path, local: Manifest, tmp_path: Path
) -> None:
    with Builder(cluster, tmp_path, pool, model, encoders=2) as builder:
        builder.until_all_have_begun(2)
        machine = [cluster.nodes[1], *cluster.nodes[1].children(recursive=True)]
        [other] = [each for each in cluster.actors("Encoder") if each not in machine]
        for process in (*machine, other):
            process.suspend()
        builder.until_it_stalls()
        for process in machine:
            process.kill()
        other.resume()
        end = builder.rest()
    assert end["retries"] >= 1
    assert builder.appended == list(range(0, ROWS, CHUNK))
    assert_equal(tmp_path, local)


WITHOUT = """
import sys
import polyrank
import polyrank.index_builder.__main__
import polyrank.index_builder.scale.encoders
import polyrank.service.app
import polyrank.service.cli
import polyrank.service.process.server
assert "ray" not in sys.modules
"""


def test_nothing_imports_ray_before_it_is_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
