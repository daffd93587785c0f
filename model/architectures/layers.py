"""A layer of BERT in plain torch, for what is computed behind the transformers, where no library of models is loaded.

Axes: ... any batch, Q queries, S rows that they read, D dimensions, H heads.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Self

from torch import Tensor, nn
from torch.nn import functional as F

from polyrank.model.architectures.backbone import Backbone
from polyrank.model.errors import CheckpointInvalid

Activation = Callable[[Tensor], Tensor]

_TANH_GELU = partial(F.gelu, approximate="tanh")
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_new": _TANH_GELU,
    "gelu_pytorch_tanh": _TANH_GELU,
    "relu": F.relu,
    "silu": F.silu,
}


class Layer(nn.Module):
    """The maps of a layer of BERT: attention, feed-forward network, and a norm behind each."""

    def __init__(self, dim: int, heads: int, inner: int, eps: float, activation: Activation = F.gelu) -> None:
        super().__init__()
        self._heads, self._activation = heads, activation
        self.query, self.key, self.value, self.output = (nn.Linear(dim, dim) for _ in range(4))
        self.up, self.down = nn.Linear(dim, inner), nn.Linear(inner, dim)
        self.norm, self.last_norm = nn.LayerNorm(dim, eps=eps), nn.LayerNorm(dim, eps=eps)

    @classmethod
    def like(cls, backbone: Backbone) -> Self:
        """Build one of the shapes of a transformer's layers; its weights are random.

        Raises:
            CheckpointInvalid: the function between its two linear maps is not known here.
        """
        shape = backbone.transformer.config
        if shape.hidden_act not in _ACTIVATIONS:
            raise CheckpointInvalid(
                f"hidden_act is {shape.hidden_act!r}; layers are copied for {', '.join(_ACTIVATIONS)}"
            )
        sizes = backbone.dim, shape.num_attention_heads, shape.intermediate_size
        return cls(*sizes, shape.layer_norm_eps, _ACTIVATIONS[shape.hidden_act])

    def take(self, layer: Any) -> None:
        """Copy the maps of a layer of BERT."""
        own = layer.attention.self
        copied: list[tuple[Any, Any]] = [(self.query, own.query), (self.key, own.key), (self.value, own.value)]
        copied += [(self.output, layer.attention.output.dense), (self.norm, layer.attention.output.LayerNorm)]
        copied += [(self.up, layer.intermediate.dense), (self.down, layer.output.dense)]
        copied += [(self.last_norm, layer.output.LayerNorm)]
        for mine, theirs in copied:
            mine.weight.copy_(theirs.weight)
            mine.bias.copy_(theirs.bias)

    def attended(self, states: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Return the layer's outputs at some places, (N, Q, D).

        states: what enters the layer there, (N, Q, D). query: their queries, (N, Q, D). key, value: of all rows, (N, S,
        D). mask: which of these rows count, (N, S).
        """
        q, k, v = (self.split(each).transpose(1, 2) for each in (query, key, value))
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        return self.fed(self.norm(self.output(found.transpose(1, 2).flatten(-2)) + states))

    def fed(self, states: Tensor) -> Tensor:
        """Run the feed-forward network, with its own residual connection and norm."""
        fed: Tensor = self.last_norm(self.down(self._activation(self.up(states))) + states)
        return fed

    def split(self, states: Tensor) -> Tensor:
        """Cut states (..., D) into heads, (..., H, D / H)."""
        return states.view(*states.shape[:-1], self._heads, -1)


def layers_of(backbone: Backbone, reader: str) -> Any:
    """Return the layers of a transformer with BERT's names.

    Raises:
        CheckpointInvalid: it is of another family, which `reader` cannot read.
    """
    layers = getattr(getattr(backbone.transformer, "encoder", None), "layer", None)
    if layers is None or not hasattr(getattr(layers[0].attention, "self", None), "key"):
        family = backbone.transformer.config.model_type
        raise CheckpointInvalid(f"{reader} reads keys and values of BERT's and RoBERTa's layers; {family} has others")
    return layers
