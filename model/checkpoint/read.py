"""Reads a checkpoint or a base model into an encoder with its weights.

Low-rank adapters on base weights (Hu et al. 2021, arXiv 2106.09685), `W + B A`, are merged as a checkpoint is read. An
adapter is two tensors for a weight matrix, named after it: `….lora_A` (rank, in) and `….lora_B` (out, rank). Their
product has no further scale.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from polyrank.model.architectures.backbone import (
    Backbone,
    PublishedScorer,
    backbone_config,
    load_base_weights,
    read_shapes,
    read_weights,
)
from polyrank.model.architectures.pairs import PairEncoder
from polyrank.model.architectures.vector import VectorEncoder
from polyrank.model.checkpoint.files import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    CheckpointFiles,
    backbone_file,
    read_object,
)
from polyrank.model.checkpoint.lookup import BaseModel, resolve_base
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.text.tokenizer import Tokenizer

A, B = ".lora_A", ".lora_B"


def split(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the adapters' tensors, and all others, by name."""
    adapter = {name: tensor for name, tensor in tensors.items() if name.endswith((A, B))}
    return adapter, {name: tensor for name, tensor in tensors.items() if name not in adapter}


def merge(module: nn.Module, adapter: Mapping[str, Tensor]) -> None:
    """Add each pair's product to the weight of its name.

    Raises CheckpointInvalid where a pair is incomplete or no weight has its name and shape.
    """
    weights = dict(module.named_parameters(remove_duplicate=False))
    for name in sorted({part.removesuffix(A).removesuffix(B) for part in adapter}):
        low, high, weight = adapter.get(name + A), adapter.get(name + B), weights.get(name + ".weight")
        if low is None or high is None or weight is None:
            raise CheckpointInvalid(f"the adapter of {name} is half a pair, or the transformer has no such weight")
        fits = low.ndim == high.ndim == 2 and low.shape[0] == high.shape[1]
        if not fits or (high.shape[0], low.shape[1]) != tuple(weight.shape):
            raise CheckpointInvalid(f"the adapter of {name} does not fit a weight of shape {tuple(weight.shape)}")
        with torch.no_grad():
            weight.add_(high.float() @ low.float())


Encoder = VectorEncoder | PairEncoder
Reader = Callable[[Path], dict[str, Tensor]]  # of safetensors

# transformers builds parts that many files lack, such as the pooler. They are smaller than the rest. A transformer of
# few parameters is built in any case: how it differs from the file is told then.
_BUILT_TIMES = 2
_FEW_PARAMETERS = 1_000_000


def read_network(files: CheckpointFiles, base: BaseModel | None) -> Encoder:
    """Build a network and read its weights; `base`: the model whose weights it begins with."""
    fits = partial(_fill, files=files, base=base, read=read_shapes)
    encoder = build(files.config, files.source, (base.directory if base else files.source) / WEIGHTS_FILE, fits)
    _fill(encoder, files, base, read_weights)
    return encoder


def _fill(encoder: Encoder, files: CheckpointFiles, base: BaseModel | None, read: Reader) -> None:
    if base is not None:
        load_base(encoder, base, read)
    _load_own(encoder, files, read)


def begin_from_base(name: str, config: ModelConfig) -> tuple[Encoder, CheckpointFiles]:
    """Start an encoder from a base model's weights; see `polyrank.from_base`."""
    base = resolve_base(name)
    if config.weights != "full":
        config = replace(config, base_sha256=base.sha256, base_forms=base.other_forms)
    config = replace(config, base_name=base.name)
    config = completed(config, Tokenizer(base.directory / TOKENIZER_FILE))
    encoder = build(config, base.directory, base.directory / WEIGHTS_FILE)
    load_base(encoder, base)
    return encoder, CheckpointFiles(config, base.directory, own_tensors(encoder) or None)


def build(
    config: ModelConfig,
    directory: Path,
    weights: Path | None = None,
    check: Callable[[Encoder], object] = lambda _: None,
) -> Encoder:
    """Build the encoder around the transformer that `directory` describes; weights are random.

    It is built of shapes alone first, which take no memory, and given to `check`, which raises where they do not fit.

    Raises CheckpointInvalid if the transformer has far more parameters than the file `weights`, which is to be read.
    """
    most_parameters = None
    if weights is not None:
        stored = sum(tensor.numel() for tensor in read_shapes(weights).values())
        most_parameters = max(_FEW_PARAMETERS, _BUILT_TIMES * stored)
    transformer = Backbone if config.head == "linear" else PublishedScorer
    kind: type[Encoder] = ARCHITECTURES[config.architecture].network
    described = backbone_file(directory)
    backbone = partial(transformer, backbone_config(described, read_object(described)), most_parameters)
    with torch.device("meta"):
        check(kind.build(config, backbone))
    encoder = kind.build(config, backbone)
    longest, allowed = encoder.longest_input, min(backbone.max_tokens for backbone in _backbones(encoder).values())
    if longest > allowed:
        raise CheckpointInvalid(f"polyrank.json asks for {longest} tokens, the transformer allows {allowed}")
    return encoder


def completed(config: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
    """Fill in what its architecture alone has: as it is there, by default, or as the tokenizer says."""
    row = ARCHITECTURES[config.architecture]
    if row.options is not None and config.own is None:
        config = replace(config, own=row.options())
    filled: ModelConfig = row.network.complete(config, tokenizer) if row.retrieves else config
    return filled


def load_base(encoder: Encoder, base: BaseModel, read: Reader = read_weights) -> None:
    """Put a base model's weights into every transformer of the encoder."""
    weights = read(base.directory / WEIGHTS_FILE)
    for module in set(_backbones(encoder).values()):
        load_base_weights(module, weights, base.name)
    begin(encoder)


def begin(encoder: Encoder) -> None:
    """Let an encoder begin its own tensors with the transformers' weights; a checkpoint's are read after this."""
    if isinstance(encoder, VectorEncoder):
        encoder.begin()


def own_tensors(encoder: Encoder) -> dict[str, Tensor]:
    """Return the tensors that the checkpoint itself holds; a shared transformer's once, as the context side's."""
    left_out, kept = set[str](), set[Backbone]()
    for name, module in _backbones(encoder).items():
        if encoder.config.weights != "full" or module in kept:
            left_out.add(f"{name}.")
        kept.add(module)
    return {name: tensor for name, tensor in encoder.state_dict().items() if not name.startswith(tuple(left_out))}


def _backbones(encoder: Encoder) -> Mapping[str, Backbone]:
    """Return the transformers by name, those of a first stage included; a shared one has both names."""
    modules = encoder.named_modules(remove_duplicate=False)
    return {name: module for name, module in modules if isinstance(module, Backbone)}


def _load_own(encoder: Encoder, files: CheckpointFiles, read: Reader) -> None:
    expected, is_adapter = set(own_tensors(encoder)), encoder.config.weights == "adapter"
    path = files.weights if isinstance(files.weights, Path) else files.source
    if files.weights is None:
        if expected or is_adapter:
            raise CheckpointInvalid(f"{files.source}: {WEIGHTS_FILE} is missing")
        return
    if isinstance(files.weights, Path):
        own = read(files.weights)
    else:
        device = next(encoder.parameters()).device  # "meta", where shapes are compared
        own = {name: tensor.to(device) for name, tensor in files.weights.items()}
    adapter, weights = split(own) if is_adapter else ({}, own)
    if set(weights) != expected:
        odd = sorted(set(weights) ^ expected)
        raise CheckpointInvalid(f"{path} does not fit {CONFIG_FILE}: {len(odd)} tensors differ, the first is {odd[0]}")
    try:
        encoder.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise CheckpointInvalid(f"{path} does not fit {CONFIG_FILE}: a tensor has another shape") from error
    merge(encoder, adapter)
