"""Loads the models that the command line names; a model of the wrong kind is wrong usage."""

import os
from typing import TYPE_CHECKING

from polyrank.model.errors import WrongKind
from polyrank.model.inference.names import AUTO
from polyrank.service.cli.output import UsageError, quiet_libraries
from polyrank.service.variables import BACKEND

if TYPE_CHECKING:
    from polyrank.model.rankers.cross import CrossRanker
    from polyrank.model.rankers.late import LateRanker


def chosen_backend(asked: str | None = None) -> str:
    """Return the name of the back-end: the one asked for, else the environment's, else AUTO."""
    return asked or os.environ.get(BACKEND) or AUTO


def load_late(name: str, hint: str = "", backend: str = "torch") -> "LateRanker":
    """Load a model with candidate embeddings; raises UsageError for another kind, `hint` ends its message."""
    quiet_libraries()
    from polyrank.model.rankers import load as checkpoint

    try:
        return checkpoint.load_late(name, backend)
    except WrongKind as error:
        raise UsageError(f"{error}{hint}") from error


def load_cross(flag: str, name: str, backend: str = "torch") -> "CrossRanker":
    """Load a model that scores pairs, given by a flag; raises UsageError for another kind."""
    quiet_libraries()
    from polyrank.model.rankers import load as checkpoint

    try:
        return checkpoint.load_cross(name, backend=backend)
    except WrongKind as error:
        raise UsageError(f"{flag} {error}") from error
