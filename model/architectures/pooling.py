"""red(): one vector from the outputs of a transformer (Humeau et al. 4.2 and Table 7)."""

from torch import Tensor

from polyrank.model.config import ModelConfig


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """Mean of the outputs that count, float32. states: (B, T, D), mask: (B, T). Returns (B, D)."""
    weights = mask[..., None].float()
    return (states.float() * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)


def reduce_states(states: Tensor, mask: Tensor, config: ModelConfig) -> Tensor:
    """Reduce token states (B, T, D) to one vector each (B, D), as the checkpoint's `reduction` says."""
    if config.reduction == "first":
        return states[:, 0].float()
    if config.reduction == "mean":
        return masked_mean(states, mask)
    return masked_mean(states[:, : config.reduction_m], mask[:, : config.reduction_m])
