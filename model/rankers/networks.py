"""Load a model that has a network: a checkpoint directory, or a plain base model as a zero-shot Bi-encoder."""

from pathlib import Path
from typing import Any

import torch

from polyrank.model.checkpoint.files import TOKENIZER_FILE, CheckpointFiles
from polyrank.model.checkpoint.kind import architecture_of, is_checkpoint
from polyrank.model.checkpoint.read import Encoder, begin_from_base, find_base, find_checkpoint
from polyrank.model.config import ModelConfig
from polyrank.model.errors import InvalidInput
from polyrank.model.inference.choice import Chooser, candidates
from polyrank.model.inference.compiler import Compiler
from polyrank.model.inference.disk_cache import DiskCache
from polyrank.model.inference.names import AUTO, FLOAT32, TORCH, Runner
from polyrank.model.inference.network import Network
from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.rankers.late import LateRanker
from polyrank.model.rankers.lexical import LexicalRanker
from polyrank.model.registry import ARCHITECTURES, in_words
from polyrank.model.text.assembly import Assembler
from polyrank.model.text.tokenizer import Tokenizer

NetworkRanker = LateRanker | CrossRanker
Retriever = LateRanker | LexicalRanker
Ranker = NetworkRanker | LexicalRanker


def load_network(
    name: str | Path, device: str, backend: str, precision: str, disk: DiskCache | None = None
) -> NetworkRanker:
    """Load a Bi-, Poly- or Cross-encoder; arguments and errors as `polyrank.model.rankers.load.load`."""
    stored = find_checkpoint(Path(name)) if is_checkpoint(name) else find_base(str(name))
    network = Network(stored.files.config, lambda: _moved(stored.read(), device), stored.files.fingerprint)
    return _ranker(str(name), network, stored.files, Runner(backend, precision), _parsed(device), disk)


def from_base(
    name: str, config: ModelConfig | None = None, backend: str = TORCH, precision: str = FLOAT32
) -> NetworkRanker:
    """Start a model from the weights of a base model, given by its directory or name.

    `config` says what to make of it: codes and the Cross-encoder's head are drawn at random, `base_name` and
    `base_sha256` are filled in. None: the zero-shot Bi-encoder that the base model was published as.

    Raises InvalidInput for a config without a network; other errors as `polyrank.load`.
    """
    architecture = architecture_of(name) if config is None else config.architecture
    if ARCHITECTURES[architecture].encoder is None:
        raise InvalidInput(f"{in_words(architecture)} begins from no base model; load it by polyrank.load")
    if config is None:
        return load_network(name, "cpu", backend, precision)
    encoder, files = begin_from_base(name, config)
    return _ranker(name, Network.of(encoder), files, Runner(backend, precision), torch.device("cpu"), None)


def _ranker(
    name: str,
    network: Network[Any],
    files: CheckpointFiles,
    asked: Runner,
    device: torch.device,
    disk: DiskCache | None,
) -> NetworkRanker:
    assembler = Assembler(Tokenizer(files.source / TOKENIZER_FILE), files.config)
    # On a GPU torch runs the network, which has to be read.
    found = candidates(*asked, device)
    chooser = Chooser(found, device, assembler, asked.precision != AUTO) if len(found) > 1 else None
    compiler = Compiler(found[0], chooser, disk if device.type == "cpu" else None)
    kind = LateRanker if ARCHITECTURES[files.config.architecture].retrieves else CrossRanker
    return kind(name, network, assembler, files, compiler)


def _parsed(device: str) -> torch.device:
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise _unusable(device, error) from error


def _moved(encoder: Encoder, device: str) -> Encoder:
    try:
        return encoder.to(device)
    except (RuntimeError, AssertionError) as error:  # torch asserts where it was built without CUDA
        raise _unusable(device, error) from error


def _unusable(device: str, error: Exception) -> InvalidInput:
    return InvalidInput(f"nothing can run on the device {device!r}: {str(error).splitlines()[0]}")
