"""The Poly-encoder whose scores a residual Cross-encoder adds to: where it comes from, and how the two begin."""

from pathlib import Path

import torch
from torch import Tensor

from polyrank.model.architectures.backbone import read_weights
from polyrank.model.architectures.residual import ResidualEncoder
from polyrank.model.checkpoint.adapter import split
from polyrank.model.checkpoint.base import file_sha256
from polyrank.model.checkpoint.files import BACKBONE_FILE, CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from polyrank.model.config import ModelConfig
from polyrank.model.errors import InvalidInput
from polyrank.model.rankers.load import load_late, read_config

# Two models that are right about the same rows count them twice: trained apart, a Cross-encoder's scores added to a
# Poly-encoder's ranked best at 0.1 to 0.3 of their size (docs/measurements/quality.md).
_HEAD_SHARE = 0.25


def first_stage_config(directory: Path) -> ModelConfig:
    """The config of a first stage; raises InvalidInput where it is no Poly-encoder's checkpoint."""
    if not (directory / CONFIG_FILE).is_file():
        raise InvalidInput(f"{directory} is no checkpoint; give a poly-encoder's as --first-stage")
    config = read_config(directory / CONFIG_FILE)
    if config.architecture != "poly":
        raise InvalidInput(f"{directory} is a {config.architecture}-encoder; give a poly-encoder as --first-stage")
    return config


def take_first_stage(encoder: ResidualEncoder, directory: Path, base: Path) -> dict[str, Tensor]:
    """Put a Poly-encoder's weights under a Cross-encoder.

    Args:
        encoder: the Cross-encoder; its config is the Poly-encoder's but for what makes it one.
        directory: the Poly-encoder's checkpoint.
        base: where the Cross-encoder's config.json and tokenizer.json lie.

    Returns:
        Its adapters under the names that they have in the new checkpoint.

    Raises:
        InvalidInput: the two do not go together.
        CheckpointInvalid: the first stage is damaged.
    """
    ranker, config = load_late(directory), encoder.config
    stored = ranker.config
    for file in (BACKBONE_FILE, TOKENIZER_FILE):
        if file_sha256(directory / file) != file_sha256(base / file):
            raise InvalidInput(f"{directory} has another {file} than the base; train both from one base model")
    if config.weights == "adapter" and (stored.weights == "full" or stored.base_sha256 != config.base_sha256):
        raise InvalidInput(f"{directory} is no adapter on the base's base model; train without --lora-rank")
    encoder.poly.load_state_dict(ranker.encoder.state_dict())
    if stored.weights != "adapter" or config.weights != "adapter":
        return {}
    return {f"poly.{name}": each for name, each in split(read_weights(directory / WEIGHTS_FILE)).adapter.items()}


@torch.no_grad()
def begin_near_first_stage(encoder: ResidualEncoder, base: ModelConfig | None) -> None:
    """Let the sum begin near the Poly-encoder's ranking, unless the base is such a sum."""
    if base is not None and base.residual:
        return
    share = _HEAD_SHARE if base is not None and base.architecture == "cross" else 0.0
    for parameter in encoder.head.parameters():
        parameter.mul_(share)
