"""ColBERT: a vector for each token of both sides; each context vector takes its best candidate vector.

Source: Khattab and Zaharia 2020 (arXiv 2004.12832). Axes: B contexts, N candidates, T and K tokens, E dimensions.
"""

from collections.abc import Sequence
from dataclasses import replace
from string import punctuation

import numpy as np
import torch
from torch import Tensor, nn

from polyrank.model.architectures.attention import ContextCodes, one_vector_each
from polyrank.model.architectures.backbone import Backbone, TensorBatch
from polyrank.model.architectures.batching import TokenBatch, pad
from polyrank.model.architectures.sums import Unexplained
from polyrank.model.architectures.vector import CandidateState, ContextState, VectorEncoder, masked_mean, unit_length
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.registry import ColbertConfig
from polyrank.model.representations import LateRows
from polyrank.model.text.tokenizer import Tokenizer

_QUERY_TOKENS = 32
_QUERY_MARKER, _CANDIDATE_MARKER = "[unused0]", "[unused1]"


class ColbertEncoder(VectorEncoder):
    """`score = score_scale * mean_i max_j q_i . d_j` over unit vectors `q = unit(W h)` and `d`.

    The paper sums over i; the mean gives the same ranking and does not grow with the context's length. The first stage
    compares the unit means of both sides' vectors. `projection`: W, D to E, for both sides.
    """

    def __init__(self, config: ModelConfig, context: Backbone, candidate: Backbone) -> None:
        super().__init__(config, context, candidate)
        block = config.block(ColbertConfig)
        if max(block.ids) >= min(context.vocabulary, candidate.vocabulary):
            raise CheckpointInvalid("polyrank.json: colbert names a token id that the transformer lacks")
        self.projection = nn.Linear(context.dim, block.dim, bias=False)
        nn.init.orthogonal_(self.projection.weight)  # keeps angles as far as E dimensions can

    @classmethod
    def complete(cls, config: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
        """Fill in the tokens by which ColBERT marks, augments and drops."""
        mask = tokenizer.mask_id
        dropped = {found for mark in punctuation if (found := tokenizer.id_of(mark)) is not None}
        markers = tokenizer.id_of(_QUERY_MARKER), tokenizer.id_of(_CANDIDATE_MARKER)
        block = ColbertConfig(
            query_tokens=0 if mask is None else _QUERY_TOKENS,
            mask_id=mask or 0,
            query_marker=markers[0],
            candidate_marker=markers[1],
            dropped=tuple(sorted(dropped)),
        )
        return replace(config, own=block)

    @property
    def longest_input(self) -> int:
        """Tokens of the longest sequence, the marker included."""
        return max(super().longest_input + 1, self.config.block(ColbertConfig).query_tokens)

    @classmethod
    def context_batch(cls, config: ModelConfig, contexts: Sequence[Sequence[int]], pad_id: int) -> TokenBatch:
        """Mark contexts, and fill short ones up with the mask token; nobody attends to what fills."""
        block = config.block(ColbertConfig)
        marked = [_marked(ids, block.query_marker) for ids in contexts]
        batch = pad([[*ids, *[block.mask_id] * (block.query_tokens - len(ids))] for ids in marked], pad_id)
        lengths = np.array([len(ids) for ids in marked])[:, None]
        return batch._replace(mask=np.arange(batch.ids.shape[1]) < lengths)

    @classmethod
    def candidate_batch(cls, config: ModelConfig, candidates: Sequence[Sequence[int]], pad_id: int) -> TokenBatch:
        return pad([_marked(ids, config.block(ColbertConfig).candidate_marker) for ids in candidates], pad_id)

    def context_codes(self, states: Tensor, mask: Tensor) -> ContextCodes:
        """Return the vectors of all positions, (B, T, E), unscaled, and which hold a token of the text, (B, T)."""
        return ContextCodes(unit_length(self.projection(states.float())), mask)

    def candidate_outputs(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Return the vectors of all positions, (N, K, E), and which hold a token, (N, K)."""
        return tuple(self.context_codes(states, mask))

    @classmethod
    def context_state(cls, config: ModelConfig, outputs: tuple[Tensor, ...], batch: TensorBatch) -> ContextState:
        """Keep the vectors of the text and of what fills it up, and their mean for the first stage."""
        width = batch.ids.shape[1]  # a back-end may have padded further
        rows = outputs[0][:, :width]
        lengths = batch.mask.sum(dim=1, keepdim=True).clamp(min=config.block(ColbertConfig).query_tokens)
        counted = torch.arange(width, device=rows.device) < lengths
        first = one_vector_each(unit_length(masked_mean(rows, counted)) * config.score_scale)
        return ContextState(first, rows, counted)

    @classmethod
    def candidate_state(cls, config: ModelConfig, outputs: tuple[Tensor, ...], batch: TensorBatch) -> CandidateState:
        """Drop the vectors of punctuation and padding; the mean of the others is for the first stage."""
        rows = outputs[0][:, : batch.ids.shape[1]]
        dropped = torch.tensor(config.block(ColbertConfig).dropped, dtype=batch.ids.dtype, device=batch.ids.device)
        kept = batch.mask & ~torch.isin(batch.ids, dropped)
        return CandidateState(unit_length(masked_mean(rows, kept)), rows, kept)

    @classmethod
    def first_dim(cls, config: ModelConfig, dim: int) -> int:
        return config.block(ColbertConfig).dim

    @classmethod
    def late_rows(cls, config: ModelConfig, dim: int) -> LateRows | None:
        """Return E and no fixed count: a row for each token."""
        return LateRows(config.block(ColbertConfig).dim, None)

    @classmethod
    def late_cost(cls, config: ModelConfig, dim: int, context_tokens: int, rows: int) -> float:
        block = config.block(ColbertConfig)
        return float(block.dim * max(context_tokens + 1, block.query_tokens) * rows)

    def second_scores(self, contexts: ContextState, candidates: CandidateState) -> Tensor:
        """Score every candidate for every context by MaxSim, (B, N)."""
        means = [max_sim(rows[counted], candidates) for rows, counted in zip(*contexts.rows, strict=True)]
        return torch.stack(means) * self.config.score_scale

    @classmethod
    def unexplained(cls, config: ModelConfig) -> dict[Unexplained, str]:
        """Leave out nothing: `explained_pairs` are the score."""
        return {}

    @classmethod
    def context_layout(cls, config: ModelConfig, count: int) -> list[int | None]:
        """Put the marker behind the first token, and the mask tokens that fill up behind the last one."""
        block = config.block(ColbertConfig)
        marker = [] if block.query_marker is None else [None]
        places = [0, *marker, *range(1, count)]
        return [*places, *[None] * (block.query_tokens - len(places))]

    @classmethod
    def candidate_layout(cls, config: ModelConfig, ids: Sequence[int]) -> tuple[list[int | None], list[bool]]:
        """Put the marker behind the first token; punctuation has no row."""
        block = config.block(ColbertConfig)
        marker = [] if block.candidate_marker is None else [None]
        dropped = {*block.dropped}
        rows = [id_ not in dropped for id_ in _marked(ids, block.candidate_marker)]
        return [0, *marker, *range(1, len(ids))], rows

    def explained_pairs(self, context: Tensor, candidate: Tensor) -> Tensor:
        """Give each of the context's rows to the candidate's row that is best for it."""
        similarities = context @ candidate.T  # (T, K)
        best, places = similarities.max(dim=1, keepdim=True)
        return torch.zeros_like(similarities).scatter(1, places, best) * (self.config.score_scale / len(context))


def max_sim(query: Tensor, candidates: CandidateState) -> Tensor:
    """Return the mean over the query's rows (T, E) of the best dot product with a row of each candidate, (N,)."""
    rows, mask = candidates.rows
    similarities = rows.float() @ query.float().T  # (N, K, T)
    present = similarities.masked_fill(~mask[..., None], float("-inf"))  # zero would beat a negative one
    return present.amax(dim=1).mean(dim=-1)


def _marked(ids: Sequence[int], marker: int | None) -> list[int]:
    return list(ids) if marker is None else [*ids[:1], marker, *ids[1:]]
