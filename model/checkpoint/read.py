"""Finds a checkpoint or a base model, and reads it into an encoder with its weights.

Low-rank adapters on base weights (Hu et al. 2021, arXiv 2106.09685), `W + B A`, are merged as a checkpoint is read. An
adapter is two tensors for a weight matrix, named after it: `….lora_A` (rank, in) and `….lora_B` (out, rank). Their
product has no further scale.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

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
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.late import LateEncoder
from polyrank.model.checkpoint.files import (
    BACKBONE_FILE,
    CONFIG_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    CheckpointFiles,
    backbone_file,
    read_config,
    read_object,
)
from polyrank.model.checkpoint.lookup import BaseModel, resolve_base
from polyrank.model.checkpoint.published import Published, is_reranker, read_published
from polyrank.model.config import AssemblyConfig, ModelConfig
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


if TYPE_CHECKING:
    from transformers import PretrainedConfig

Encoder = LateEncoder | CrossEncoder
Reader = Callable[[Path], dict[str, Tensor]]  # of safetensors

# transformers builds parts that many files lack, such as the pooler. They are smaller than the rest. A transformer of
# few parameters is built in any case: how it differs from the file is told then.
_BUILT_TIMES = 2
_RERANKER_TOKENS = 512  # of context and candidate together
_USUAL_TOKENS = 256  # of a sentence encoder that names no limit
_COUNTED_FROM_PADDING = ("camembert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl")
_FEW_PARAMETERS = 1_000_000


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model whose files were found and checked; its network has not been read.

    Attributes:
        base: the model whose weights it begins with; None: all of its weights are its own.
        stamps: see `_stamps`; when it was found.
    """

    files: CheckpointFiles
    base: BaseModel | None
    stamps: list[tuple[int, int, int]]

    def read(self) -> Encoder:
        """Build the network and read its weights, maybe long after they were found.

        Raises CheckpointInvalid where they are damaged, do not fit, or are not those that were found: the fingerprint
        would not be theirs.
        """
        first_read = self.base.directory if self.base else self.files.source
        fits = partial(self._fill, read=read_shapes)
        encoder = build(self.files.config, self.files.source, first_read / WEIGHTS_FILE, fits)
        self._fill(encoder, read_weights)
        if _stamps(self.files, self.base) != self.stamps:
            raise CheckpointInvalid(f"{self.files.source} has changed since it was loaded; load it again")
        return encoder

    def _fill(self, encoder: Encoder, read: Reader) -> None:
        if self.base is not None:
            load_base(encoder, self.base, read)
        _load_own(encoder, self.files, read)


def find_checkpoint(directory: Path) -> StoredModel:
    """Find the files of a checkpoint directory, and of the base that it refers to."""
    config = read_config(directory / CONFIG_FILE)
    for name, needed in ((BACKBONE_FILE, backbone_file(directory)), (TOKENIZER_FILE, directory / TOKENIZER_FILE)):
        if not needed.is_file():
            raise CheckpointInvalid(f"{directory}: {name} is missing")
    weights_file = directory / WEIGHTS_FILE
    base = None if config.weights == "full" else resolve_base(config.base_name, config.base_sha256)
    return _stored(CheckpointFiles(config, directory, weights_file if weights_file.is_file() else None), base)


def find_base(name: str) -> StoredModel:
    """Find the files of a base model, to be used as what it was published as: a sentence encoder or a reranker."""
    base = resolve_base(name)
    if is_reranker(base.directory):
        return _stored(CheckpointFiles(_reranker(base), base.directory, None), base)
    published = read_published(base.directory)
    weights = {
        f"dense.{number}.{name}": tensor
        for number, (_, path) in enumerate(published.dense)
        for name, tensor in read_weights(path).items()
    }
    return _stored(CheckpointFiles(_zero_shot(base, published), base.directory, weights or None), base)


def _stored(files: CheckpointFiles, base: BaseModel | None) -> StoredModel:
    return StoredModel(files, base, _stamps(files, base))


def _stamps(files: CheckpointFiles, base: BaseModel | None) -> list[tuple[int, int, int]]:
    """Tell the files that the network is read from, as they are now, from any that take their place."""
    paths = (backbone_file(files.source), files.weights, base and base.directory / WEIGHTS_FILE)
    found = [path.stat() for path in paths if isinstance(path, Path)]
    return [(status.st_ino, status.st_size, status.st_mtime_ns) for status in found]


def read_checkpoint(directory: Path) -> tuple[Encoder, CheckpointFiles]:
    """Find and read a checkpoint directory; raises as both do."""
    found = find_checkpoint(directory)
    return found.read(), found.files


def begin_from_base(name: str, config: ModelConfig) -> tuple[Encoder, CheckpointFiles]:
    """Start an encoder from a base model's weights; see `polyrank.from_base`."""
    base = resolve_base(name)
    config = replace(config, base_name=base.name, base_sha256=base.sha256 if config.weights != "full" else "")
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
    backbone = partial(transformer, _backbone_config(directory), most_parameters)
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
    if isinstance(encoder, LateEncoder):
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


def _zero_shot(base: BaseModel, published: Published) -> ModelConfig:
    """Config of a published sentence encoder as a Bi-encoder: its own way to make vectors, and to compare them."""
    longest = min(published.max_tokens or _USUAL_TOKENS, _positions(_backbone_config(base.directory)))
    tokenizer = Tokenizer(base.directory / TOKENIZER_FILE)
    if published.lower_case and tokenizer.encode(["Aa"]) != tokenizer.encode(["aa"]):
        raise CheckpointInvalid(f"{base.directory}: do_lower_case is set, and tokenizer.json keeps capitals")
    return ModelConfig(
        architecture="bi",
        base_name=base.name,
        base_sha256=base.sha256,
        weights="base",
        reduction=published.reduction,
        dense=tuple(config for config, _ in published.dense),
        shared_encoder=True,
        normalize=published.normalize,
        max_context_tokens=longest,
        max_candidate_tokens=longest,
        assembly=AssemblyConfig(
            turn_separator=tokenizer.separator,
            persona_separator=tokenizer.separator,
            context_prompt=published.context_prompt,
            candidate_prompt=published.candidate_prompt,
        ),
    )


def _reranker(base: BaseModel) -> ModelConfig:
    """Config of a published reranker: a context has at most half of the tokens, a candidate what it leaves."""
    longest = min(_RERANKER_TOKENS, _positions(_backbone_config(base.directory)))
    tokenizer = Tokenizer(base.directory / TOKENIZER_FILE)
    return ModelConfig(
        architecture="cross",
        base_name=base.name,
        base_sha256=base.sha256,
        weights="base",
        head="published",
        max_context_tokens=longest // 2,
        max_candidate_tokens=longest - longest // 2,
        assembly=AssemblyConfig(turn_separator=tokenizer.separator, persona_separator=tokenizer.separator),
    )


def _backbone_config(directory: Path) -> "PretrainedConfig":
    path = backbone_file(directory)
    return backbone_config(path, read_object(path))


def _positions(config: "PretrainedConfig") -> int:
    """Return the longest sequence that the config's position embeddings allow; RoBERTa's begin after the padding's."""
    reserved = max(2, (config.pad_token_id or 0) + 1) if config.model_type in _COUNTED_FROM_PADDING else 0
    positions: int = config.max_position_embeddings
    return positions - reserved
