"""Writes a Bi-encoder as sentence-transformers lays one out: the way back of sentence_encoder.py.

One transformer for both sides, with one limit of tokens, is a plain sentence encoder. Two of them, or two limits, are
the two routes "query" and "document" of a Router (sentence-transformers 5.0 and above); a shared transformer is then
written twice. What vectors do not hold is left out, and said: words, calibration, the way from turns to one text.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

from safetensors.torch import save_file
from torch import nn

from polyrank.model.architectures.backbone import Backbone
from polyrank.model.architectures.vector import VectorEncoder
from polyrank.model.checkpoint.card import CARD_FILE, exported_card
from polyrank.model.checkpoint.discovery import read_checkpoint
from polyrank.model.checkpoint.files import TOKENIZER_FILE, WEIGHTS_FILE, require_free
from polyrank.model.checkpoint.lookup import require_exportable
from polyrank.model.checkpoint.sentence_encoder import FLAGS, POOLINGS
from polyrank.model.config import ModelConfig
from polyrank.model.durable import make_directory, rename_durably, sync_tree
from polyrank.model.text.tokenizer import Tokenizer

_KINDS = "sentence_transformers.models"  # the names that all releases know
_SEGMENTS = "token_type_ids"
_ACTIVATIONS = {
    "identity": "linear.Identity",
    "tanh": "activation.Tanh",
    "relu": "activation.ReLU",
    "gelu": "activation.GELU",
}


def export(checkpoint: Path, output: Path) -> ModelConfig:
    """Write a checkpoint's vectors for sentence-transformers; returns its config.

    `output` is a directory that is empty or does not exist; it is there as a whole or not at all.

    Raises:
        WrongKind: its score needs more than one vector of each side.
        InvalidInput: sentence-transformers has no such reduction, or `output` is in use.
    """
    config = require_exportable(checkpoint)
    require_free(output)
    encoder, _ = read_checkpoint(checkpoint)
    assert isinstance(encoder, VectorEncoder), "an architecture without vectors was refused"
    with _staging_directory(output) as directory:
        if config.sides_differ:
            _write_routes(directory, encoder, checkpoint / TOKENIZER_FILE)
        else:
            _write_plain(directory, encoder, checkpoint / TOKENIZER_FILE)
        _write_json(directory / "config_sentence_transformers.json", _settings(config))
        (directory / CARD_FILE).write_text(exported_card(config, output.name), encoding="utf-8")
    return config


def _write_plain(directory: Path, encoder: VectorEncoder, tokenizer: Path) -> None:
    config = encoder.config
    _write_transformer(directory, encoder.candidate, tokenizer, config.max_candidate_tokens, keep="beginning")
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), *_after(encoder, first=2)]
    _write_pooling(directory / "1_Pooling", encoder)
    _write_after(directory, encoder, first=2)
    _write_modules(directory, modules)


def _write_routes(directory: Path, encoder: VectorEncoder, tokenizer: Path) -> None:
    config, structure = encoder.config, {}
    sides = (
        ("query", encoder.context, config.max_context_tokens, "end"),
        ("document", encoder.candidate, config.max_candidate_tokens, "beginning"),
    )
    for side, backbone, most_tokens, keep in sides:
        folders = [f"{side}_0_Transformer", f"{side}_1_Pooling"]
        _write_transformer(directory / folders[0], backbone, tokenizer, most_tokens, keep)
        _write_pooling(directory / folders[1], encoder)
        structure[side] = folders
    kinds = {name: f"{_KINDS}.{name.rsplit('_', 1)[-1]}" for folders in structure.values() for name in folders}
    # Without a route for texts of neither kind, `encode` refuses them instead of taking contexts for candidates.
    parameters = {"default_route": None, "allow_empty_key": False}
    _write_json(directory / "router_config.json", {"types": kinds, "structure": structure, "parameters": parameters})
    _write_after(directory, encoder, first=1)
    _write_modules(directory, [("Router", ""), *_after(encoder, first=1)])


def _write_transformer(directory: Path, backbone: Backbone, tokenizer: Path, most_tokens: int, keep: str) -> None:
    """Write a transformer with its merged weights; `keep`: which end of a text that is too long is read."""
    directory.mkdir(exist_ok=True)
    transformer = backbone.transformer
    settings = transformer.config.to_dict()
    settings.pop("_name_or_path", None)
    settings.pop("torch_dtype", None)
    dtype = str(transformer.dtype).removeprefix("torch.")  # a reader computes in what the config says
    _write_json(directory / "config.json", {**settings, "architectures": [type(transformer).__name__], "dtype": dtype})
    _write_tensors(directory, transformer)
    shutil.copyfile(tokenizer, directory / TOKENIZER_FILE)
    inputs = ["input_ids", *([_SEGMENTS] if settings.get("type_vocab_size", 1) > 1 else []), "attention_mask"]
    padding = Tokenizer(tokenizer).name_of(backbone.pad_id) or None
    tokenizing = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": inputs,
        "model_max_length": most_tokens,
        "pad_token": padding,
        "truncation_side": "left" if keep == "end" else "right",
    }
    _write_json(directory / "tokenizer_config.json", tokenizing)
    _write_json(directory / "sentence_bert_config.json", {"max_seq_length": most_tokens, "do_lower_case": False})


def _write_pooling(directory: Path, encoder: VectorEncoder) -> None:
    flags = {flag: POOLINGS[mode] == encoder.config.reduction for flag, mode in FLAGS.items()}
    directory.mkdir()
    pooling = {"word_embedding_dimension": encoder.context.dim, **flags, "include_prompt": True}
    _write_json(directory / "config.json", pooling)


def _after(encoder: VectorEncoder, first: int) -> list[tuple[str, str]]:
    """Name the modules after pooling, numbered from `first`, and their folders."""
    kinds = ["Dense"] * len(encoder.dense) + ["Normalize"] * encoder.config.normalize
    return [(kind, f"{number}_{kind}") for number, kind in enumerate(kinds, first)]


def _write_after(directory: Path, encoder: VectorEncoder, first: int) -> None:
    modules = _after(encoder, first)
    for _, folder in modules:
        (directory / folder).mkdir()
    for (_, folder), config, dense in zip(modules, encoder.config.dense, encoder.dense, strict=False):
        settings = {
            "in_features": config.inputs,
            "out_features": config.outputs,
            "bias": config.bias,
            "activation_function": f"torch.nn.modules.{_ACTIVATIONS[config.activation]}",
        }
        _write_json(directory / folder / "config.json", settings)
        _write_tensors(directory / folder, dense)


def _write_tensors(directory: Path, module: nn.Module) -> None:
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in module.state_dict().items()}
    save_file(tensors, directory / WEIGHTS_FILE, metadata={"format": "pt"})


def _write_modules(directory: Path, modules: list[tuple[str, str]]) -> None:
    entries = [
        {"idx": at, "name": str(at), "path": path, "type": f"{_KINDS}.{kind}"}
        for at, (kind, path) in enumerate(modules)
    ]
    _write_json(directory / "modules.json", entries)


def _settings(config: ModelConfig) -> Mapping[str, Any]:
    assembly = config.assembly
    return {
        "prompts": {"query": assembly.context_prompt, "document": assembly.candidate_prompt},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine" if config.normalize else "dot",
    }


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def _staging_directory(output: Path) -> Iterator[Path]:
    """Yield a directory beside `output` that takes its place when the block ends; if the block raises, it goes."""
    make_directory(output.parent)
    temporary = output.with_name(f".{output.name}.{token_hex(8)}.tmp")
    temporary.mkdir()
    try:
        yield temporary
        sync_tree(temporary)
        rename_durably(temporary, output)  # in place of an empty directory too
    except BaseException:  # Ctrl-C too
        shutil.rmtree(temporary, ignore_errors=True)
        raise
