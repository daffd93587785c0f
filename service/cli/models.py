"""Loads the models that the command line names; a model of the wrong kind is wrong usage."""

import argparse
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from polyrank.model.errors import WrongKind
from polyrank.model.inference import disk_cache
from polyrank.model.inference.names import (
    AUTO,
    BACKENDS,
    FLOAT32,
    OPENVINO_INT8,
    PRECISIONS,
    TORCH,
    Runner,
    why_refused,
)
from polyrank.service.cli.output import UsageError
from polyrank.service.variables import BACKEND, PRECISION

if TYPE_CHECKING:
    from polyrank.index_builder.vectors.encoder import Encode
    from polyrank.model.rankers.classifier import Classifier
    from polyrank.model.rankers.cross import CrossRanker
    from polyrank.model.rankers.late import LateRanker
    from polyrank.model.rankers.networks import NetworkRanker, Ranker, Retriever

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


def check_retriever(name: str, hint: str = "") -> None:
    """Refuse a model that cannot search a pool by its config; raises UsageError, which `hint` ends."""
    from polyrank.model.checkpoint.kind import require_retriever

    _check(require_retriever, name, "", hint)


def check_late(name: str, hint: str = "") -> None:
    """Refuse a model that is no Bi- or Poly-encoder, as `check_retriever`."""
    from polyrank.model.checkpoint.kind import require_embedder

    _check(require_embedder, name, "", hint)


def check_trainable(name: str) -> None:
    """Refuse a model without a network to train, as `check_retriever`."""
    from polyrank.model.checkpoint.kind import require_network

    _check(require_network, name, "", "")


def check_cross(flag: str, name: str) -> None:
    """Refuse a model that does not score pairs by its config; raises UsageError, which begins with the flag."""
    from polyrank.model.checkpoint.kind import require_pair_scorer

    _check(require_pair_scorer, name, f"{flag} ", "")


def check_classifier(flag: str, name: str) -> None:
    """Refuse a model that tells no classes, as `check_cross`."""
    from polyrank.model.checkpoint.kind import require_classifier

    _check(require_classifier, name, f"{flag} ", "")


def _check(require: Callable[[str], object], name: str, before: str, after: str) -> None:
    try:
        require(name)
    except WrongKind as error:
        raise UsageError(f"{before}{error}{after}") from error


def load_any(name: str, runner: Runner) -> "Ranker":
    """Load a model of any kind."""
    from polyrank.model.rankers import load as checkpoint

    return checkpoint.load(name, "cpu", *runner, disk=disk_cache.configured(os.environ))


def load_classifier(name: str, runner: Runner = REFERENCE) -> "Classifier":
    """Load a classifier; a model that ranks is refused before torch is imported."""
    from polyrank.model.checkpoint.kind import require_classifier

    require_classifier(name)
    from polyrank.model.rankers import load as checkpoint

    return checkpoint.load_classifier(name, "cpu", *runner, disk=disk_cache.configured(os.environ))


def load_retriever(name: str, hint: str = "", runner: Runner = REFERENCE) -> "Retriever":
    """Load a model that can search a pool; one of another kind is refused before torch is imported."""
    check_retriever(name, hint)
    from polyrank.model.rankers import load as checkpoint

    return checkpoint.load_retriever(name, *runner, disk=disk_cache.configured(os.environ))


def load_late(name: str, hint: str = "", runner: Runner = REFERENCE) -> "LateRanker":
    """Load a Bi- or Poly-encoder; another model is refused before torch is imported."""
    check_late(name, hint)
    from polyrank.model.rankers import load as checkpoint

    return checkpoint.load_late(name, *runner, disk=disk_cache.configured(os.environ))


def encoded_by(directory: Path) -> "Encode":
    """Return what encodes texts by the model in a directory, which is loaded when the first text comes."""
    from polyrank.index_builder.vectors.encoder import encode_texts

    @cache
    def ranker() -> "LateRanker":
        return load_late(str(directory), runner=chosen_runner())

    return lambda texts: encode_texts(ranker(), texts)


def load_cross(flag: str, name: str, runner: Runner = REFERENCE) -> "CrossRanker":
    """Load a model that scores pairs, given by a flag; one of another kind is refused before torch is imported."""
    check_cross(flag, name)
    from polyrank.model.rankers import load as checkpoint

    return checkpoint.load_cross(name, "cpu", *runner, disk=disk_cache.configured(os.environ))


def load_teacher(flag: str, name: str) -> "NetworkRanker":
    """Load a model to distil from, given by a flag; one that cannot teach is refused before torch is imported."""
    from polyrank.model.checkpoint.kind import require_teacher

    _check(require_teacher, name, f"{flag} ", "")
    from polyrank.model.rankers import load as checkpoint

    return checkpoint.load_teacher(name, disk=disk_cache.configured(os.environ))
