"""Loads the models that the command line names; a model of the wrong kind is wrong usage."""

import argparse
import os
from typing import TYPE_CHECKING

from polyrank.model.errors import WrongKind
from polyrank.model.inference.names import AUTO, BACKENDS, FLOAT32, OPENVINO_INT8, PRECISIONS, TORCH, Runner
from polyrank.service.cli.output import UsageError, quiet_libraries

if TYPE_CHECKING:
    from polyrank.model.rankers.cross import CrossRanker
    from polyrank.model.rankers.late import LateRanker

BACKEND, PRECISION = "POLYRANK_BACKEND", "POLYRANK_PRECISION"
REFERENCE = Runner(TORCH, FLOAT32)


def add_runner_options(parser: argparse.ArgumentParser, default: str = f"{BACKEND}, or auto") -> None:
    """Add `--backend` and `--precision`; `default` says in words what holds without the first."""
    parser.add_argument("--backend", choices=BACKENDS, help=f"what runs the model; default: {default}")
    precision = default.replace(BACKEND, PRECISION).replace(TORCH, FLOAT32)
    parser.add_argument("--precision", choices=PRECISIONS, help=f"what it computes in; default: {precision}")


def chosen_runner(backend: str | None = None, precision: str | None = None) -> Runner:
    """Return what is to run a model: what is asked for, else the environment's, else AUTO."""
    return Runner(backend or os.environ.get(BACKEND) or AUTO, precision or os.environ.get(PRECISION) or AUTO)


def reference_runner(backend: str | None, precision: str | None) -> Runner:
    """Return what is to run a model: what is asked for, else the reference, torch in float32."""
    backend = backend or TORCH
    return Runner(backend, precision or (AUTO if backend == OPENVINO_INT8 else FLOAT32))


def load_late(name: str, hint: str = "", runner: Runner = REFERENCE) -> "LateRanker":
    """Load a model with candidate embeddings; raises UsageError for another kind, `hint` ends its message."""
    quiet_libraries()
    from polyrank.model.rankers import load as checkpoint

    try:
        return checkpoint.load_late(name, *runner)
    except WrongKind as error:
        raise UsageError(f"{error}{hint}") from error


def load_cross(flag: str, name: str, runner: Runner = REFERENCE) -> "CrossRanker":
    """Load a model that scores pairs, given by a flag; raises UsageError for another kind."""
    quiet_libraries()
    from polyrank.model.rankers import load as checkpoint

    try:
        return checkpoint.load_cross(name, "cpu", *runner)
    except WrongKind as error:
        raise UsageError(f"{flag} {error}") from error
