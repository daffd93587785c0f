"""Tiny models of many families with random weights, laid out as they are published."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny import CLS, DIM, PAD, SEP, UNK, VOCABULARY
from transformers import (
    AlbertConfig,
    BertConfig,
    CamembertConfig,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    MPNetConfig,
    NomicBertConfig,
    PretrainedConfig,
    RobertaConfig,
    XLMRobertaConfig,
)

COMMON: dict[str, Any] = {
    "vocab_size": len(VOCABULARY), "hidden_size": DIM, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64,
    "initializer_range": 0.3, "pad_token_id": PAD, "bos_token_id": CLS, "eos_token_id": SEP,
}  # fmt: skip
FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "bert": lambda: BertConfig(**COMMON),
    "roberta": lambda: RobertaConfig(**COMMON),
    "xlm-roberta": lambda: XLMRobertaConfig(**COMMON),
    "camembert": lambda: CamembertConfig(**COMMON),
    "mpnet": lambda: MPNetConfig(**COMMON),
    "distilbert": lambda: DistilBertConfig(**COMMON, dim=DIM, hidden_dim=32, n_layers=2, n_heads=2),
    "electra": lambda: ElectraConfig(**COMMON, embedding_size=8),
    "albert": lambda: AlbertConfig(**COMMON, embedding_size=8),
    "modernbert": lambda: ModernBertConfig(**COMMON, cls_token_id=CLS, sep_token_id=SEP),
    "nomic-bert": lambda: NomicBertConfig(**COMMON),
}


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def write_tokenizer_config(directory: Path) -> None:
    """What the tokenisers of transformers need beside tokenizer.json."""
    names = {"pad_token": PAD, "unk_token": UNK, "cls_token": CLS, "sep_token": SEP}
    tokens = {name: VOCABULARY[at] for name, at in names.items()}
    inputs = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    content = {"tokenizer_class": "PreTrainedTokenizerFast", **inputs, **tokens}
    write_json(directory / "tokenizer_config.json", content)
