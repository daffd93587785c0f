"""The state of an unfinished run on disk: what a resumed run needs to end with the same weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch

from model.durable import replacing
from model.training.errors import OutputInUse

STATE_FILE = "training-state.pt"


def write_state(directory: Path, state: Mapping[str, Any]) -> None:
    """Replace the state in one step: a kill leaves the old one or the new one."""
    with replacing(directory / STATE_FILE) as temporary, temporary.open("wb") as file:
        torch.save(dict(state), file)


def read_state(directory: Path) -> dict[str, Any]:
    """Read the state; only tensors and plain values are accepted in it, nothing that runs code.

    Raises OutputInUse where there is none, or it is damaged.
    """
    path = directory / STATE_FILE
    if not path.is_file():
        raise OutputInUse(f"{directory} holds no unfinished run to resume; start one without --resume")
    try:
        with ZipFile(path) as archive:  # torch.load does not look at the checksums that torch.save wrote
            if damaged := archive.testzip():
                raise BadZipFile(damaged)
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch lets out several types by kind of damage
        raise OutputInUse(f"{path} is damaged; remove {directory} and start again") from error
    return state


def require_unused(directory: Path) -> None:
    """Raises OutputInUse where the directory holds a run or a checkpoint that this one would overwrite."""
    if (directory / STATE_FILE).exists():
        raise OutputInUse(f"{directory} holds an unfinished run; go on with --resume, or remove it")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise OutputInUse(f"{directory} is not empty; give --output a new directory")
