"""Real models with random weights, small enough to build and load in no time."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from fastapi import FastAPI
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel

import polyrank
from polyrank.model.config import ModelConfig

torch.set_num_threads(1)  # on models this small threads only wait for each other

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
PAD, UNK, CLS, SEP = range(4)
VOCABULARY = [*SPECIAL, *(f"w{n}" for n in range(40))]
DIM = 16


def word_ids(text: str) -> list[int]:
    """The token ids of words `w0` to `w39`."""
    return [VOCABULARY.index(word) for word in text.split()]


def write_base(directory: Path, seed: int, more: Sequence[str] = ()) -> Path:
    """A transformer of two layers with random weights over words `w0` to `w39`, one token a word.

    `more` are tokens behind those words; the ones in brackets are special.

    The weights are large, so that every token's output depends on every other token, as in a trained transformer.
    """
    directory.mkdir()
    vocabulary = [*VOCABULARY, *more]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([*SPECIAL, *(token for token in more if token.startswith("["))])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=DIM, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64, pad_token_id=PAD, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(seed)
    (directory / "config.json").write_text(json.dumps(config.to_dict()))
    save_file(BertModel(config, add_pooling_layer=False).state_dict(), str(directory / "model.safetensors"))
    return directory


def write_checkpoint(parent: Path, name: str, seed: int, **fields: object) -> Path:
    """A checkpoint `parent/name`, its base beside it; fields are those of the config."""
    base = write_base(parent / f"{name}-base", seed)
    config = ModelConfig(base_name="tiny", **{"max_context_tokens": 40, "max_candidate_tokens": 16, **fields})
    polyrank.from_base(str(base), config).save(parent / name)
    return parent / name


def tiny_app(**fields: object) -> FastAPI:
    """A server's app, with settings, over models as small as these: on one thread, by torch, in float32."""
    from polyrank.service.app import create_app  # seconds, and most tests do without a server
    from polyrank.service.settings import Settings

    return create_app(Settings(**{"threads": 1, "backend": "torch", "precision": "float32", **fields}))
