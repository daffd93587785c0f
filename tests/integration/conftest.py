"""Real checkpoints, small enough to load in no time."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel

import model
from model import ModelConfig

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
VOCABULARY = [*SPECIAL, *(f"w{n}" for n in range(40))]


def _write_base(directory: Path, seed: int) -> Path:
    """A transformer of two layers with random weights over words `w0` to `w39`."""
    directory.mkdir()
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    (directory / "config.json").write_text(json.dumps(config.to_dict()))
    save_file(BertModel(config, add_pooling_layer=False).state_dict(), str(directory / "model.safetensors"))
    return directory


def _write_checkpoint(parent: Path, name: str, seed: int, **fields: object) -> Path:
    base = _write_base(parent / f"{name}-base", seed)
    config = ModelConfig(base_name="tiny", max_context_tokens=40, max_candidate_tokens=16, **fields)  # type: ignore[arg-type]
    model.from_base(str(base), config).save(parent / name)
    return parent / name


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the checkpoints `poly`, `other` (a bi-encoder) and `cross`."""
    parent = tmp_path_factory.mktemp("checkpoints")
    _write_checkpoint(parent, "poly", 0, architecture="poly", n_codes=4, normalize=True, score_scale=5.0)
    _write_checkpoint(parent, "other", 1, architecture="bi", normalize=True, shared_encoder=True)
    _write_checkpoint(parent, "cross", 2, architecture="cross")
    return parent
