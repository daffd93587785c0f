"""Loads the models that the command line names; a model of the wrong kind is wrong usage."""

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from polyrank.model.errors import WrongKind
from polyrank.model.inference import disk_cache
from polyrank.model.inference.runners import (
    AUTO,
    BACKENDS,
    FLOAT32,
    OPENVINO_INT8,
    PRECISIONS,
    TORCH,
    Runner,
    why_refused,
)
from polyrank.service import BACKEND, PRECISION
from polyrank.service.cli.output import UsageError

if TYPE_CHECKING:
    from polyrank.index_builder.vectors.encoder import Encode
    from polyrank.model.rankers.networks import LateRanker

L = TypeVar("L")
REFERENCE = Runner(TORCH, FLOAT32)
RERANKER_HINT = ", and this one as --reranker"


def words_left_out(model: str) -> str:
    """Say why a reranker's words do not count; its name goes before."""
    return f"ranks by its pairs alone: {model} counts no words, so it is not known how rare they are"


def add_runner_options(
    parser: argparse.ArgumentParser, backend: str = f"{BACKEND}, or auto", precision: str = f"{PRECISION}, or auto"
) -> None:
    """Add `--backend` and `--precision`; the words say what holds without them."""
    parser.add_argument("--backend", choices=BACKENDS, help=f"what runs the model; default: {backend}")
    parser.add_argument("--precision", choices=PRECISIONS, help=f"what it computes in; default: {precision}")


def chosen_runner(backend: str | None = None, precision: str | None = None) -> Runner:
    """Return what is to run a model: what is asked for, else the environment's, else AUTO. Raises as `_checked`."""
    return _checked(Runner(backend or os.environ.get(BACKEND) or AUTO, precision or os.environ.get(PRECISION) or AUTO))


def reference_runner(backend: str | None, precision: str | None) -> Runner:
    """Return what is to run a model: what is asked for, else the reference, torch in float32. Raises as `_checked`."""
    backend = backend or TORCH
    return _checked(Runner(backend, precision or (AUTO if backend == OPENVINO_INT8 else FLOAT32)))


def _checked(runner: Runner) -> Runner:
    """Raise UsageError where back-end and precision do not go together."""
    if why := why_refused(runner):
        raise UsageError(why)
    return runner


@contextmanager
def usage(before: str = "", after: str = "") -> Iterator[None]:
    """Make a model of the wrong kind wrong usage; the message begins with the flag `before`, and a hint ends it."""
    try:
        yield
    except WrongKind as error:
        raise UsageError(f"{before}{error}{after}") from error


def load(loader: Callable[..., L], name: str, runner: Runner = REFERENCE, before: str = "", after: str = "") -> L:
    """Load a model by a function of rankers/load.py, which refuses one of another kind before torch is imported.

    Raises UsageError as `usage`.
    """
    with usage(before, after):
        return loader(name, backend=runner.backend, precision=runner.precision, disk=disk_cache.configured(os.environ))


def encoded_by(directory: Path) -> "Encode":
    """Return what encodes texts by the model in a directory, which is loaded when the first text comes."""
    from polyrank.index_builder.vectors.encoder import encode_texts
    from polyrank.model.rankers.load import load_late

    @cache
    def ranker() -> "LateRanker":
        return load(load_late, str(directory), chosen_runner())

    return lambda texts: encode_texts(ranker(), texts)
