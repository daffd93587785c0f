"""What a second stage costs: the multiplications that torch counts are those by which it is priced."""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig

from polyrank.model.architectures.backbone import Backbone, TensorBatch
from polyrank.model.architectures.vector import VectorEncoder
from polyrank.model.config import ModelConfig
from polyrank.model.registry import ARCHITECTURES, ColbertConfig, DeformerConfig, MixConfig, VirtConfig

DIM, LAYERS, CONTEXT_TOKENS, CANDIDATE_TOKENS = 64, 3, 40, 12
KINDS: dict[str, dict[str, Any]] = {
    "colbert": {"architecture": "colbert", "own": ColbertConfig(dim=32)},
    "deformer 1": {"architecture": "deformer", "own": DeformerConfig(upper=1)},
    "deformer 2": {"architecture": "deformer", "own": DeformerConfig(upper=2)},
    "deformer 3": {"architecture": "deformer", "own": DeformerConfig(upper=3)},
    "mix a": {"architecture": "mix", "own": MixConfig()},
    "mix c": {"architecture": "mix", "own": MixConfig(rows=2, layers=(-3, -2, -1))},
    "mix 5": {"architecture": "mix", "own": MixConfig(rows=5, layers=(1, -1), strategy="inputs")},
    "mix without E": {"architecture": "mix", "own": MixConfig(rows=2, layers=(-2, -1), without="E")},
    "mix without H": {"architecture": "mix", "own": MixConfig(rows=2, layers=(-2, -1), without="H")},
    "virt": {"architecture": "virt", "own": VirtConfig()},
}


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return Backbone(
        BertConfig(
            vocab_size=50,
            hidden_size=DIM,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            intermediate_size=4 * DIM,
            max_position_embeddings=64,
        )
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_price_is_what_another_candidate_takes(kind: str, backbone: Backbone) -> None:
    config = ModelConfig(base_name="", shared_encoder=True, **KINDS[kind])
    cls = ARCHITECTURES[config.architecture].network
    encoder: VectorEncoder = cls.build(config, lambda: backbone).eval()
    few, many = (counted(encoder, count) for count in (8, 24))
    rows = config.own.rows if isinstance(config.own, MixConfig) else CANDIDATE_TOKENS
    tokens = CONTEXT_TOKENS - (1 if isinstance(config.own, ColbertConfig) else 0)  # to which ColBERT adds its marker
    assert (many - few) / 16 == pytest.approx(cls.late_cost(config, DIM, tokens, rows), rel=0.05)


def counted(encoder: VectorEncoder, candidates: int) -> float:
    """The multiplications of scoring so many candidates for one context."""
    config = encoder.config
    torch.manual_seed(0)
    texts = [torch.randint(5, 50, (CANDIDATE_TOKENS,)).tolist() for _ in range(candidates)]
    with torch.inference_mode():
        contexts = encoder.encode_contexts(TensorBatch.of(encoder.context_batch(config, [[7] * CONTEXT_TOKENS], 0)))
        made = encoder.encode_candidates(TensorBatch.of(encoder.candidate_batch(config, texts, 0)))
        with (
            sdpa_kernel(SDPBackend.MATH),
            FlopCounterMode(display=False) as counter,
        ):  # of a fused one it counts nothing
            encoder.late_scores(contexts, made)
    return counter.get_total_flops() / 2
