"""Finds the files of a checkpoint or a base model, and checks them. Importing this needs no torch."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

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
from polyrank.model.checkpoint.sentence_encoder import Published, is_reranker, read_published
from polyrank.model.config import AssemblyConfig, ModelConfig
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from polyrank.model.checkpoint.read import Encoder

_RERANKER_TOKENS = 512  # of context and candidate together
_USUAL_TOKENS = 256  # of a sentence encoder that names no limit
_OF_POSITIONS = {"model_type": str, "max_position_embeddings": int, "pad_token_id": int}
_COUNTED_FROM_PADDING = ("camembert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl")


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model whose files were found and checked; its network has not been read."""

    files: CheckpointFiles
    base: BaseModel | None  # the model whose weights it begins with; None: all of its weights are its own
    stamps: list[tuple[int, int, int]]  # see `_stamps`; when it was found

    def read(self) -> "Encoder":
        """Build the network and read its weights, maybe long after they were found; imports torch.

        Raises CheckpointInvalid where they are damaged, do not fit, or are not those that were found: the fingerprint
        would not be theirs.
        """
        from polyrank.model.checkpoint.read import read_network

        encoder = read_network(self.files, self.base)
        if _stamps(self.files, self.base) != self.stamps:
            raise CheckpointInvalid(f"{self.files.source} has changed since it was loaded; load it again")
        return encoder


def find_checkpoint(directory: Path) -> StoredModel:
    """Find the files of a checkpoint directory, and of the base that it refers to."""
    config = read_config(directory / CONFIG_FILE)
    for name, needed in ((BACKBONE_FILE, backbone_file(directory)), (TOKENIZER_FILE, directory / TOKENIZER_FILE)):
        if not needed.is_file():
            raise CheckpointInvalid(f"{directory}: {name} is missing")
    weights_file = directory / WEIGHTS_FILE
    base = None if config.weights == "full" else resolve_base(config.base_name, config.base_weights)
    if base is not None:
        config = replace(config, base_sha256=base.sha256, base_forms=base.other_forms)
    return _stored(CheckpointFiles(config, directory, weights_file if weights_file.is_file() else None), base)


def find_base(name: str) -> StoredModel:
    """Find the files of a base model, to be used as what it was published as: a sentence encoder or a reranker."""
    base = resolve_base(name)
    if is_reranker(base.directory):
        return _stored(CheckpointFiles(_reranker(base), base.directory, None), base)
    published = read_published(base.directory)
    files = CheckpointFiles(_zero_shot(base, published), base.directory, _dense_weights(published))
    return _stored(files, base)


def _dense_weights(published: Published) -> "dict[str, Tensor] | None":
    if not published.dense:
        return None
    from polyrank.model.architectures.backbone import read_weights

    return {
        f"dense.{number}.{name}": tensor
        for number, (_, path) in enumerate(published.dense)
        for name, tensor in read_weights(path).items()
    }


def read_checkpoint(directory: Path) -> tuple["Encoder", CheckpointFiles]:
    """Find and read a checkpoint directory; raises as both do."""
    checkpoint = find_checkpoint(directory)
    return checkpoint.read(), checkpoint.files


def _stored(files: CheckpointFiles, base: BaseModel | None) -> StoredModel:
    return StoredModel(files, base, _stamps(files, base))


def _stamps(files: CheckpointFiles, base: BaseModel | None) -> list[tuple[int, int, int]]:
    """Tell the files that the network is read from, as they are now, from any that take their place."""
    paths = (backbone_file(files.source), files.weights, base and base.directory / WEIGHTS_FILE)
    statuses = [path.stat() for path in paths if isinstance(path, Path)]
    return [(status.st_ino, status.st_size, status.st_mtime_ns) for status in statuses]


def _zero_shot(base: BaseModel, published: Published) -> ModelConfig:
    """Config of a published sentence encoder as a Bi-encoder: its own way to make vectors, and to compare them."""
    longest = min(published.max_tokens or _USUAL_TOKENS, _positions(base.directory))
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
    longest = min(_RERANKER_TOKENS, _positions(base.directory))
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


def _positions(directory: Path) -> int:
    """Return the longest sequence that the position embeddings allow; RoBERTa's begin after the padding's."""
    path = backbone_file(directory)
    settings = read_object(path)
    if not all(isinstance(settings.get(name), kind) for name, kind in _OF_POSITIONS.items()):
        from polyrank.model.architectures.backbone import backbone_config  # a file may leave out what is usual

        config = backbone_config(path, settings)
        settings = {name: getattr(config, name) for name in _OF_POSITIONS}
    reserved = max(2, (settings["pad_token_id"] or 0) + 1) if settings["model_type"] in _COUNTED_FROM_PADDING else 0
    positions: int = settings["max_position_embeddings"]
    return positions - reserved
