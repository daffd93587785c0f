"""Vectors as sums over token states, which is what explanations of scores take apart: pure functions, in float64.

Axes: M vectors, T tokens of one text without padding, D dimensions. The sums are those of attention.py and of the
reductions in late.py (Humeau et al. 2020, arXiv 1905.01969, sections 4.2 and 4.4, Appendix C). Only here they are not
added up.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from polyrank.model.config import ContextVectors, Reduction


class StateSums(NamedTuple):
    """M vectors `y_i = scale * u_i`, or `scale * u_i / |u_i|` where `unit`, with `u_i = sum_t weights_it values_t`.

    weights: (M, T). values: (T, D). Both float64.
    """

    weights: Tensor
    values: Tensor
    scale: float = 1.0
    unit: bool = False

    @property
    def factors(self) -> Tensor:
        """What each vector's sum is multiplied with, (M,); of a vector of zeros 0, as in `unit_length`."""
        count = len(self.weights)
        if not self.unit:
            return torch.full((count,), self.scale, dtype=torch.float64)
        lengths = (self.weights @ self.values).norm(dim=-1)
        return torch.where(lengths > 0, self.scale / lengths, 0.0)

    @property
    def vectors(self) -> Tensor:
        """The vectors, (M, D)."""
        return self.factors[:, None] * (self.weights @ self.values)


def code_sums(code_vectors: Tensor, states: Tensor, scale: float) -> Tensor:
    """Return the weights by which learnt codes (M, D) attend to states (T, D), (M, T); as `code_attention`."""
    return (code_vectors.detach().cpu().double() @ states.T * scale).softmax(dim=-1)


def output_sums(kind: ContextVectors, count: int, tokens: int) -> Tensor:
    """Return the weights of vectors that are outputs of single tokens, (M, T): one is 1, the others are 0.

    >>> output_sums("last+first", 1, 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    first, last = range(min(count, tokens)), range(max(0, tokens - count), tokens)
    taken = {"first": {*first}, "last": {*last}, "last+first": {0, *last}}[kind]
    return torch.eye(tokens, dtype=torch.float64)[sorted(taken)]


def reduction_sums(reduction: Reduction, m: int, states: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights (1, T) and the values (T, D) whose sum a reduction of states (T, D) is; as `reduced_by`.

    The largest values ("max") are taken from one token each. So a token's value is what is taken from it, by its share
    of the dimensions, which is its weight. `m` is for "first-m mean".
    """
    tokens = len(states)
    if reduction == "max":
        taken = torch.nn.functional.one_hot(states.argmax(dim=0), tokens).T.double()  # (T, D)
        shares = taken.mean(dim=1)
        return shares[None], states * taken / shares.clamp(min=1 / (2 * states.shape[1]))[:, None]
    place = torch.arange(tokens, dtype=torch.float64)
    weights = {
        "first": place == 0,
        "last": place == tokens - 1,
        "mean": place >= 0,
        "first-m mean": place < m,
        "all-but-first mean": place >= min(1, tokens - 1),
        "mean-sqrt-len": place >= 0,
        "weighted-mean": place + 1,
    }[reduction].double()
    total = weights.sum()
    return (weights / (total.sqrt() if reduction == "mean-sqrt-len" else total))[None], states
