"""A layer in plain torch gives what the transformer's layer gives whose maps it has taken."""

import pytest
import torch
from transformers import BertConfig

from polyrank.model.architectures.backbone import Backbone, Layer, layers_of
from polyrank.model.errors import CheckpointInvalid

DIM, ROWS = 16, 7


def made(activation: str) -> Backbone:
    torch.manual_seed(0)
    sizes = {"hidden_size": DIM, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    return Backbone(BertConfig(vocab_size=9, initializer_range=0.5, hidden_act=activation, **sizes)).eval()


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
def test_it_is_the_transformers_own(activation: str) -> None:
    backbone = made(activation)
    [theirs] = layers_of(backbone, "a test")
    ours = Layer.like(backbone)
    states, mask = torch.randn(2, ROWS, DIM), torch.ones(2, ROWS, dtype=torch.bool)
    mask[1, 4:] = False
    with torch.no_grad():
        ours.take(theirs)
        hidden = torch.zeros(2, 1, 1, ROWS).masked_fill(~mask[:, None, None], float("-inf"))
        read = theirs(states, attention_mask=hidden)
        found = ours.attended(states, ours.query(states), ours.key(states), ours.value(states), mask)
    expected = read[0] if isinstance(read, tuple) else read
    torch.testing.assert_close(found[mask], expected[mask], atol=1e-5, rtol=1e-5)


def test_a_function_that_is_not_known_is_refused() -> None:
    with pytest.raises(CheckpointInvalid, match="hidden_act is 'quick_gelu'; layers are copied for gelu, "):
        Layer.like(made("quick_gelu"))
