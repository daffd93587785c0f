"""VIRT: a candidate keeps all its token states; context and candidate are read against each other at the end.

Source: Li et al. 2021, "VIRT: Improving Representation-based Models for Text Matching through Virtual Interaction".
Axes: B contexts, N candidates, T tokens of a context, K tokens of a candidate, D dimensions.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from polyrank.model.architectures.attention import ContextCodes, one_vector_each, unit_length
from polyrank.model.architectures.backbone import Backbone
from polyrank.model.architectures.batching import TokenBatch
from polyrank.model.architectures.late import (
    CandidateState,
    ClassHead,
    ContextState,
    LateEncoder,
    Unexplained,
    masked_mean,
    score_head,
    second_stage_unexplained,
)
from polyrank.model.architectures.sums import StateSums, reduction_sums
from polyrank.model.config import ModelConfig, VirtConfig
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.representations import LateRows
from polyrank.model.text.tokenizer import Tokenizer


class VirtEncoder(LateEncoder):
    """`score = W_2 gelu(W_1 [u; v; |u - v|; max(u, v)])`, to which a residual one adds the first stage's score.

    With last states X (T, D) of the context and Y (K, D) of the candidate, u is the mean of the rows of
    `softmax(X Y^T / sqrt(D)) Y`, and v of those of `softmax(Y X^T / sqrt(D)) X`. The first stage compares the unit
    means of X and Y.

    Attributes:
        join: W_1, 4 D to D; a classifier has none.
        head: W_2, D to 1; a classifier has none.
    """

    def __init__(self, config: ModelConfig, context: Backbone, candidate: Backbone) -> None:
        super().__init__(config, context, candidate)
        if config.head_classes:
            return
        self.join = nn.Linear(4 * context.dim, context.dim)
        self.head = score_head(context.dim, zero=_block(config).residual)

    @classmethod
    def complete(cls, config: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
        """Keep the block of a VIRT, or begin with the default one."""
        return replace(config, dense=()).with_blocks(virt=config.virt or VirtConfig())

    def context_codes(self, states: Tensor, mask: Tensor) -> ContextCodes:
        """Return all token states, (B, T, D), unscaled, and which are of the text, (B, T)."""
        return ContextCodes(states.float(), mask)

    def candidate_outputs(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Return all token states, (N, K, D), and which are of the text, (N, K)."""
        return tuple(self.context_codes(states, mask))

    @classmethod
    def context_state(cls, config: ModelConfig, outputs: tuple[Tensor, ...], batch: TokenBatch) -> ContextState:
        """Keep the token states; their mean is for the first stage."""
        rows = outputs[0][:, : batch.ids.shape[1]]  # a back-end may have padded further
        first = one_vector_each(unit_length(masked_mean(rows, batch.mask)) * config.score_scale)
        return ContextState(first, rows, batch.mask)

    @classmethod
    def candidate_state(cls, config: ModelConfig, outputs: tuple[Tensor, ...], batch: TokenBatch) -> CandidateState:
        """Keep the token states; their mean is for the first stage."""
        rows = outputs[0][:, : batch.ids.shape[1]]
        return CandidateState(unit_length(masked_mean(rows, batch.mask)), rows, batch.mask)

    @classmethod
    def late_rows(cls, config: ModelConfig, dim: int) -> LateRows | None:
        """Return D and no fixed count: a row for each token."""
        return LateRows(dim, None)

    @classmethod
    def late_cost(cls, config: ModelConfig, dim: int, context_tokens: int, rows: int) -> float:
        """Return the multiplications of the products, of both means and of the head: T K D + (T + K) D + 4 D^2 + D."""
        products = context_tokens * rows * dim
        return float(products + (context_tokens + rows) * dim + 4 * dim**2 + dim)

    def second_scores(self, contexts: ContextState, candidates: CandidateState) -> Tensor:
        """Score every candidate for every context by u and v alone, (B, N)."""
        scores: Tensor = self.head(nn.functional.gelu(self.join(self._read(contexts, candidates))))[..., 0]
        return scores

    @classmethod
    def counts_first_stage(cls, config: ModelConfig) -> bool:
        """Say whether it is a residual one."""
        return _block(config).residual

    @classmethod
    def unexplained(cls, config: ModelConfig) -> dict[Unexplained, str]:
        """Leave out the second stage."""
        why = "two layers turn what a context and a reply find in each other into a score"
        return second_stage_unexplained(why, cls.counts_first_stage(config))

    def _reduction_sums(self, states: Tensor) -> StateSums:
        """Take the mean, whatever the config's reduction is."""
        return StateSums(*reduction_sums("mean", 1, states), unit=True)

    @classmethod
    def class_head(cls, config: ModelConfig, dim: int) -> nn.Module:
        """Make a head over 4 D features."""
        return ClassHead(4 * dim, config.head_classes)

    def compared(self, contexts: ContextState, candidates: CandidateState) -> Tensor:
        """Return [u; v; |u - v|; max(u, v)], (N, 4 D)."""
        return self._read(contexts, candidates)[0]

    def _read(self, contexts: ContextState, candidates: CandidateState) -> Tensor:
        """Return [u; v; |u - v|; max(u, v)] of every context and candidate, (B, N, 4 D)."""
        assert contexts.late is not None
        assert contexts.mask is not None
        read = []
        for rows, mask in zip(contexts.late, contexts.mask, strict=True):
            u, v = read_both(rows[mask], candidates)
            read.append(torch.cat([u, v, (u - v).abs(), torch.maximum(u, v)], dim=-1))
        return torch.stack(read)


def read_both(context: Tensor, candidates: CandidateState) -> tuple[Tensor, Tensor]:
    """Return u and v of a context (T, D) and each candidate, (N, D) each.

    The mean of the rows of `A Y` is `(mean of the rows of A) Y`: one row is weighed instead of T.
    """
    assert candidates.late is not None
    assert candidates.mask is not None
    context, rows, mask = context.float(), candidates.late.float(), candidates.mask
    logits = rows @ context.T * context.shape[-1] ** -0.5  # (N, K, T)
    towards_rows = logits.masked_fill(~mask[..., None], float("-inf")).softmax(dim=1).mean(dim=2)  # (N, K)
    towards_context = masked_mean(logits.softmax(dim=2), mask)  # (N, T)
    return torch.einsum("nk,nkd->nd", towards_rows, rows), towards_context @ context


def _block(config: ModelConfig) -> VirtConfig:
    if config.virt is None:
        raise CheckpointInvalid("polyrank.json: virt is missing")
    return config.virt
