"""A Poly-encoder's score taken apart: pure functions, in float64, without approximation.

Axes: M context vectors, T tokens of the context, K tokens of the reply, D dimensions. With the context vectors
`y_i = sum_t f_i a_it h_t` (`StateSums`) and the reply's vector v, the score is `S = sum_i w_i s_i` with `s_i = y_i . v`
and `w = softmax(s)` (docs/explanation/mathematics.md). So it is the sum over codes and tokens of

    C_it = w_i f_i a_it (h_t . v)

A score has no zero: adding the same number to all s_i adds it to the score of every reply. What tells replies apart is
a contribution less that to the other replies (`relative`).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from polyrank.model.architectures.sums import StateSums


class CodeContributions(NamedTuple):
    """What each context vector and each token of the context add to the score of one reply.

    attention: a, (M, T): how much each context vector takes of each token. scores: s, (M,). weights: w, (M,).
    contributions: C, (M, T), whose sum is the score.
    """

    attention: Tensor
    scores: Tensor
    weights: Tensor
    contributions: Tensor

    @property
    def effective(self) -> float:
        """How many context vectors took part: e to the power of the entropy of their weights, from 1 to M."""
        return float(torch.special.entr(self.weights).sum().exp())

    def without_each(self) -> Tensor:
        """Return the score without each of the context vectors, (M,); NaN where it is the only one.

        The others share its weight: it is `(S - w_i s_i) / (1 - w_i)`, computed without the cancellation.
        """
        count = len(self.scores)
        others = self.scores.expand(count, -1).masked_fill(torch.eye(count, dtype=torch.bool), float("-inf"))
        weights = others.softmax(dim=-1)
        return (weights * self.scores).sum(dim=-1) if count > 1 else torch.full((1,), torch.nan, dtype=torch.float64)


def code_contributions(context: StateSums, reply: Tensor) -> CodeContributions:
    """Take the score of a reply's vector (D,) apart."""
    parts = context.factors[:, None] * context.weights * (context.values @ reply)  # (M, T)
    scores = parts.sum(dim=-1)
    weights = scores.softmax(dim=-1)
    return CodeContributions(context.weights, scores, weights, weights[:, None] * parts)


def pair_contributions(context: StateSums, weights: Tensor, reply: StateSums) -> Tensor:
    """Return what each token of the context with each of the reply adds to the score, (T, K).

    The reply's vector is the sum `v = sum_k f b_k g_k` over its own tokens, so that

        J_tk = sum_i w_i f_i a_it f b_k (h_t . g_k)

    The score less their sum is what a stored vector was rounded by. weights: w, (M,), of the stored vector.
    """
    of_context = (weights * context.factors) @ context.weights  # (T,)
    of_reply = reply.factors[0] * reply.weights[0]  # (K,)
    return of_context[:, None] * of_reply * (context.values @ reply.values.T)


def relative(contributions: Tensor, against: int | None) -> Tensor:
    """Return what speaks for each of N replies beside the others, (N, T), from what tokens contribute, (N, T).

    against: the reply that the others are compared with; None: the mean of all.

    >>> relative(torch.tensor([[3.0, 0.0], [1.0, 2.0]]), None).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    return contributions - (contributions.mean(dim=0) if against is None else contributions[against])
