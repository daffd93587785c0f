"""The Poly-encoder to whose scores a residual Cross-encoder adds: where it comes from, and how the two begin."""

from pathlib import Path

import torch
from torch import Tensor

from polyrank.model.architectures.backbone import read_weights
from polyrank.model.architectures.cross import FIRST_STAGE, CrossEncoder
from polyrank.model.checkpoint.adapter import split
from polyrank.model.checkpoint.base import file_sha256
from polyrank.model.checkpoint.files import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    backbone_file,
    read_config,
)
from polyrank.model.config import ModelConfig
from polyrank.model.errors import InvalidInput
from polyrank.model.rankers.load import load_late
from polyrank.model.registry import ARCHITECTURES, in_words

# Two models that are right about the same rows count them twice. Of Cross-encoders that were trained apart and added to
# a Poly-encoder's scores, those at 0.1 to 0.3 of their size ranked best (docs/measurements/quality.md).
_HEAD_SHARE = 0.25


def first_stage_config(directory: Path) -> ModelConfig:
    """Read the config of a first stage; raises InvalidInput where it is no Poly-encoder's checkpoint."""
    if not (directory / CONFIG_FILE).is_file():
        raise InvalidInput(f"{directory} is no checkpoint; give a poly-encoder's as --first-stage")
    config = read_config(directory / CONFIG_FILE)
    if config.architecture != FIRST_STAGE:
        raise InvalidInput(f"{directory} is {in_words(config.architecture)}; give a poly-encoder as --first-stage")
    return config


def take_first_stage(encoder: CrossEncoder, directory: Path, base: Path) -> dict[str, Tensor]:
    """Fill the Poly-encoder of a residual Cross-encoder from its own checkpoint.

    `base` is the directory of the Cross-encoder's config and tokenizer.json. Returns the Poly-encoder's adapters,
    under their names in the Cross-encoder's checkpoint.

    Raises InvalidInput where the two do not go together, CheckpointInvalid where the first stage is damaged.
    """
    assert encoder.poly is not None
    ranker, config = load_late(directory), encoder.config
    stored = ranker.config
    tokenizers = (directory / TOKENIZER_FILE, base / TOKENIZER_FILE)
    for its, own in ((backbone_file(directory), backbone_file(base)), tokenizers):
        if file_sha256(its) != file_sha256(own):
            raise InvalidInput(f"{directory} has another {its.name} than the base; train both from one base model")
    if config.weights == "adapter" and (stored.weights == "full" or stored.base_sha256 != config.base_sha256):
        raise InvalidInput(f"{directory} is no adapter on the base's base model; train without --lora-rank")
    encoder.poly.load_state_dict(ranker.encoder.state_dict())
    if stored.weights != "adapter" or config.weights != "adapter":
        return {}
    adapters, _ = split(read_weights(directory / WEIGHTS_FILE))
    return {f"poly.{name}": tensor for name, tensor in adapters.items()}


@torch.no_grad()
def begin_near_first_stage(encoder: CrossEncoder, source: ModelConfig | None) -> None:
    """Scale the head so that the sum begins near the Poly-encoder's ranking.

    `source` is the config of the checkpoint that the encoder goes on from; None: a base model.
    """
    if source is not None and source.residual:  # its head is scaled already
        return
    has_head = source is not None and not ARCHITECTURES[source.architecture].retrieves
    assert encoder.head is not None, "a published head has no first stage"
    for parameter in encoder.head.parameters():
        parameter.mul_(_HEAD_SHARE if has_head else 0.0)
