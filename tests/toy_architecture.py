"""An architecture from outside the packages: a score is the mean of the k best products of token vectors.

All that it is stands here: its options, its network with what it stores and explains, and its row for the registry.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polyrank.model.architectures.attention import ContextCodes, one_vector_each
from polyrank.model.architectures.backbone import TensorBatch
from polyrank.model.architectures.vector import CandidateState, ContextState, VectorEncoder, masked_mean, unit_length
from polyrank.model.config import ModelConfig
from polyrank.model.options import Block, Bounds, option
from polyrank.model.registry import Architecture
from polyrank.model.representations import LateRows

NAME = "toy"


@dataclass(frozen=True, kw_only=True)
class ToyConfig(Block):
    """How many products count."""

    of: ClassVar[str] = NAME
    best: int = option(2, "best products that count", Bounds(1, 50), name="best_products", metavar="K")


class ToyEncoder(VectorEncoder):
    """`score = score_scale * mean of the k best q_i . d_j` over unit token states of both sides."""

    def context_codes(self, states: Tensor, mask: Tensor) -> ContextCodes:
        return ContextCodes(unit_length(states), mask)

    def candidate_outputs(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return unit_length(states), mask

    @classmethod
    def context_state(cls, config: ModelConfig, outputs: tuple[Tensor, ...], batch: TensorBatch) -> ContextState:
        rows = outputs[0][:, : batch.ids.shape[1]]
        mean = unit_length(masked_mean(rows, batch.mask))
        return ContextState(one_vector_each(mean * config.score_scale), rows, batch.mask)

    @classmethod
    def candidate_state(cls, config: ModelConfig, outputs: tuple[Tensor, ...], batch: TensorBatch) -> CandidateState:
        rows = outputs[0][:, : batch.ids.shape[1]]
        return CandidateState(unit_length(masked_mean(rows, batch.mask)), rows, batch.mask)

    @classmethod
    def late_rows(cls, config: ModelConfig, dim: int) -> LateRows | None:
        return LateRows(dim, None)

    @classmethod
    def late_cost(cls, config: ModelConfig, dim: int, context_tokens: int, rows: int) -> float:
        return float(dim * context_tokens * rows)

    def second_scores(self, contexts: ContextState, candidates: CandidateState) -> Tensor:
        own, present = candidates.rows
        found = []
        for rows, mask in zip(*contexts.rows, strict=True):
            products = own.float() @ rows[mask].float().T  # (N, K, T)
            products = products.masked_fill(~present[..., None], float("-inf")).flatten(1)
            found.append(products.topk(min(self._best, products.shape[1])).values.mean(dim=1))
        return torch.stack(found) * self.config.score_scale

    def explained_pairs(self, context: Tensor, candidate: Tensor) -> Tensor:
        products = context @ candidate.T
        best = products.flatten().topk(min(self._best, products.numel()))
        told = torch.zeros_like(products).flatten().scatter(0, best.indices, best.values)
        return told.view_as(products) * (self.config.score_scale / len(best.values))

    @property
    def _best(self) -> int:
        return self.config.block(ToyConfig).best


ROW = Architecture(
    "toy_architecture:ToyEncoder", options=ToyConfig, beyond_vectors="it compares tokens with tokens", classifier=None
)
