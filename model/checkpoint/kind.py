"""Says what a name leads to by the small files of a model: before torch is imported and anything is loaded."""

import os
from pathlib import Path

from polyrank.model.checkpoint.base import find_base_files
from polyrank.model.checkpoint.files import BASE_BACKBONE_FILE, CONFIG_FILE, read_config
from polyrank.model.checkpoint.published import POOLINGS, is_reranker
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid, InvalidInput, WrongKind
from polyrank.model.registry import ARCHITECTURES, in_words, names_in_words

LEXICAL = "lexical"  # the model that comes with polyrank, by the name of its architecture
_ZERO_SHOT = "bi"  # what a plain base model is loaded as


def is_checkpoint(name: str | Path) -> bool:
    """Whether a name is a checkpoint's directory; else it is for a base model's, which need not exist.

    Raises CheckpointInvalid for a directory that is neither.
    """
    directory = Path(name)
    if os.path.isfile(directory / CONFIG_FILE):  # os.path, because Path raises where a name is too long for a file
        return True
    if os.path.isdir(directory) and not (directory / BASE_BACKBONE_FILE).is_file():
        raise CheckpointInvalid(f"{directory} is no model: it holds neither {CONFIG_FILE} nor {BASE_BACKBONE_FILE}")
    return False


def architecture_of(name: str | Path) -> str:
    """Return the architecture of a checkpoint, a base model or the model that comes with polyrank.

    Raises ModelNotFound where there is none of that name, CheckpointInvalid where its config is damaged.
    """
    if name == LEXICAL:  # a directory of that name is ./lexical: what is served must not depend on where it is started
        return LEXICAL
    if is_checkpoint(name):
        return read_config(Path(name) / CONFIG_FILE).architecture
    return "cross" if is_reranker(find_base_files(str(name))) else _ZERO_SHOT


def require_ranker(name: str | Path) -> None:
    """Raise WrongKind for a checkpoint that tells classes; other errors as `architecture_of`."""
    if tells_classes(name):
        raise WrongKind(f"{name} is a classifier, which ranks nothing; give a model that was trained to rank")


def require_classifier(name: str | Path) -> None:
    """Raise WrongKind for a model that does not tell classes; other errors as `architecture_of`."""
    architecture = architecture_of(name)
    if not tells_classes(name):
        why = f"{name} is {in_words(architecture)}, which tells no classes"
        raise WrongKind(f"{why}; give a checkpoint of polyrank train --task classify")


def tells_classes(name: str | Path) -> bool:
    """Whether a name is for a classifier; raises CheckpointInvalid where its config is damaged."""
    return name != LEXICAL and is_checkpoint(name) and bool(read_config(Path(name) / CONFIG_FILE).labels)


def require_retriever(name: str | Path) -> str:
    """Return the architecture of a model that can search a pool, as `architecture_of`; raises WrongKind for another."""
    require_ranker(name)
    architecture = architecture_of(name)
    if not ARCHITECTURES[architecture].retrieves:
        why = f"{name} is a {architecture}-encoder, which has no candidate embeddings"
        raise WrongKind(f"{why}; give a {names_in_words(retrieves=True)}")
    return architecture


def require_embedder(name: str | Path) -> None:
    """Raise WrongKind for a model whose vectors say nothing, or that has none; other errors as `architecture_of`."""
    architecture = require_retriever(name)
    if not ARCHITECTURES[architecture].embeds:
        raise WrongKind(f"{name} is {in_words(architecture)}; give a {names_in_words(retrieves=True)}")


def require_pair_scorer(name: str | Path) -> None:
    """Raise WrongKind for a model that does not score pairs; other errors as `architecture_of`."""
    require_ranker(name)
    architecture = architecture_of(name)
    if ARCHITECTURES[architecture].retrieves:
        raise WrongKind(f"{name} is {in_words(architecture)}; give a {names_in_words(retrieves=False)}")


def require_teacher(name: str | Path) -> None:
    """Raise WrongKind for a model that has learnt nothing to teach; other errors as `architecture_of`.

    That is one without a network, and a base model that is no reranker: most often it was meant as the base.
    """
    require_ranker(name)
    architecture = architecture_of(name)
    if ARCHITECTURES[architecture].encoder is None:
        raise WrongKind(f"{name} is {in_words(architecture)}; give a model with a network as the teacher")
    if architecture == _ZERO_SHOT and not is_checkpoint(name):
        why = f"{name} is a base model, which has not learnt to choose replies"
        raise WrongKind(f"{why}; give a checkpoint or a published reranker as the teacher")


def require_network(name: str | Path) -> None:
    """Raise WrongKind for a model without a network to train; other errors as `architecture_of`."""
    architecture = architecture_of(name)
    if ARCHITECTURES[architecture].encoder is None:
        why = f"{name} is {in_words(architecture)}: it has no network to train"
        raise WrongKind(f"{why}; fit its words by --only-evidence, or give a base model")


def require_exportable(directory: Path) -> ModelConfig:
    """Return the config of a checkpoint whose vectors other tools can use: one of each side, and their dot product.

    Raises WrongKind for another architecture and for a classifier, InvalidInput for a reduction that
    sentence-transformers has not, CheckpointInvalid where the config is damaged.
    """
    config = read_config(directory / CONFIG_FILE)
    require_ranker(directory)
    if why := ARCHITECTURES[config.architecture].beyond_vectors:
        what = f"{directory} is {in_words(config.architecture)}: {why}"
        raise WrongKind(f"{what}; sentence-transformers compares one vector of each side. Give a bi-encoder")
    if config.reduction not in POOLINGS.values():
        raise InvalidInput(f"{directory} reduces by {config.reduction!r}, which sentence-transformers has not")
    return config
