"""The files of a checkpoint and its fingerprint. This module does not know what the tensors mean."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from polyrank.model.checkpoint.quantised import MOST_QUANTISED_BYTES, QUANTISED_FILE, Quantisation, read_quantisation
from polyrank.model.config import ModelConfig
from polyrank.model.durable import is_free, replacing, write_atomically
from polyrank.model.errors import CheckpointInvalid, InvalidInput
from polyrank.model.inputs import MOST_TOKENIZER_BYTES, open_input, read_input

if TYPE_CHECKING:
    from torch import Tensor

CONFIG_FILE = "polyrank.json"
BASE_BACKBONE_FILE = "config.json"  # what other tools read; checkpoints had this name once
BACKBONE_FILE = "backbone.json"  # not config.json: they would take a checkpoint for a base model, with random weights
TOKENIZER_FILE = "tokenizer.json"
WEIGHTS_FILE = "model.safetensors"
_MOST_BYTES = 32 << 30  # of weights; a sparse file may claim any size, and be hashed for hours


@dataclass(frozen=True)
class CheckpointFiles:
    """What a checkpoint directory holds."""

    config: ModelConfig
    source: Path  # the directory of the transformer's config and tokenizer.json; a checkpoint's or a base model's
    # The checkpoint's own tensors, or the file that holds them; None where it has none of its own.
    weights: "Mapping[str, Tensor] | Path | None"

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over config, weights and tokenizer; the config identifies the base's weights.

        Names, languages, other forms of the base, calibration, quantisation and training summary are left out: no
        vector and no score depends on them.
        """
        backbone = read_object(backbone_file(self.source))
        backbone.pop("_name_or_path", None)
        return fingerprint_of(
            self.config,
            backbone=backbone,
            tokenizer=file_sha256(self.source / TOKENIZER_FILE, MOST_TOKENIZER_BYTES),
            weights=self._weights_sha256(),
        )

    def quantisation(self) -> Quantisation:
        """Return what calibration for int8 found.

        Raises InvalidInput where there is none, or not of this model; CheckpointInvalid where it is damaged.
        """
        proof = self.config.quantisation
        if proof is None:
            raise InvalidInput(self._why_no_int8())
        if proof.made_for != self.fingerprint:
            why = "was changed after it was quantised"
            if self.config.base_forms:
                why += ", or was quantised with another form of its base's weights"
            raise InvalidInput(f"{self.source} {why}; run polyrank quantise again")
        try:
            quantisation = read_quantisation(read_input(self.source / QUANTISED_FILE, MOST_QUANTISED_BYTES))
        except OSError as error:
            raise CheckpointInvalid(f"{self.source / QUANTISED_FILE} cannot be read: {error.strerror}") from error
        if quantisation.sha256 != proof.sha256:
            raise InvalidInput(f"{self.source / QUANTISED_FILE} is of another run; run polyrank quantise again")
        return quantisation

    def _why_no_int8(self) -> str:
        if not (self.source / CONFIG_FILE).is_file():
            kind = "a base model"
        elif self.config.labels:
            kind = "a classifier"
        else:
            return f"{self.source} is not quantised, so it has no int8; run polyrank quantise first"
        return f"{self.source} is {kind}, which does not run in int8; use another precision"

    def write(self, directory: Path) -> None:
        """Write the files to a directory, new or existing; another checkpoint in it is replaced file by file."""
        begin_directory(directory)
        # Each file is replaced in one step. A kill between two files leaves, in a new directory, something that loading
        # refuses and that is no base model, so it can be written again; in a training run, better weights under the
        # former figures; over another checkpoint, a config whose weights loading refuses unless all shapes are equal.
        if isinstance(self.weights, Path):
            _copy(self.weights, directory / WEIGHTS_FILE)
        elif self.weights is not None:
            write_atomically(directory / WEIGHTS_FILE, _as_safetensors(self.weights))
        else:
            (directory / WEIGHTS_FILE).unlink(missing_ok=True)  # another checkpoint's would not fit this config
        if self.config.quantisation is not None and (self.source / QUANTISED_FILE).is_file():
            _copy(self.source / QUANTISED_FILE, directory / QUANTISED_FILE)
        else:
            (directory / QUANTISED_FILE).unlink(missing_ok=True)
        write_config(directory / CONFIG_FILE, self.config)
        _copy(backbone_file(self.source), directory / BACKBONE_FILE)
        _copy(self.source / TOKENIZER_FILE, directory / TOKENIZER_FILE)
        (directory / BASE_BACKBONE_FILE).unlink(missing_ok=True)  # of the checkpoint that was here

    def _weights_sha256(self) -> str:
        if self.weights is None:
            return ""
        if isinstance(self.weights, Path):
            return file_sha256(self.weights)
        return hashlib.sha256(_as_safetensors(self.weights)).hexdigest()


def fingerprint_of(config: ModelConfig, **parts: Any) -> str:
    """Return the sha256 over a config, without names and what changes no score, and over the parts beside it."""
    identity = config.to_json()
    del identity["training"]
    for name in ("languages", "calibration", "quantisation"):
        identity.pop(name, None)
    for name in ("name", "forms"):
        identity.get("base", {}).pop(name, None)
    return hashlib.sha256(json.dumps({"config": identity, **parts}, sort_keys=True).encode()).hexdigest()


def file_sha256(path: Path, most_bytes: float = _MOST_BYTES) -> str:
    """Return the hexadecimal sha256 of a file; raises CheckpointInvalid where it cannot be read or is larger."""
    try:
        with open_input(path) as file:
            if os.fstat(file.fileno()).st_size > most_bytes:
                raise CheckpointInvalid(f"{path} is larger than {most_bytes} bytes")
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointInvalid(f"{path} cannot be read: {error.strerror}") from error


def backbone_file(directory: Path) -> Path:
    """Return the file that describes the transformer of a checkpoint or a base model, which may be missing."""
    own = directory / BACKBONE_FILE
    return own if own.is_file() else directory / BASE_BACKBONE_FILE


def begin_directory(directory: Path) -> None:
    """Make a checkpoint's directory; raises InvalidInput for one that holds a base model."""
    if (directory / BASE_BACKBONE_FILE).is_file() and not (directory / CONFIG_FILE).is_file():
        raise InvalidInput(f"{directory} holds a base model; save to another directory")
    directory.mkdir(parents=True, exist_ok=True)


def require_free(directory: Path) -> None:
    """Raise InvalidInput for a directory that holds something, or a file."""
    if directory.exists() and not (directory.is_dir() and is_free(directory)):
        raise InvalidInput(f"{directory} is not an empty directory; name another one")


def _as_safetensors(tensors: "Mapping[str, Tensor]") -> bytes:
    from safetensors.torch import save

    return save(dict(tensors))


def read_config(path: Path) -> ModelConfig:
    """Read a checkpoint's polyrank.json; raises CheckpointInvalid."""
    return ModelConfig.from_json(read_object(path))


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object; raises CheckpointInvalid where it does not."""
    raw = _read_json(path)
    if not isinstance(raw, dict):
        raise CheckpointInvalid(f"{path} is not a JSON object")
    return raw


def read_objects(path: Path) -> list[dict[str, Any]]:
    """Read a JSON file that holds a list of objects; raises CheckpointInvalid where it does not."""
    raw = _read_json(path)
    if not isinstance(raw, list) or not all(isinstance(each, dict) for each in raw):
        raise CheckpointInvalid(f"{path} is not a list of JSON objects")
    return raw


def _read_json(path: Path) -> Any:
    try:
        return orjson.loads(read_input(path))
    except OSError as error:
        raise CheckpointInvalid(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # also of NaN, half a surrogate pair and endless nesting
        raise CheckpointInvalid(f"{path} is not JSON: {error}") from error


def write_config(path: Path, config: ModelConfig) -> None:
    """Write or replace a checkpoint's polyrank.json, in one step."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(config.to_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    if not (target.exists() and target.samefile(source)):  # a checkpoint may be saved where it was loaded from
        with replacing(target) as temporary:
            shutil.copyfile(source, temporary)
