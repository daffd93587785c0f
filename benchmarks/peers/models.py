"""The weights that all sides share, and our models over them."""

import shutil
from pathlib import Path

import torch
from benchmarks.load.drive import REPOSITORY
from safetensors.torch import load_file, save_file

import polyrank
from polyrank.model.checkpoint.base import MINILM, resolve_base
from polyrank.model.checkpoint.files import WEIGHTS_FILE

CODES = REPOSITORY / "checkpoints" / "chat-poly" / WEIGHTS_FILE
TOKENS = 256  # as the base model was published, and as sentence-transformers reads it


def base_in(models: Path) -> Path:
    """The base model's files, as they were published."""
    folder = models / "encoder"
    if not folder.is_dir():
        shutil.copytree(resolve_base(MINILM).directory, folder)
    return folder


def poly_in(models: Path) -> Path:
    """A Poly-encoder whose transformer, pooling and bounds are those of the published sentence encoder.

    Its 64 codes are chat-poly's: how fast a scan is depends on how much context vectors differ.
    """
    config = polyrank.ModelConfig(
        architecture="poly", base_name="", weights="base", reduction="mean", shared_encoder=True, normalize=True,
        code_scale=20.0, score_scale=20.0, max_context_tokens=TOKENS, max_candidate_tokens=TOKENS,
    )  # fmt: skip
    folder = models / "polyrank-poly"
    if not folder.is_dir():
        _save(config, folder)
        save_file({"code_vectors": load_file(CODES)["code_vectors"]}, folder / WEIGHTS_FILE)
    return folder


def cross_in(models: Path) -> Path:
    """A Cross-encoder with a random head, which costs what a trained one costs; it cuts nothing that it can read."""
    config = polyrank.ModelConfig(
        architecture="cross", base_name="", weights="base", max_context_tokens=TOKENS, max_candidate_tokens=TOKENS
    )
    folder = models / "polyrank-cross"
    if not folder.is_dir():
        _save(config, folder)
    return folder


def _save(config: polyrank.ModelConfig, folder: Path) -> None:
    torch.manual_seed(0)
    folder.mkdir(parents=True)
    polyrank.from_base(MINILM, config).save(folder)
