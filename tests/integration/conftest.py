"""Real checkpoints, small enough to load in no time, and servers as processes."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import fakes
import pytest
from bad_inputs import serve_words
from in_process import TestClient
from served import Served
from server_process import ServerProcess
from service_fakes import build_store, pool, words_app
from tiny import write_checkpoint
from warm_python import WarmPython

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.generation import candidates


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the checkpoints `poly`, `other` (a bi-encoder) and `cross`."""
    parent = tmp_path_factory.mktemp("checkpoints")
    write_checkpoint(parent, "poly", 0, architecture="poly", n_codes=4, normalize=True, score_scale=5.0)
    write_checkpoint(parent, "other", 1, architecture="bi", normalize=True, shared_encoder=True)
    write_checkpoint(parent, "cross", 2, architecture="cross")
    return parent


@pytest.fixture(scope="module")
def store(request: pytest.FixtureRequest, checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that a module's tests share: candidates for the model `poly`, as many as its ROWS says, or 50."""
    root = tmp_path_factory.mktemp("store")
    build(polyrank.load(checkpoints / "poly"), pool(getattr(request.module, "ROWS", 50)), root)
    return root


@pytest.fixture
def warm_children(warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that the product starts are forked."""
    monkeypatch.setattr(sys, "executable", warm_python.executable)


@pytest.fixture
def start(warm_python: WarmPython) -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers, by their settings; none outlives the test."""
    started: list[ServerProcess] = []

    def begin(python: WarmPython | None = warm_python, **settings: object) -> ServerProcess:
        started.append(ServerProcess(python, **settings))
        return started[-1]

    yield begin
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
        server.end()


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates are written in many batches."""
    monkeypatch.setattr(candidates, "BATCH_ROWS", 16)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store whose active generation must outlive whatever the test does."""
    build(fakes.HashEncoder(), fakes.pool(20), tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a model of words, over a socket."""
    with serve_words(tmp_path_factory.mktemp("store")) as served:
        yield served


@pytest.fixture
def words(tmp_path: Path) -> Iterator[TestClient]:
    """A small server with a model of words, and low bounds."""
    build_store(tmp_path)
    with TestClient(words_app(tmp_path, max_candidates=5, max_body_bytes=4096)) as client:
        yield client
