"""Low-rank adapters on base weights (Hu et al. 2021, arXiv 2106.09685): `W + B A`, merged when a checkpoint is loaded.

An adapter is two tensors for a weight matrix, named after it: `….lora_A` (rank, in) and `….lora_B` (out, rank). Loading
adds their product; it has no further scale.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from polyrank.model.errors import CheckpointInvalid

A, B = ".lora_A", ".lora_B"


def split(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the adapters' tensors, and all others, by name."""
    adapter = {name: tensor for name, tensor in tensors.items() if name.endswith((A, B))}
    return adapter, {name: tensor for name, tensor in tensors.items() if name not in adapter}


def merge(module: nn.Module, adapter: Mapping[str, Tensor]) -> None:
    """Add each pair's product to the weight of its name.

    Raises CheckpointInvalid where a pair is incomplete or no weight has its name and shape.
    """
    weights = dict(module.named_parameters(remove_duplicate=False))
    for name in sorted({part.removesuffix(A).removesuffix(B) for part in adapter}):
        low, high, weight = adapter.get(name + A), adapter.get(name + B), weights.get(name + ".weight")
        if low is None or high is None or weight is None:
            raise CheckpointInvalid(f"the adapter of {name} is half a pair, or the transformer has no such weight")
        fits = low.ndim == high.ndim == 2 and low.shape[0] == high.shape[1]
        if not fits or (high.shape[0], low.shape[1]) != tuple(weight.shape):
            raise CheckpointInvalid(f"the adapter of {name} does not fit a weight of shape {tuple(weight.shape)}")
        with torch.no_grad():
            weight.add_(high.float() @ low.float())
