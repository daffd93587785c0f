"""A second start runs what the first one compiled: processes that import neither torch nor transformers."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import pytest
from command_line import COMMAND, READY, REPOSITORY, pool_rows, write_rows
from tiny import write_base, write_checkpoint

pytest.importorskip("openvino")

IMPORTED = re.compile(r"^import time: .*\| +([\w.]+)$", re.MULTILINE)
HEAVY = {"torch", "transformers"}
HEADERS = {"Content-Type": "application/json"}
DAMAGED = "a kept model is damaged and is made anew"


class Ended(NamedTuple):
    """A process that has ended: what it wrote, and the modules that it imported."""

    out: str
    err: str
    imported: set[str]


class Place:
    """A pool, a store and a cache of compiled models."""

    def __init__(self, directory: Path, model: Path) -> None:
        self.store, self.model = directory / "store", model
        self.pool = write_rows(directory / "pool.jsonl", pool_rows(5))
        own = {name: value for name, value in os.environ.items() if not name.startswith("POLYRANK_")}
        self._variables = {
            **own, "XDG_CACHE_HOME": str(directory / "caches"), "POLYRANK_DRAIN_DELAY_S": "0",
            "POLYRANK_BACKEND": "openvino", "POLYRANK_PRECISION": "float32",
        }  # fmt: skip

    @property
    def models(self) -> list[Path]:
        """The compiled models that are kept."""
        entries = Path(self._variables["XDG_CACHE_HOME"], "polyrank", "compiled").iterdir()
        return [entry for entry in entries if entry.stat().st_size > 10_000]

    def build(self) -> Ended:
        runs = ("--backend", "openvino", "--precision", "float32")
        return self._run("build", "--model", self.model, "--pool", self.pool, "--store", self.store, *runs)

    def rank(self, *options: object) -> Ended:
        return self._run("rank", "w1 w2", "--store", self.store, *options)

    def serve(self, body: dict[str, Any], *options: object, path: str = "/rank") -> tuple[Ended, Any, str]:
        """Start a server, ask it, and stop it; also returns its answer, and the files that it has mapped."""
        with self._start("serve", "--store", self.store, "--port", 0, *options) as (process, errors):
            line = process.stdout.readline()
            assert line.startswith(READY), line
            url = line.removeprefix(READY).strip().removeprefix("on ")
            request = urllib.request.Request(url + path, json.dumps(body).encode(), HEADERS)
            with urllib.request.urlopen(request, timeout=60) as response:
                answer = json.load(response)
            mapped = Path(f"/proc/{process.pid}/maps").read_text() if sys.platform == "linux" else ""
            process.terminate()
            return _ended(process, errors), answer, mapped

    def _run(self, *arguments: object) -> Ended:
        with self._start(*arguments) as (process, errors):
            return _ended(process, errors)

    @contextmanager
    def _start(self, *arguments: object) -> Iterator[tuple["subprocess.Popen[str]", IO[str]]]:
        """Run a command; what it writes on standard error goes to a file, because a pipe holds too little of it."""
        line = [COMMAND[0], "-X", "importtime", *COMMAND[1:], *map(str, arguments)]
        with TemporaryFile("w+") as errors:
            running = subprocess.Popen(
                line, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=REPOSITORY, env=self._variables
            )
            with running as process:
                try:
                    yield process, errors
                finally:
                    process.kill()


def _ended(process: "subprocess.Popen[str]", errors: IO[str]) -> Ended:
    out, _ = process.communicate(timeout=120)
    errors.seek(0)
    err = errors.read()
    told = "\n".join(line for line in err.splitlines() if not line.startswith("import time:"))
    assert process.returncode == 0, told
    return Ended(out, told, set(IMPORTED.findall(err)))


BODY = {"context": ["w1 w2"], "top_k": 5}


@pytest.fixture
def place(checkpoints: Path, tmp_path: Path) -> Place:
    return Place(tmp_path, checkpoints / "poly")


def scores(answer: dict[str, Any]) -> dict[str, float]:
    return {each["id"]: each["score"] for each in answer["results"]}


def test_a_second_start_imports_no_torch(place: Place, checkpoints: Path) -> None:
    options = ("--reranker", checkpoints / "cross")
    asked = {**BODY, "rerank": {"top_n": 3}}
    assert place.build().imported >= HEAVY
    first, right, _ = place.serve(asked, *options)
    assert first.imported >= HEAVY
    assert not HEAVY & place.build().imported
    found, answer, mapped = place.serve(asked, *options)
    assert "numpy" in found.imported
    assert not HEAVY & found.imported
    assert "libtorch" not in mapped
    assert scores(answer) == pytest.approx(scores(right), abs=1e-6)
    assert not HEAVY & place.rank(*options, "--rerank").imported


@pytest.mark.parametrize("fields", [{"architecture": "bi"}, {"architecture": "cross", "residual": True}], ids=str)
def test_so_do_other_models_of_vectors(place: Place, tmp_path: Path, fields: dict[str, Any]) -> None:
    model = write_checkpoint(tmp_path, "other", 5, **fields)
    options: tuple[object, ...] = ()
    if fields["architecture"] == "bi":
        place.model = model
    else:
        options = ("--reranker", model, "--rerank")
    place.build()
    ranks = [place.rank(*options, "--json") for _ in range(2)]
    assert [bool(HEAVY & each.imported) for each in ranks] == [True, False]
    one, other = (scores(json.loads(each.out)) for each in ranks)
    assert other == pytest.approx(one, abs=1e-6)


@pytest.mark.slow
def test_so_does_a_base_model_as_it_was_published(place: Place, tmp_path: Path) -> None:
    place.model = write_base(tmp_path / "base", 5)
    assert [bool(HEAVY & place.build().imported) for _ in range(2)] == [True, False]


def test_a_second_stage_takes_torch(place: Place, tmp_path: Path) -> None:
    place.model = write_checkpoint(tmp_path, "virt", 5, architecture="virt")
    place.build()
    for _ in range(2):
        assert "torch" in place.rank().imported


def test_a_damaged_part_is_made_anew_with_one_warning(place: Place) -> None:
    place.build()
    [kept] = place.models
    content = bytearray(kept.read_bytes())
    content[-100] ^= 1
    kept.write_bytes(content)
    kept.chmod(0o600)
    again = place.build()
    assert again.err.count(DAMAGED) == 1
    assert again.imported >= HEAVY
    last = place.build()
    assert DAMAGED not in last.err
    assert not HEAVY & last.imported


def test_an_explanation_imports_torch_when_it_is_asked_for_and_says_so(place: Place) -> None:
    place.build()
    place.serve(BODY)
    asked = {"context": ["w1 w2"], "candidates": [{"text": "w3 w4"}]}
    found, answer, mapped = place.serve(asked, path="/explain")
    [told] = answer["candidates"]
    assert told["explained"] == pytest.approx(told["score"], abs=1e-4)
    assert "libtorch" in mapped
    assert "the network is loaded to explain scores" in found.err


def test_chat_poly_as_it_is_served(tmp_path: Path) -> None:
    place = Place(tmp_path, REPOSITORY / "checkpoints" / "chat-poly")
    place.build()
    _, right, _ = place.serve(BODY)
    found, answer, mapped = place.serve(BODY)
    assert not HEAVY & found.imported
    assert "libtorch" not in mapped
    assert scores(answer) == pytest.approx(scores(right), abs=1e-6)
    assert not HEAVY & place.build().imported
    assert not HEAVY & place.rank().imported
