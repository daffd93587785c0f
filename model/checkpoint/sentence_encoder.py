"""How a sentence encoder was published: the layout of sentence-transformers, read from its small files.

    modules.json                          Transformer, Pooling, maybe Dense layers, maybe Normalize
    1_Pooling/config.json                 how token states become a vector; an old and a new spelling
    2_Dense/config.json, .safetensors     a linear map of the vector
    sentence_bert_config.json             max_seq_length, do_lower_case
    config_sentence_transformers.json     prompts, similarity_fn_name

What cannot be honoured is refused by its name: other vectors than the published ones would rank worse, silently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from polyrank.model.checkpoint.files import read_object, read_objects
from polyrank.model.config import DenseConfig, Reduction
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.options import MOST_WHOLE

POOLINGS: dict[str, Reduction] = {
    "cls": "first",
    "mean": "mean",
    "max": "max",
    "mean_sqrt_len_tokens": "mean-sqrt-len",
    "weightedmean": "weighted-mean",
    "lasttoken": "last",
}
# The old spelling, which all tools know: a flag for each mode.
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu"}
_LONGEST_PATH = 255
_DOCUMENTS = ("document", "passage", "corpus")  # in the order in which sentence-transformers looks for it


@dataclass(frozen=True, slots=True)
class Published:
    """What a directory says about its sentence encoder."""

    reduction: Reduction = "mean"  # how token states become one vector
    normalize: bool = True  # vectors are compared at unit length
    # The linear maps after the reduction, and the safetensors file of each.
    dense: tuple[tuple[DenseConfig, Path], ...] = ()
    max_tokens: int | None = None  # the longest input; None: it is not said
    lower_case: bool = False  # texts are put into lower case before they are tokenised
    # Text before each context and each candidate.
    context_prompt: str = ""
    candidate_prompt: str = ""


def read_published(directory: Path) -> Published:
    """Read how a base model's vectors are meant to be made; raises CheckpointInvalid for what cannot be honoured."""
    modules = _modules(directory)
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise CheckpointInvalid(f"{directory}: modules.json begins with {' and '.join(kinds[:2])}; {_SUPPORTED}")
    dense = []
    for kind, path in modules[2:]:
        if kind == "Dense":
            dense.append(_dense(path))
        elif kind != "Normalize" or path is not modules[-1][1]:
            raise CheckpointInvalid(f"{directory}: modules.json has a module {kind} at {path.name}; {_SUPPORTED}")
    settings = _optional(directory / "config_sentence_transformers.json")
    words = _optional(directory / "sentence_bert_config.json")
    context_prompt, candidate_prompt = _prompts(directory, settings)
    if (compares_by := settings.get("similarity_fn_name") or "cosine") not in ("cosine", "dot"):
        raise CheckpointInvalid(f"{directory}: similarity_fn_name is {compares_by}; cosine and dot can be served")
    return Published(
        reduction=_reduction(modules[1][1] / "config.json", has_prompts=bool(context_prompt or candidate_prompt)),
        normalize=compares_by == "cosine" or kinds[-1] == "Normalize",
        dense=tuple(dense),
        max_tokens=_whole(directory, words.get("max_seq_length")),
        lower_case=words.get("do_lower_case") is True,
        context_prompt=context_prompt,
        candidate_prompt=candidate_prompt,
    )


def is_reranker(directory: Path) -> bool:
    """Whether a base model is a sequence classifier that scores pairs.

    Raises CheckpointInvalid for one whose scores would not be those that it was published for: with several labels,
    with another activation than the sigmoid or none, or without the segments of a pair.
    """
    config = read_object(directory / "config.json")
    names = config.get("architectures")
    if not (isinstance(names, list) and names and str(names[0]).endswith("ForSequenceClassification")):
        return False
    labels = config.get("id2label")
    count = len(labels) if isinstance(labels, dict) else config.get("num_labels", 2)
    if count != 1:
        raise CheckpointInvalid(f"{directory} is a classifier with {count} labels; a reranker has one")
    own = config.get("sentence_transformers")
    activation = (own.get("activation_fn") if isinstance(own, dict) else None) or config.get(
        "sbert_ce_default_activation_function"
    )
    if activation and str(activation).rsplit(".", 1)[-1] not in ("Sigmoid", "Identity"):
        raise CheckpointInvalid(f"{directory}: activation_fn is {activation}; polyrank takes Sigmoid or Identity")
    inputs = _optional(directory / "tokenizer_config.json").get("model_input_names")
    if isinstance(inputs, list) and "token_type_ids" not in inputs and config.get("type_vocab_size", 1) > 1:
        raise CheckpointInvalid(f"{directory}: tokenizer_config.json leaves out token_type_ids, which polyrank gives")
    return True


_SUPPORTED = "polyrank takes Transformer, Pooling, Dense layers and Normalize, in this order"


def _modules(directory: Path) -> list[tuple[str, Path]]:
    """Return kind and directory of each module; a plain transformer has the mean of its states as its vector."""
    path = directory / "modules.json"
    if not path.is_file():
        return [("Transformer", directory), ("Pooling", directory / "1_Pooling")]
    modules = []
    for module in read_objects(path):
        kind, folder = module.get("type"), module.get("path")
        parts = Path(folder).parts if isinstance(folder, str) and len(folder) < _LONGEST_PATH else ("..",)
        if not isinstance(kind, str) or Path(*parts).is_absolute() or ".." in parts:
            raise CheckpointInvalid(f"{path}: each module needs a type and a path in the directory")
        modules.append((kind.rsplit(".", 1)[-1], directory.joinpath(*parts)))
    if modules and modules[0][1] != directory:
        raise CheckpointInvalid(f"{path}: the transformer lies in {modules[0][1].name}, not in the directory itself")
    return modules


def _reduction(path: Path, has_prompts: bool) -> Reduction:
    if not path.is_file():
        return "mean"
    raw = read_object(path)
    modes = raw.get("pooling_mode", [name for flag, name in FLAGS.items() if raw.get(flag)] or "mean")
    named = [str(mode) for mode in (modes if isinstance(modes, list) else [modes])]
    if len(named) != 1 or named[0] not in POOLINGS:
        why = f"{path}: pooling_mode is {' + '.join(named):.200}"
        raise CheckpointInvalid(f"{why}; polyrank takes one of {', '.join(POOLINGS)}")
    if has_prompts and raw.get("include_prompt", True) is not True:
        raise CheckpointInvalid(f"{path}: include_prompt is false; polyrank cannot leave a prompt out of the vector")
    return POOLINGS[named[0]]


def _dense(path: Path) -> tuple[DenseConfig, Path]:
    raw = read_object(path / "config.json")
    activation = str(raw.get("activation_function", "torch.nn.modules.activation.Tanh")).rsplit(".", 1)[-1]
    if activation not in _ACTIVATIONS:
        raise CheckpointInvalid(f"{path}: activation_function is {activation}; known are {', '.join(_ACTIVATIONS)}")
    config = DenseConfig(
        inputs=_needed(path, raw, "in_features"),
        outputs=_needed(path, raw, "out_features"),
        bias=raw.get("bias", True) is True,
        activation=cast(Any, _ACTIVATIONS[activation]),
    )
    return config, path / "model.safetensors"


def _needed(path: Path, raw: Mapping[str, Any], name: str) -> int:
    number = _whole(path, raw.get(name))
    if number is None:
        raise CheckpointInvalid(f"{path}: config.json lacks {name}")
    return number


def _whole(path: Path, value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= MOST_WHOLE:
        raise CheckpointInvalid(f"{path}: a size is {value!r:.80}, not a whole number from 1 to {MOST_WHOLE}")
    return value


def _prompts(directory: Path, settings: Mapping[str, Any]) -> tuple[str, str]:
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointInvalid(f"{directory}: prompts in config_sentence_transformers.json must be texts by name")
    if not isinstance(default, str | None):
        raise CheckpointInvalid(f"{directory}: default_prompt_name in config_sentence_transformers.json must be a text")
    return _prompt(prompts, ["query", default]), _prompt(prompts, [*_DOCUMENTS, default])


def _prompt(prompts: Mapping[str, str], names: Sequence[str | None]) -> str:
    return next((prompts[name] for name in names if name is not None and name in prompts), "")


def _optional(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}
