"""Models that the command line names: one of the wrong kind is wrong usage."""

import os
from typing import TYPE_CHECKING

from polyrank.model.errors import WrongKind
from polyrank.model.inference.names import AUTO
from polyrank.service.cli.output import UsageError, quiet_libraries

if TYPE_CHECKING:
    from polyrank.model.rankers.cross import CrossRanker
    from polyrank.model.rankers.late import LateRanker


BACKEND = "POLYRANK_BACKEND"


def chosen_backend(asked: str | None = None) -> str:
    """The name of what is to run a model: what is asked for, or the environment says, or AUTO."""
    return asked or os.environ.get(BACKEND) or AUTO


def load_late(name: str, hint: str = "", backend: str = "torch") -> "LateRanker":
    """Load a Bi- or Poly-encoder; raises UsageError for a Cross-encoder, with `hint` at the end of its message."""
    quiet_libraries()
    from polyrank.model.rankers import load as checkpoint

    try:
        return checkpoint.load_late(name, backend)
    except WrongKind as error:
        raise UsageError(f"{error}{hint}") from error


def load_cross(flag: str, name: str, backend: str = "torch") -> "CrossRanker":
    """Load the Cross-encoder that a flag names; raises UsageError for a model of another kind."""
    quiet_libraries()
    from polyrank.model.rankers import load as checkpoint

    try:
        return checkpoint.load_cross(name, backend=backend)
    except WrongKind as error:
        raise UsageError(f"{flag} {error}") from error
