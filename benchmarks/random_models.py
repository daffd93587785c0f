"""Models of a given shape with random weights, which take as long as trained ones."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as token_models
from transformers import BertConfig, BertModel

import polyrank
from polyrank.model.config import ModelConfig
from polyrank.model.inference.runners import Runner
from polyrank.model.rankers.networks import from_base
from polyrank.model.registry import ARCHITECTURES

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
POSITIONS = 512


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a BERT that determine its cost."""

    dim: int
    layers: int
    heads: int
    feed_forward: int
    vocabulary: int = 30_522


BERT_BASE = Shape(768, 12, 12, 3072)
MINILM = Shape(384, 6, 12, 1536)
TINY = Shape(32, 2, 2, 64, vocabulary=100)


def write_base(directory: Path, shape: Shape, seed: int = 0) -> Path:
    """Write a base model of that shape."""
    directory.mkdir(parents=True)
    words = [*SPECIAL, *(f"w{n}" for n in range(shape.vocabulary - len(SPECIAL)))]
    tokenizer = Tokenizer(token_models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(directory / "tokenizer.json"))
    config = BertConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.dim,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=POSITIONS,
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    (directory / "config.json").write_text(json.dumps(config.to_dict()), encoding="utf-8")
    weights = BertModel(config, add_pooling_layer=False).state_dict()
    save_file(weights, str(directory / "model.safetensors"))
    return directory


def loaded(base: Path, name: str, device: str, runner: Runner, **fields: Any) -> Any:
    """Load a ranker over a base on a device; `fields` are those of its config. Both sides share their transformer."""
    fields = {"shared_encoder": ARCHITECTURES[fields["architecture"]].retrieves, **fields}
    checkpoint = base.parent / name
    from_base(str(base), ModelConfig(base_name="random", weights="base", **fields)).save(checkpoint)
    return polyrank.load(checkpoint, device, *runner)


def token_ids(rng: np.random.Generator, lengths: NDArray[np.int64], shape: Shape) -> list[list[int]]:
    """Draw random sequences of these lengths, special tokens included."""
    first, last = SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]")
    return [[first, *rng.integers(len(SPECIAL), shape.vocabulary, n - 2).tolist(), last] for n in lengths.tolist()]
