"""Real checkpoints, small enough to load in no time, and servers as processes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess
from tiny import write_checkpoint


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the checkpoints `poly`, `other` (a bi-encoder) and `cross`."""
    parent = tmp_path_factory.mktemp("checkpoints")
    write_checkpoint(parent, "poly", 0, architecture="poly", n_codes=4, normalize=True, score_scale=5.0)
    write_checkpoint(parent, "other", 1, architecture="bi", normalize=True, shared_encoder=True)
    write_checkpoint(parent, "cross", 2, architecture="cross")
    return parent


@pytest.fixture
def start() -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers, by their settings; none outlives the test."""
    started: list[ServerProcess] = []

    def begin(**settings: object) -> ServerProcess:
        started.append(ServerProcess(**settings))
        return started[-1]

    yield begin
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
        server.end()
