"""Real checkpoints, small enough to load in no time."""

from pathlib import Path

import pytest
from tiny import write_checkpoint


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the checkpoints `poly`, `other` (a bi-encoder) and `cross`."""
    parent = tmp_path_factory.mktemp("checkpoints")
    write_checkpoint(parent, "poly", 0, architecture="poly", n_codes=4, normalize=True, score_scale=5.0)
    write_checkpoint(parent, "other", 1, architecture="bi", normalize=True, shared_encoder=True)
    write_checkpoint(parent, "cross", 2, architecture="cross")
    return parent
