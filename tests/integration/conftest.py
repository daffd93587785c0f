"""Real checkpoints, small enough to load in no time, and servers as processes."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess
from service_fakes import pool
from tiny import write_checkpoint
from warm_python import WarmPython

import polyrank
from polyrank.index_builder.building.pipeline import build


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
