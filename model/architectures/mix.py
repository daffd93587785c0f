"""MixEncoder: each candidate is a few rows, which read the keys and values of a context in one pass for all of them.

Source: Yang et al., "MixEncoder" (the paper's equations, and its released code where the paper is silent). Axes: B
contexts, N candidates, T tokens, K rows of a candidate, J interaction layers, D dimensions, H heads.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyrank.model.architectures.attention import ContextCodes, code_attention
from polyrank.model.architectures.backbone import Activation, Backbone, Layer, TensorBatch, layers_of
from polyrank.model.architectures.batching import TokenBatch, pad
from polyrank.model.architectures.sums import Float64, StateSums, Unexplained, code_sums
from polyrank.model.architectures.vector import (
    CandidateState,
    ClassHead,
    ContextState,
    VectorEncoder,
    as_numpy,
    second_stage_unexplained,
    side_by_side,
    unit_length,
)
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.registry import MixConfig
from polyrank.model.representations import LateRows


class MixEncoder(VectorEncoder):
    """`score = score_scale * cos(mean_k E_J, H_J)`, to which a residual one adds the first stage's score.

    E_0 are the candidate's rows. In each interaction layer the rows attend to the context's keys and values, which are
    the transformer's own of that layer, and to each other; H gathers what their mean finds in the context. The context
    reads nothing of a candidate, so all candidates share its pass.

    Without E it compares E_0 instead of E_J, and H still reads by the rows of each layer. Without H it compares the
    context's first-stage vector instead of H_J. (The paper's Table 3; what takes their place is as in its code.)

    Attributes:
        rows: what makes K rows of a candidate, (K, D): codes that attend over its token states, or inputs in the place
            of its first token.
        gate: W_g, 3 D to D, of all layers.
    """

    has_unit_vectors = True

    def __init__(self, config: ModelConfig, context: Backbone, candidate: Backbone) -> None:
        super().__init__(config, context, candidate)
        block = config.block(MixConfig)
        self.rows = nn.Parameter(torch.empty(block.rows, context.dim).normal_(mean=0.0, std=context.dim**-0.5))
        self.interactions = nn.ModuleList(Interaction.like(context) for _ in self._own_layers)
        self.gate = nn.Linear(3 * context.dim, context.dim)

    def begin(self) -> None:
        """Copy each interaction layer from the context's transformer; the last attention's query is its query, too."""
        with torch.no_grad():
            for own, layer in zip(self.interactions, self._own_layers, strict=True):
                assert isinstance(own, Interaction)
                own.take(layer)

    @property
    def _own_layers(self) -> list[Any]:
        """The transformer's layers that give keys and values."""
        layers = layers_of(self.context, "mix")
        return [layers[place] for place in self._places]

    @property
    def _places(self) -> list[int]:
        """Which layers interact, counted from 0."""
        count = len(layers_of(self.context, "mix"))
        places = [layer - 1 if layer > 0 else count + layer for layer in self.config.block(MixConfig).layers]
        if not all(0 <= place < count for place in places) or sorted(set(places)) != places:
            named = ", ".join(map(str, self.config.block(MixConfig).layers))
            known = f"1 to {count}, or -{count} to -1"
            raise CheckpointInvalid(f"mix: the transformer's layers are {known}; {named} must be some, ascending")
        return places

    @property
    def longest_input(self) -> int:
        """Tokens of the longest sequence, with a candidate's rows in it."""
        more = self.config.block(MixConfig).rows - 1
        return max(self.config.max_context_tokens, self.config.max_candidate_tokens + more)

    @property
    def context_width(self) -> int:
        """The last states, and those that enter each interaction layer."""
        return (1 + len(self.interactions)) * self.context.dim

    def context_tokens(self, batch: TensorBatch) -> Tensor:
        """Return the last states and those that enter each interaction layer, side by side."""
        return self.context.hidden(batch, self._places)

    def context_outputs(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Return the first-stage vector (B, 1, D), that it exists, and keys and values of all layers, (B, T, 2 J D)."""
        last, *entering = torch.split(states.float(), self.context.dim, dim=-1)
        projected = []
        for state, layer in zip(entering, self._own_layers, strict=True):
            for linear in (layer.attention.self.key, layer.attention.self.value):
                projected.append(F.linear(state, linear.weight.float(), linear.bias.float()))
        return *self.context_codes(last, mask), torch.cat(projected, dim=-1)

    @classmethod
    def candidate_batch(cls, config: ModelConfig, candidates: Sequence[Sequence[int]], pad_id: int) -> TokenBatch:
        """Make room for the rows in the place of the first token, where they are inputs."""
        more = config.block(MixConfig).rows - 1 if config.block(MixConfig).strategy == "inputs" else 0
        return pad([[*[ids[0]] * more, *ids] for ids in candidates], pad_id)

    def candidate_tokens(self, batch: TensorBatch) -> Tensor:
        """Run the transformer of candidates; rows that are inputs take the first places."""
        if self.config.block(MixConfig).strategy == "codes":
            return super().candidate_tokens(batch)
        return self.candidate.beginning_with(self.rows, batch)

    def candidate_outputs(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Return the rows E_0, (N, K, D), and that all exist, (N, K)."""
        if self.config.block(MixConfig).strategy == "codes":
            rows = code_attention(self.rows, states, mask)
        else:
            rows = states[:, : len(self.rows)].float()
        return rows, torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device)

    @classmethod
    def context_state(cls, config: ModelConfig, outputs: tuple[Tensor, ...], batch: TensorBatch) -> ContextState:
        """Keep keys and values beside the first-stage vector."""
        vectors, present, projected = outputs
        width = batch.ids.shape[1]  # a back-end may have padded further
        return ContextState(ContextCodes(vectors, present), projected[:, :width], batch.mask)

    @classmethod
    def candidate_state(cls, config: ModelConfig, outputs: tuple[Tensor, ...], batch: TensorBatch) -> CandidateState:
        """Keep the rows; their unit mean is for the first stage."""
        rows, present = outputs
        return CandidateState(unit_length(rows.mean(dim=1)), rows, present)

    @classmethod
    def late_rows(cls, config: ModelConfig, dim: int) -> LateRows | None:
        return LateRows(dim, config.block(MixConfig).rows)

    @classmethod
    def late_cost(cls, config: ModelConfig, dim: int, context_tokens: int, rows: int) -> float:
        """Return the multiplications of all interaction layers: J ((12 K + 13) D^2 + 2 (K + 1) T D).

        Of a layer 12 K D^2 + 2 K T D make E, which without E the last layer needs not; the others make H.
        """
        block = config.block(MixConfig)
        layers, updates = len(block.layers), _updates(block)
        rows_cost = 12 * rows * dim**2 + 2 * rows * context_tokens * dim
        read_cost = 13 * dim**2 + 2 * context_tokens * dim
        return float(updates * rows_cost + (layers * read_cost if block.without != "H" else 0))

    def second_scores(self, contexts: ContextState, candidates: CandidateState) -> Tensor:
        """Score every candidate for every context by E_J and H_J alone, (B, N)."""
        own, found = self._interacted(contexts, candidates)
        return F.cosine_similarity(own, found, dim=-1) * self.config.score_scale

    @classmethod
    def counts_first_stage(cls, config: ModelConfig) -> bool:
        return config.block(MixConfig).residual

    @classmethod
    def unexplained(cls, config: ModelConfig) -> dict[Unexplained, str]:
        """Leave out the second stage, and the reply's tokens where the rows are outputs of no token."""
        why = "gates and feed-forward networks lie between what its rows read of a context and the score"
        found = second_stage_unexplained(why, cls.counts_first_stage(config))
        if config.block(MixConfig).strategy == "inputs":
            found.setdefault("reply_tokens", "a reply's rows are outputs in places of their own, which have read all")
        return found

    def candidate_sums(self, states: Float64) -> StateSums:
        """Return the unit mean of the rows, where codes attend for them."""
        weights = code_sums(as_numpy(self.rows), states, 1.0).mean(axis=0, keepdims=True)
        return StateSums(weights, states, unit=True)

    @classmethod
    def class_head(cls, config: ModelConfig, dim: int) -> nn.Module:
        return ClassHead(3 * dim, config.head_classes)

    def compared(self, contexts: ContextState, candidates: CandidateState) -> Tensor:
        """Return [e; h; |e - h|] of e, the mean of the rows E_J, and H_J, (N, 3 D)."""
        own, found = self._interacted(contexts, candidates)
        return side_by_side(own[0], found[0])

    def _interacted(self, contexts: ContextState, candidates: CandidateState) -> tuple[Tensor, Tensor]:
        """Run the interaction layers; returns the mean of the rows E_J, (B, N, D), and H_J, (B, N, D).

        Without E or H it is what takes their place.
        """
        projected, mask = contexts.rows
        pairs = torch.split(projected.float(), self.context.dim, dim=-1)
        own_rows, _ = candidates.rows
        begun = own_rows.float().expand(len(mask), *own_rows.shape)
        rows, block = begun, self.config.block(MixConfig)  # E, (B, N, K, D)
        found = torch.zeros_like(rows[:, :, 0])  # H, (B, N, D)
        for place, layer in enumerate(self.interactions):
            keys, values = pairs[2 * place : 2 * place + 2]
            mean = rows.mean(dim=2)
            assert isinstance(layer, Interaction)
            if place < _updates(block):
                rows = layer.mix(rows, keys, values, mask)
            if block.without != "H":
                read = layer.read(mean, keys, values, mask)
                gate = torch.sigmoid(self.gate(torch.cat([mean, read, found], dim=-1)))
                found = layer.fed(layer.norm(gate * read + (1 - gate) * found))
        own = (begun if block.without == "E" else rows).mean(dim=2)
        if block.without == "H":
            found = (contexts.first.vectors / self.config.score_scale).expand_as(own)
        return own, found


class Interaction(Layer):
    """One interaction layer's own maps: those of a layer of BERT, and the query of H."""

    def __init__(self, dim: int, heads: int, inner: int, eps: float, activation: Activation = F.gelu) -> None:
        super().__init__(dim, heads, inner, eps, activation)
        self.last_query = nn.Linear(dim, dim)

    def take(self, layer: Any) -> None:
        """Copy the maps of a layer of BERT; both queries begin as its query."""
        super().take(layer)
        self.last_query.weight.copy_(layer.attention.self.query.weight)
        self.last_query.bias.copy_(layer.attention.self.query.bias)

    def mix(self, rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Let rows (B, N, K, D) attend to the context's keys and values (B, T, D), and to the rows of their candidate.

        One softmax covers the T real tokens and the K rows: `FFN(LN(W_O softmax([Q' K, Q' K'] / sqrt(D / H)) [V; V'] +
        E))`. Returns (B, N, K, D).
        """
        query = self.split(self.query(rows))
        own = torch.einsum("bnkhd,bnlhd->bnhkl", query, self.split(self.key(rows)))
        weights = torch.cat([self._logits(query, keys, mask), own], dim=-1) * query.shape[-1] ** -0.5
        weights = weights.softmax(dim=-1)
        beside = torch.einsum("bnhkl,bnlhd->bnkhd", weights[..., keys.shape[1] :], self.split(self.value(rows)))
        joined = (self._weighted(weights[..., : keys.shape[1]], values) + beside).flatten(-2)
        return self.fed(self.norm(self.output(joined) + rows))

    def read(self, mean: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return what the mean rows (B, N, D) find in the context: `W_O softmax(Q* K / sqrt(D / H)) V`, (B, N, D)."""
        query = self.split(self.last_query(mean))[:, :, None]
        weights = (self._logits(query, keys, mask) * query.shape[-1] ** -0.5).softmax(dim=-1)
        found: Tensor = self.output(self._weighted(weights, values)[:, :, 0].flatten(-2))
        return found

    def _logits(self, query: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """Products of queries (B, N, K, H, d) with the context's keys (B, T, D), (B, N, H, K, T); -inf for padding."""
        products = torch.einsum("bnkhd,bthd->bnhkt", query, self.split(keys))
        return products.masked_fill(~mask[:, None, None, None], float("-inf"))

    def _weighted(self, weights: Tensor, values: Tensor) -> Tensor:
        return torch.einsum("bnhkt,bthd->bnkhd", weights, self.split(values))


def _updates(block: MixConfig) -> int:
    """Count the layers whose rows are used, by the score or by the next layer."""
    return len(block.layers) - (block.without == "E")
