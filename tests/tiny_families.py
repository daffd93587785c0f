"""Real models of other families than BERT, as small as those of tests/tiny.py."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny import CLS, DIM, PAD, SEP, VOCABULARY, write_base
from transformers import (
    AlbertConfig,
    AutoModel,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    MPNetConfig,
    PretrainedConfig,
    RobertaConfig,
)

POSITIONS = 300
COMMON: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": DIM,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.3,
    "pad_token_id": PAD,
    "bos_token_id": CLS,
    "eos_token_id": SEP,
}


@dataclass(frozen=True)
class Family:
    """What a family's names are: of its layers and of what makes ids the first layer's input; and its linear maps."""

    config: Callable[[], PretrainedConfig]
    layers: str = "encoder.layer."
    embeddings: tuple[str, ...] = ("embeddings.",)
    maps: int = 12


FAMILIES = {
    "bert": Family(lambda: BertConfig(**COMMON)),
    "roberta": Family(lambda: RobertaConfig(**{**COMMON, "pad_token_id": 1})),
    "mpnet": Family(lambda: MPNetConfig(**{**COMMON, "pad_token_id": 1})),
    "distilbert": Family(
        lambda: DistilBertConfig(**COMMON, dim=DIM, hidden_dim=32, n_layers=2, n_heads=2), "transformer.layer."
    ),
    "electra": Family(
        lambda: ElectraConfig(**COMMON, embedding_size=8), embeddings=("embeddings.", "embeddings_project.")
    ),
    "albert": Family(
        lambda: AlbertConfig(**COMMON, embedding_size=8, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
        "",
        ("embeddings.", "encoder.embedding_hidden_mapping_in."),
        maps=6,  # of the one layer that all others are
    ),
    "modernbert": Family(
        lambda: ModernBertConfig(
            **COMMON,
            cls_token_id=CLS,
            sep_token_id=SEP,
            attention_dropout=0.1,
            mlp_dropout=0.1,
            embedding_dropout=0.1,
        ),
        "layers.",
        maps=8,
    ),
}


def write(directory: Path, config: PretrainedConfig) -> Path:
    """The tiny base of `write_base`, its transformer of another family."""
    write_base(directory, seed=3)
    torch.manual_seed(3)
    (directory / "config.json").write_text(json.dumps(config.to_dict()))
    save_file(AutoModel.from_config(config).state_dict(), str(directory / "model.safetensors"))
    return directory
