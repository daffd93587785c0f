"""Loads the models that the command line names; a model of the wrong kind is wrong usage."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from polyrank.model.errors import WrongKind
from polyrank.model.inference.names import AUTO
from polyrank.service.cli.output import UsageError, quiet_libraries
from polyrank.service.variables import BACKEND

if TYPE_CHECKING:
    from polyrank.model.rankers.cross import CrossRanker
    from polyrank.model.rankers.late import LateRanker


RERANKER_HINT = ", and this one as --reranker"


def chosen_backend(asked: str | None = None) -> str:
    """Return the name of the back-end: the one asked for, else the environment's, else AUTO."""
    return asked or os.environ.get(BACKEND) or AUTO


def check_late(name: str, hint: str = "") -> None:
    """Refuse a model without candidate embeddings by its config; raises UsageError, which `hint` ends."""
    from polyrank.model.checkpoint.kind import require_retriever

    _check(require_retriever, name, "", hint)


def check_cross(flag: str, name: str) -> None:
    """Refuse a model that does not score pairs by its config; raises UsageError, which begins with the flag."""
    from polyrank.model.checkpoint.kind import require_pair_scorer

    _check(require_pair_scorer, name, f"{flag} ", "")


def _check(require: Callable[[str], None], name: str, before: str, after: str) -> None:
    quiet_libraries()
    try:
        require(name)
    except WrongKind as error:
        raise UsageError(f"{before}{error}{after}") from error


def load_late(name: str, hint: str = "", backend: str = "torch") -> "LateRanker":
    """Load a model with candidate embeddings; one of another kind is refused before torch is imported."""
    check_late(name, hint)
    from polyrank.model.rankers import load as checkpoint

    return checkpoint.load_late(name, backend)


def load_cross(flag: str, name: str, backend: str = "torch") -> "CrossRanker":
    """Load a model that scores pairs, given by a flag; one of another kind is refused before torch is imported."""
    check_cross(flag, name)
    from polyrank.model.rankers import load as checkpoint

    return checkpoint.load_cross(name, backend=backend)
