"""Load any MODEL: a checkpoint directory, or a plain base model as a zero-shot Bi-encoder."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PretrainedConfig

from polyrank.model.architectures.backbone import Backbone, load_base_weights, read_backbone_config, read_weights
from polyrank.model.architectures.bi import BiEncoder
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.poly import PolyEncoder
from polyrank.model.architectures.residual import ResidualEncoder
from polyrank.model.checkpoint.adapter import merge, split
from polyrank.model.checkpoint.base import BaseModel, resolve_base
from polyrank.model.checkpoint.files import BACKBONE_FILE, CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE, CheckpointFiles
from polyrank.model.config import AssemblyConfig, ModelConfig, Reduction
from polyrank.model.errors import CheckpointInvalid, InvalidInput, WrongKind
from polyrank.model.inference.choice import check_backend, choose_backend
from polyrank.model.inference.names import TORCH
from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.rankers.late import LateRanker
from polyrank.model.text.assembly import Assembler
from polyrank.model.text.tokenizer import Tokenizer

Encoder = BiEncoder | PolyEncoder | CrossEncoder
Ranker = LateRanker | CrossRanker

_BACKBONES = ("context.", "candidate.", "encoder.", "poly.context.", "poly.candidate.")
_CANDIDATE = ("candidate.", "poly.candidate.")


def load(name: str | Path, device: str = "cpu", backend: str = TORCH) -> Ranker:
    """Load a checkpoint directory, or a base model by directory or name.

    Args:
        name: which.
        device: where it runs, in torch's notation: "cpu", "cuda", "cuda:1".
        backend: what runs its forward passes, one of `polyrank.model.inference.names.BACKENDS`.

    Returns:
        A LateRanker (Bi- and Poly-encoder) or a CrossRanker; both have `rank(context, candidates, top_k)`.

    Raises:
        ModelNotFound: there is nothing of that name.
        CheckpointInvalid: it is damaged, incomplete, or of an unknown format.
        InvalidInput: there is no such device or back-end, or the two do not go together.
    """
    check_backend(backend)
    directory = Path(name)
    if os.path.isfile(directory / CONFIG_FILE):  # os.path, because Path raises where a name is too long for a file
        encoder, files = _load_checkpoint(directory)
    elif os.path.isdir(directory) and not (directory / BACKBONE_FILE).is_file():
        raise CheckpointInvalid(f"{directory} is no model: it holds neither {CONFIG_FILE} nor {BACKBONE_FILE}")
    else:
        encoder, files = _load_base(str(name), None)
    try:
        encoder.to(device)
    except (RuntimeError, AssertionError) as error:  # torch asserts where it was built without CUDA
        raise InvalidInput(f"nothing can run on the device {device!r}: {str(error).splitlines()[0]}") from error
    return _ranker(str(name), encoder, files, backend)


def load_late(name: str | Path, backend: str = TORCH) -> LateRanker:
    """Load a Bi- or Poly-encoder; arguments as `load`.

    Raises:
        WrongKind: the model is a Cross-encoder.
        InvalidInput: as `load`.
        ModelNotFound, CheckpointInvalid: as `load`.
    """
    ranker = load(name, backend=backend)
    if isinstance(ranker, CrossRanker):
        raise WrongKind(f"{name} is a cross-encoder, which has no candidate embeddings; give a bi- or poly-encoder")
    return ranker


def load_cross(name: str | Path, device: str = "cpu", backend: str = TORCH) -> CrossRanker:
    """Load a Cross-encoder; arguments as `load`.

    Raises:
        WrongKind: the model is a Bi- or Poly-encoder (a base model is loaded as a Bi-encoder).
        InvalidInput: as `load`.
        ModelNotFound, CheckpointInvalid: as `load`.
    """
    ranker = load(name, device, backend)
    if isinstance(ranker, LateRanker):
        raise WrongKind(f"{name} is a {ranker.architecture}-encoder; give a cross-encoder")
    return ranker


def from_base(name: str, config: ModelConfig | None = None, backend: str = TORCH) -> Ranker:
    """Start a model from a base model's weights.

    Args:
        name: a base model's directory or name.
        config: what to make of it; codes and the Cross-encoder's head are drawn at random. None: the zero-shot
            Bi-encoder that the base model was published as. `base_name` and `base_sha256` are filled in.
        backend: as of `load`.
    """
    return _ranker(name, *_load_base(name, config), backend)


def _load_base(name: str, config: ModelConfig | None) -> tuple[Encoder, CheckpointFiles]:
    base = resolve_base(name)
    config = _with_base(config, base) if config else _zero_shot(base)
    encoder = build(config, base.directory)
    load_base(encoder, base)
    weights = own_tensors(encoder, config) or None
    return encoder, CheckpointFiles(config, base.directory / BACKBONE_FILE, base.directory / TOKENIZER_FILE, weights)


def _load_checkpoint(directory: Path) -> tuple[Encoder, CheckpointFiles]:
    config = read_config(directory / CONFIG_FILE)
    for needed in (BACKBONE_FILE, TOKENIZER_FILE):
        if not (directory / needed).is_file():
            raise CheckpointInvalid(f"{directory}: {needed} is missing")
    weights_file = directory / WEIGHTS_FILE
    own = weights_file if weights_file.is_file() else None
    encoder = build(config, directory)
    if config.weights != "full":
        load_base(encoder, resolve_base(config.base_name, config.base_sha256))
    _load_own(encoder, config, own, directory)
    return encoder, CheckpointFiles(config, directory / BACKBONE_FILE, directory / TOKENIZER_FILE, own)


def read_config(path: Path) -> ModelConfig:
    """Read a checkpoint's polyrank.json; raises CheckpointInvalid."""
    return ModelConfig.from_json(_read_object(path))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointInvalid(f"{path} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise CheckpointInvalid(f"{path} is not a JSON object")
    return raw


def build(config: ModelConfig, directory: Path) -> Encoder:
    """Build the encoder with the transformer that config.json in `directory` describes; weights still to come."""
    backbone_config = read_backbone_config(directory)
    first = Backbone(backbone_config)
    sides = (config.max_context_tokens, config.max_candidate_tokens)
    longest = sum(sides) if config.architecture == "cross" else max(sides)
    if longest > first.max_tokens:
        raise CheckpointInvalid(f"polyrank.json asks for {longest} tokens, the transformer allows {first.max_tokens}")
    if config.residual:
        return ResidualEncoder(config, Backbone(backbone_config), PolyEncoder(*_towers(config, backbone_config, first)))
    if config.architecture == "cross":
        return CrossEncoder(config, first)
    kind = BiEncoder if config.architecture == "bi" else PolyEncoder
    return kind(*_towers(config, backbone_config, first))


def _towers(config: ModelConfig, backbone: PretrainedConfig, first: Backbone) -> tuple[ModelConfig, Backbone, Backbone]:
    return config, first, first if config.shared_encoder else Backbone(backbone)


def load_base(encoder: Encoder, base: BaseModel) -> None:
    """Put a base model's weights into every transformer of the encoder."""
    weights = read_weights(base.directory / WEIGHTS_FILE)
    for module in encoder.modules():
        if isinstance(module, Backbone):
            load_base_weights(module, weights, base.name)


def own_tensors(encoder: Encoder, config: ModelConfig) -> dict[str, Tensor]:
    """The tensors that the checkpoint itself holds; a shared transformer's once, as the context side's."""
    left_out = _BACKBONES if config.weights != "full" else _CANDIDATE if config.shared_encoder else ()
    return {name: tensor for name, tensor in encoder.state_dict().items() if not name.startswith(left_out)}


def _load_own(encoder: Encoder, config: ModelConfig, path: Path | None, directory: Path) -> None:
    expected = set(own_tensors(encoder, config))
    if path is None and (expected or config.weights == "adapter"):
        raise CheckpointInvalid(f"{directory}: {WEIGHTS_FILE} is missing")
    if path is None:
        return
    own = read_weights(path)
    adapter, weights = split(own) if config.weights == "adapter" else ({}, own)
    if set(weights) != expected:
        odd = sorted(set(weights) ^ expected)
        raise CheckpointInvalid(f"{path} does not fit {CONFIG_FILE}: {len(odd)} tensors differ, the first is {odd[0]}")
    try:
        encoder.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise CheckpointInvalid(f"{path} does not fit {CONFIG_FILE}: a tensor has another shape") from error
    merge(encoder, adapter)


def _ranker(name: str, encoder: Encoder, files: CheckpointFiles, backend: str) -> Ranker:
    assembler = Assembler(Tokenizer(files.tokenizer_file), files.config)
    runs = choose_backend(backend, next(encoder.parameters()).device)
    if isinstance(encoder, CrossEncoder):
        return CrossRanker(name, encoder, assembler, files, runs)
    return LateRanker(name, encoder, assembler, files, runs)


def _with_base(config: ModelConfig, base: BaseModel) -> ModelConfig:
    sha256 = base.sha256 if config.weights != "full" else ""
    return replace(config, base_name=base.name, base_sha256=sha256)


def _zero_shot(base: BaseModel) -> ModelConfig:
    """The Bi-encoder that a published sentence encoder is: its own pooling, unit-length vectors, cosine scores."""
    limit = read_backbone_config(base.directory).max_position_embeddings
    separator = Tokenizer(base.directory / TOKENIZER_FILE).separator
    return ModelConfig(
        architecture="bi",
        base_name=base.name,
        base_sha256=base.sha256,
        weights="base",
        reduction=_published_pooling(base.directory),
        shared_encoder=True,
        normalize=True,
        max_context_tokens=min(256, limit),
        max_candidate_tokens=min(256, limit),
        assembly=AssemblyConfig(turn_separator=separator, persona_separator=separator),
    )


def _published_pooling(directory: Path) -> Reduction:
    """Sentence encoders say in 1_Pooling/config.json how they pool; the mean is what most use."""
    path = directory / "1_Pooling" / "config.json"
    if path.is_file() and _read_object(path).get("pooling_mode_cls_token"):
        return "first"
    return "mean"
