"""The files of a checkpoint and its fingerprint, with no idea what the tensors mean."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from model.base import file_sha256
from model.config import ModelConfig
from model.errors import InvalidInput

CONFIG_FILE = "polyrank.json"
BACKBONE_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
WEIGHTS_FILE = "model.safetensors"


@dataclass(frozen=True)
class CheckpointFiles:
    """What a checkpoint directory holds.

    Attributes:
        config: contents of polyrank.json.
        backbone_file, tokenizer_file: where the transformer's config.json and tokenizer.json lie.
        weights: the checkpoint's own tensors, or the file they were read from; None where it has none of its own.
    """

    config: ModelConfig
    backbone_file: Path
    tokenizer_file: Path
    weights: Mapping[str, Tensor] | Path | None

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over config, weights (the base's included) and tokenizer.

        Names and the training summary are left out: renaming a model must not force its pool to be encoded again.
        """
        config = self.config.to_json()
        del config["base"]["name"], config["training"]
        backbone = json.loads(self.backbone_file.read_text(encoding="utf-8"))
        backbone.pop("_name_or_path", None)
        parts = {
            "config": config,
            "backbone": backbone,
            "tokenizer": file_sha256(self.tokenizer_file),
            "weights": self._weights_sha256(),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def write(self, directory: Path) -> None:
        """Write the files to a directory, which is made if need be; another checkpoint in it is replaced.

        Raises InvalidInput when the directory holds a base model, which others refer to.
        """
        if (directory / BACKBONE_FILE).is_file() and not (directory / CONFIG_FILE).is_file():
            raise InvalidInput(f"{directory} holds a base model; save to another directory")
        directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.config.to_json(), indent=2, ensure_ascii=False) + "\n"
        (directory / CONFIG_FILE).write_text(text, encoding="utf-8")
        _copy(self.backbone_file, directory / BACKBONE_FILE)
        _copy(self.tokenizer_file, directory / TOKENIZER_FILE)
        if isinstance(self.weights, Path):
            _copy(self.weights, directory / WEIGHTS_FILE)
        elif self.weights is not None:
            _write_whole(directory / WEIGHTS_FILE, save(dict(self.weights)))
        else:
            (directory / WEIGHTS_FILE).unlink(missing_ok=True)  # another checkpoint's would not fit this config

    def _weights_sha256(self) -> str:
        if self.weights is None:
            return ""
        if isinstance(self.weights, Path):
            return file_sha256(self.weights)
        return hashlib.sha256(save(dict(self.weights))).hexdigest()


def _write_whole(target: Path, content: bytes) -> None:
    """Replace a file in one step: a full disk or a kill leaves the weights that were there before."""
    unfinished = target.with_suffix(".unfinished")
    try:
        unfinished.write_bytes(content)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    if not (target.exists() and target.samefile(source)):  # a checkpoint may be saved to where it was loaded from
        shutil.copyfile(source, target)
