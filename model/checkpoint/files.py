"""The files of a checkpoint and its fingerprint, with no idea what the tensors mean."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from polyrank.model.checkpoint.base import file_sha256
from polyrank.model.config import ModelConfig
from polyrank.model.durable import replacing, write_atomically
from polyrank.model.errors import InvalidInput

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
        """Write the files to a directory, which is made if need be; another checkpoint in it is replaced file by file.

        Raises InvalidInput when the directory holds a base model, which others refer to.
        """
        if (directory / BACKBONE_FILE).is_file() and not (directory / CONFIG_FILE).is_file():
            raise InvalidInput(f"{directory} holds a base model; save to another directory")
        directory.mkdir(parents=True, exist_ok=True)
        # Each file is old or new as a whole, and a kill between two of them leaves: in a new directory, what loading
        # refuses and what is no base model either, so that it can be written again; in a run of training, the better
        # weights under the figures of the former ones; of another checkpoint, its config over weights that loading
        # refuses, unless all their shapes are equal.
        self._write_weights(directory / WEIGHTS_FILE)
        write_config(directory / CONFIG_FILE, self.config)
        _copy(self.backbone_file, directory / BACKBONE_FILE)
        _copy(self.tokenizer_file, directory / TOKENIZER_FILE)

    def _write_weights(self, path: Path) -> None:
        if isinstance(self.weights, Path):
            _copy(self.weights, path)
        elif self.weights is not None:
            write_atomically(path, save(dict(self.weights)))
        else:
            path.unlink(missing_ok=True)  # another checkpoint's would not fit this config

    def _weights_sha256(self) -> str:
        if self.weights is None:
            return ""
        if isinstance(self.weights, Path):
            return file_sha256(self.weights)
        return hashlib.sha256(save(dict(self.weights))).hexdigest()


def write_config(path: Path, config: ModelConfig) -> None:
    """Write or replace a checkpoint's polyrank.json, in one step."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(config.to_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    if not (target.exists() and target.samefile(source)):  # a checkpoint may be saved to where it was loaded from
        with replacing(target) as temporary:
            shutil.copyfile(source, temporary)
