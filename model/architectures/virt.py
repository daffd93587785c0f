"""VIRT: a candidate keeps all its token states; context and candidate are read against each other at the end.

Source: Li et al. 2021, "VIRT: Improving Representation-based Models for Text Matching through Virtual Interaction".
Axes: B contexts, N candidates, T tokens of a context, K tokens of a candidate, D dimensions.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polyrank.model.architectures.attention import ContextCodes, one_vector_each
from polyrank.model.architectures.backbone import Backbone, TensorBatch, layers_of
from polyrank.model.architectures.batching import pad
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.sums import Float64, StateSums, Unexplained, reduction_sums
from polyrank.model.architectures.vector import (
    CandidateState,
    ClassHead,
    ContextState,
    VectorEncoder,
    masked_mean,
    score_head,
    second_stage_unexplained,
    unit_length,
)
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid, InvalidInput
from polyrank.model.registry import VirtConfig
from polyrank.model.representations import LateRows
from polyrank.model.text.tokenizer import Tokenizer


class VirtEncoder(VectorEncoder):
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
        self.head = score_head(context.dim, zero=config.block(VirtConfig).residual)

    def context_codes(self, states: Tensor, mask: Tensor) -> ContextCodes:
        """Return all token states, (B, T, D), unscaled, and which are of the text, (B, T)."""
        return ContextCodes(states.float(), mask)

    def candidate_outputs(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Return all token states, (N, K, D), and which are of the text, (N, K)."""
        return tuple(self.context_codes(states, mask))

    @classmethod
    def context_state(cls, config: ModelConfig, outputs: tuple[Tensor, ...], batch: TensorBatch) -> ContextState:
        """Keep the token states; their mean is for the first stage."""
        rows = outputs[0][:, : batch.ids.shape[1]]  # a back-end may have padded further
        first = one_vector_each(unit_length(masked_mean(rows, batch.mask)) * config.score_scale)
        return ContextState(first, rows, batch.mask)

    @classmethod
    def candidate_state(cls, config: ModelConfig, outputs: tuple[Tensor, ...], batch: TensorBatch) -> CandidateState:
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
        return config.block(VirtConfig).residual

    @classmethod
    def unexplained(cls, config: ModelConfig) -> dict[Unexplained, str]:
        why = "two layers turn what a context and a reply find in each other into a score"
        return second_stage_unexplained(why, cls.counts_first_stage(config))

    def inner_teacher(self, name: str, teacher: nn.Module, tokenizer: Tokenizer) -> "AttentionTeacher":
        return AttentionTeacher(name, teacher, self, tokenizer)

    def _reduction_sums(self, states: Float64) -> StateSums:
        """Take the mean, whatever the config's reduction is."""
        return StateSums(*reduction_sums("mean", 1, states), unit=True)

    @classmethod
    def class_head(cls, config: ModelConfig, dim: int) -> nn.Module:
        return ClassHead(4 * dim, config.head_classes)

    def compared(self, contexts: ContextState, candidates: CandidateState) -> Tensor:
        """Return [u; v; |u - v|; max(u, v)], (N, 4 D)."""
        return self._read(contexts, candidates)[0]

    def _read(self, contexts: ContextState, candidates: CandidateState) -> Tensor:
        """Return [u; v; |u - v|; max(u, v)] of every context and candidate, (B, N, 4 D)."""
        read = []
        for rows, mask in zip(*contexts.rows, strict=True):
            u, v = read_both(rows[mask], candidates)
            read.append(torch.cat([u, v, (u - v).abs(), torch.maximum(u, v)], dim=-1))
        return torch.stack(read)


def read_both(context: Tensor, candidates: CandidateState) -> tuple[Tensor, Tensor]:
    """Return u and v of a context (T, D) and each candidate, (N, D) each.

    The mean of the rows of `A Y` is `(mean of the rows of A) Y`: one row is weighed instead of T.
    """
    rows, mask = candidates.rows
    context, rows = context.float(), rows.float()
    logits = rows @ context.T * context.shape[-1] ** -0.5  # (N, K, T)
    towards_rows = logits.masked_fill(~mask[..., None], float("-inf")).softmax(dim=1).mean(dim=2)  # (N, K)
    towards_context = masked_mean(logits.softmax(dim=2), mask)  # (N, T)
    return torch.einsum("nk,nkd->nd", towards_rows, rows), towards_context @ context


class AttentionTeacher:
    """A Cross-encoder, whose attention between context and candidate a VIRT is taught (Li et al. 2021).

    The student never lets them attend to each other. Its *virtual* attention is made of both sides' own queries and
    keys, `softmax(Q_x K_y^T / sqrt(D / H))` and the reverse; the teacher's is that of the same layer, with its softmax
    over the other text alone. The loss is the Frobenius norm of the difference, the mean over layers and heads, for
    both directions.
    """

    def __init__(self, name: str, teacher: nn.Module, student: VirtEncoder, tokenizer: Tokenizer) -> None:
        """Raise InvalidInput where the two do not fit each other."""
        if not isinstance(teacher, CrossEncoder):
            raise InvalidInput(f"inner-weight: {name} is no cross-encoder, whose attention virt is taught")
        self._teacher, self._student, self._tokenizer = teacher.encoder, student, tokenizer
        shapes = [(len(_layers(each)), _head_count(each)) for each in (self._teacher, student.context)]
        if shapes[0] != shapes[1]:
            raise InvalidInput(f"inner-weight: {name} has another number of layers or heads")

    def loss(
        self,
        contexts: Sequence[list[int]],
        candidates: Sequence[list[int]],
        listed: Sequence[tuple[int, int]],
        states: tuple[ContextState, CandidateState],
    ) -> Tensor:
        """Return the loss of the virtual attention; `states` are not read: they are those of the last layer."""
        device = states[0].first.vectors.device
        columns = sorted({column for _, column in listed})
        own = [candidates[column] for column in columns]
        encoder = self._student
        read_x = _projections(encoder.context, contexts, device)
        read_y = _projections(encoder.candidate, own, device)
        joint = [self._joint(contexts[row], candidates[column]) for row, column in listed]
        begins = [begin for _, begin in joint]
        with torch.no_grad():
            shown = _projections(self._teacher, [ids for ids, _ in joint], device, begins)
        losses = []
        for place, (row, column) in enumerate(listed):
            t, k, at = len(contexts[row]), len(candidates[column]), columns.index(column)
            prefix, begin = len(self._tokenizer.prefix), begins[place]
            for (qx, kx), (qy, ky), (query, key) in zip(read_x, read_y, shown, strict=True):
                x, y = (qx[row, :, :t], kx[row, :, :t]), (qy[at, :, prefix:k], ky[at, :, prefix:k])
                end = begin + k - prefix
                sides = (query[place, :, :t], key[place, :, :t]), (query[place, :, begin:end], key[place, :, begin:end])
                losses.append(_apart(x, y, sides[0], sides[1]) + _apart(y, x, sides[1], sides[0]))
        return torch.stack(losses).mean()

    def _joint(self, context: list[int], candidate: list[int]) -> tuple[list[int], int]:
        """Join a context and a candidate, each wrapped alone, to what the teacher reads; and where the latter begins.

        Without its prefix the candidate has the same tokens in both, and so have the contexts' first T.
        """
        own = self._tokenizer
        head = [*context[: len(context) - len(own.suffix)], *own.pair_separator]
        return [*head, *candidate[len(own.prefix) : len(candidate) - len(own.suffix)], *own.pair_suffix], len(head)


_TINY = 1e-12  # keeps the gradient of a root finite


def _projections(
    backbone: Backbone, texts: Sequence[Sequence[int]], device: torch.device, begins: Sequence[int] | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Return the queries and keys of each layer for B texts, (B, H, T, D / H) each; `begins`: of their segments 1."""
    batch = TensorBatch.of(pad(texts, backbone.pad_id, begins), device)
    inputs, heads = backbone.inputs(batch), _head_count(backbone)
    entering = backbone.transformer(**inputs, output_hidden_states=True).hidden_states[:-1]
    maps = [(layer.attention.self.query, layer.attention.self.key) for layer in _layers(backbone)]
    return [
        (_by_head(query(state.float()), heads), _by_head(key(state.float()), heads))
        for state, (query, key) in zip(entering, maps, strict=True)
    ]


def _by_head(states: Tensor, heads: int) -> Tensor:
    return states.view(*states.shape[:-1], heads, -1).transpose(1, 2)


_Side = tuple[Tensor, Tensor]
"""Queries and keys of a text, (H, T, D / H) each."""


def _apart(own: _Side, other: _Side, shown: _Side, beside: _Side) -> Tensor:
    """Return how far attention from `own` to `other` is from that of `shown` to `beside`."""
    difference = _attention(own[0], other[1]) - _attention(shown[0], beside[1])
    norms: Tensor = (difference.pow(2).sum(dim=(-2, -1)) + _TINY).sqrt()
    return norms.mean()


def _attention(query: Tensor, key: Tensor) -> Tensor:
    """Return the weights of the keys (H, K, d) for each query (H, T, d), (H, T, K)."""
    weights: Tensor = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(dim=-1)
    return weights


def _layers(backbone: Backbone) -> Any:
    try:
        return layers_of(backbone, "inner-weight")
    except CheckpointInvalid as error:
        raise InvalidInput(str(error)) from error


def _head_count(backbone: Backbone) -> int:
    count: int = backbone.transformer.config.num_attention_heads
    return count
