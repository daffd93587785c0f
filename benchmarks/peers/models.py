"""The weights of the peers, and polyrank's models: the shipped chat-poly, and two over the peers' weights."""

import shutil
from pathlib import Path

import torch
from benchmarks.load.drive import REPOSITORY

import polyrank
from polyrank.model.checkpoint.lookup import MINILM, resolve_base

CHAT_POLY = REPOSITORY / "checkpoints" / "chat-poly"
TOKENS = 256  # the limit that the base model was published with, and that sentence-transformers uses


def base_in(models: Path) -> Path:
    """Copy the files of the base model as they were published; returns the folder."""
    folder = models / "encoder"
    if not folder.is_dir():
        shutil.copytree(resolve_base(MINILM).directory, folder)
    return folder


def poly_in(models: Path) -> Path:
    """Make a Poly-encoder with the transformer, pooling and limits of the published sentence encoder, and any codes."""
    config = polyrank.ModelConfig(
        architecture="poly", base_name="", weights="base", reduction="mean", shared_encoder=True, normalize=True,
        code_scale=20.0, score_scale=20.0, max_context_tokens=TOKENS, max_candidate_tokens=TOKENS,
    )  # fmt: skip
    folder = models / "polyrank-poly"
    if not folder.is_dir():
        _save(config, folder)
    return folder


def cross_in(models: Path) -> Path:
    """Make a Cross-encoder with a random head, which takes as long as a trained one."""
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
