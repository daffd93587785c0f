"""Load any MODEL: a checkpoint directory, a plain base model as a zero-shot Bi-encoder, or "lexical".

Importing this module is quick: torch is imported when a model with a network is loaded.
"""

from pathlib import Path
from typing import TYPE_CHECKING, cast

from polyrank.model.checkpoint.files import CONFIG_FILE, read_config
from polyrank.model.checkpoint.lookup import (
    LEXICAL,
    is_checkpoint,
    require_classifier,
    require_embedder,
    require_lone_scorer,
    require_pair_scorer,
    require_ranker,
    require_retriever,
    require_teacher,
)
from polyrank.model.config import LexicalConfig
from polyrank.model.errors import InvalidInput, WrongKind
from polyrank.model.inference.disk_cache import DiskCache
from polyrank.model.inference.runners import FLOAT32, TORCH, Runner, why_refused
from polyrank.model.rankers.lexical import BUILT_IN, LexicalRanker

if TYPE_CHECKING:
    from polyrank.model.rankers.classifier import Classifier
    from polyrank.model.rankers.networks import CrossRanker, NetworkRanker, Ranker, Retriever, VectorRanker


def load(
    name: str | Path,
    device: str = "cpu",
    backend: str = TORCH,
    precision: str = FLOAT32,
    disk: DiskCache | None = None,
) -> "Ranker":
    """Load a checkpoint directory, a base model by directory or name, or the built-in model "lexical".

    `device` is where it runs, in torch's notation: "cpu", "cuda", "cuda:1". `backend` is what runs its forward passes
    and `precision` what they compute in: one of BACKENDS and one of PRECISIONS of `polyrank.model.inference.runners`.
    `disk` keeps compiled models: a model that is found there runs without its network being read. To a lexical model,
    which has no network, none of them matters.

    Returns:
        A VectorRanker (Bi- and Poly-encoder), a CrossRanker or a LexicalRanker; all have `rank(context, candidates,
        top_k)`.

    Raises:
        ModelNotFound: there is nothing of that name.
        CheckpointInvalid: it is damaged, incomplete, or of an unknown format.
        InvalidInput: there is no such device, back-end or precision, or they do not go together; WrongKind, a kind of
            it, for a classifier.
    """
    if why := why_refused(Runner(backend, precision)):
        raise InvalidInput(why)
    if name == LEXICAL:
        return LexicalRanker(LEXICAL, BUILT_IN)
    if is_checkpoint(name):
        config = read_config(Path(name) / CONFIG_FILE)
        if not config.has_network:
            return LexicalRanker(str(name), config)
        require_ranker(name)
    from polyrank.model.rankers.networks import load_network

    return load_network(name, device, backend, precision, disk)


def words_of(name: str) -> LexicalConfig:
    """Return how a model's words count; no network is loaded, and none is looked for on the hub: it has no words.

    Raises WrongKind for what is no model whose words count, CheckpointInvalid for a damaged one.
    """
    if name == LEXICAL:
        evidence = BUILT_IN.evidence
    else:
        evidence = read_config(Path(name) / CONFIG_FILE).evidence if is_checkpoint(name) else None
    if evidence is None:
        raise WrongKind(f"{name} is no checkpoint whose words count; give another one, or {LEXICAL}")
    return evidence


def load_classifier(
    name: str | Path,
    device: str = "cpu",
    backend: str = TORCH,
    precision: str = FLOAT32,
    disk: DiskCache | None = None,
) -> "Classifier":
    """Load a checkpoint that tells classes, as `load`; raises WrongKind for a model that ranks."""
    require_classifier(name)
    if why := why_refused(Runner(backend, precision)):
        raise InvalidInput(why)
    from polyrank.model.rankers.classifier import Classifier
    from polyrank.model.rankers.networks import load_network

    return Classifier(load_network(name, device, backend, precision, disk))


def load_retriever(
    name: str | Path, backend: str = TORCH, precision: str = FLOAT32, disk: DiskCache | None = None
) -> "Retriever":
    """Load a model that can search a pool, as `load`; raises WrongKind for one that scores pairs."""
    require_retriever(name)
    return cast("Retriever", load(name, backend=backend, precision=precision, disk=disk))


def load_vector_ranker(
    name: str | Path, backend: str = TORCH, precision: str = FLOAT32, disk: DiskCache | None = None
) -> "VectorRanker":
    """Load a Bi- or Poly-encoder, as `load`; raises WrongKind for another model."""
    require_embedder(name)
    return cast("VectorRanker", load(name, backend=backend, precision=precision, disk=disk))


def load_cross(
    name: str | Path,
    device: str = "cpu",
    backend: str = TORCH,
    precision: str = FLOAT32,
    disk: DiskCache | None = None,
) -> "CrossRanker":
    """Load a model that scores pairs, as `load`; raises WrongKind for another."""
    require_pair_scorer(name)
    return cast("CrossRanker", load(name, device, backend, precision, disk))


def load_reranker(
    name: str | Path,
    device: str = "cpu",
    backend: str = TORCH,
    precision: str = FLOAT32,
    disk: DiskCache | None = None,
) -> "CrossRanker":
    """Load a model whose score of a pair depends on that pair alone, as `load_cross`; raises WrongKind for another."""
    require_lone_scorer(name)
    return load_cross(name, device, backend, precision, disk)


def load_teacher(
    name: str | Path, backend: str = TORCH, precision: str = FLOAT32, disk: DiskCache | None = None
) -> "NetworkRanker":
    """Load a model of any architecture that has learnt to rank, as `load`; raises WrongKind for another."""
    require_teacher(name)
    return cast("NetworkRanker", load(name, backend=backend, precision=precision, disk=disk))
