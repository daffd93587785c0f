"""Deformer: the lower layers read each text alone, ahead of time; the upper ones read context and candidate together.

Source: Cao et al. 2020, "DeFormer: Decomposing Pre-trained Transformers for Faster Question Answering". Axes: B
contexts, N candidates, T tokens of a context, K tokens of a candidate, L layers of the transformer, U upper ones, D
dimensions.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from polyrank.model.architectures.attention import ContextCodes
from polyrank.model.architectures.backbone import Backbone, Layer, TensorBatch, layers_of
from polyrank.model.architectures.batching import TokenBatch, pad
from polyrank.model.architectures.sums import Unexplained
from polyrank.model.architectures.vector import (
    CandidateState,
    ContextState,
    VectorEncoder,
    score_head,
    second_stage_unexplained,
    unit_length,
)
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid, InvalidInput
from polyrank.model.registry import DeformerConfig
from polyrank.model.representations import LateRows
from polyrank.model.text.tokenizer import Tokenizer

_TOKENS_AT_ONCE = 16_384  # of contexts and candidates side by side: with MiniLM 25 MB for each tensor between layers


class DeformerEncoder(VectorEncoder):
    """`score = W h`, to which a residual one adds the first stage's score.

    h (D) is the first output of the U upper layers over the states of context and candidate side by side, as they leave
    layer L - U. Below it each text is read alone: with positions from 0, candidates with the segment 1. The upper
    layers begin as copies of the transformer's last ones, which go on making the first stage's vectors, `red(T(text))`.
    `head`: W, D to 1; a classifier has none.
    """

    has_unit_vectors = True

    def __init__(self, config: ModelConfig, context: Backbone, candidate: Backbone) -> None:
        super().__init__(config, context, candidate)
        self.upper = nn.ModuleList(Layer.like(context) for _ in self._own_layers)
        if config.head_classes:
            return
        self.head = score_head(context.dim, zero=config.block(DeformerConfig).residual)

    def begin(self) -> None:
        """Copy the upper layers from the context's transformer."""
        with torch.no_grad():
            for own, layer in zip(self.upper, self._own_layers, strict=True):
                assert isinstance(own, Layer)
                own.take(layer)

    def inner_teacher(self, name: str, teacher: nn.Module, tokenizer: Tokenizer) -> "StateTeacher":
        return StateTeacher(name, teacher, self)

    @property
    def _own_layers(self) -> list[Any]:
        """The transformer's layers of which the upper ones are copies."""
        layers, upper = layers_of(self.context, "deformer"), self.config.block(DeformerConfig).upper
        if upper > len(layers):
            raise CheckpointInvalid(f"deformer: {upper} upper layers are more than the transformer's {len(layers)}")
        return list(layers[len(layers) - upper :])

    @property
    def context_width(self) -> int:
        """The last states, and those that leave layer L - U."""
        return 2 * self.context.dim

    @property
    def candidate_width(self) -> int:
        return 2 * self.candidate.dim

    @classmethod
    def candidate_batch(cls, config: ModelConfig, candidates: Sequence[Sequence[int]], pad_id: int) -> TokenBatch:
        """Give candidates the segment 1."""
        return pad(candidates, pad_id, [0] * len(candidates))

    def context_tokens(self, batch: TensorBatch) -> Tensor:
        """Return the last states and those that leave layer L - U, side by side."""
        return self.context.hidden(batch, [len(layers_of(self.context, "deformer")) - len(self.upper)])

    def candidate_tokens(self, batch: TensorBatch) -> Tensor:
        """Return the last states and those that leave layer L - U, side by side."""
        return self.candidate.hidden(batch, [len(layers_of(self.candidate, "deformer")) - len(self.upper)])

    def context_outputs(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Return the first-stage vector (B, 1, D), that it exists, and the states that leave layer L - U, (B, T, D)."""
        last, rows = states.float().chunk(2, dim=-1)
        return *self.context_codes(last, mask), rows

    def candidate_outputs(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Return the states that leave layer L - U, (N, K, D), which are of the text, and the first-stage vector."""
        last, rows = states.float().chunk(2, dim=-1)
        return rows, mask, unit_length(self.reduce(last, mask))

    @classmethod
    def context_state(cls, config: ModelConfig, outputs: tuple[Tensor, ...], batch: TensorBatch) -> ContextState:
        """Keep the states of tokens beside the first-stage vector."""
        vectors, present, rows = outputs
        return ContextState(ContextCodes(vectors, present), rows[:, : batch.ids.shape[1]], batch.mask)

    @classmethod
    def candidate_state(cls, config: ModelConfig, outputs: tuple[Tensor, ...], batch: TensorBatch) -> CandidateState:
        rows, _, first = outputs
        return CandidateState(first, rows[:, : batch.ids.shape[1]], batch.mask)  # a back-end may have padded further

    @classmethod
    def late_rows(cls, config: ModelConfig, dim: int) -> LateRows | None:
        """Return D and no fixed count: a row for each token."""
        return LateRows(dim, None)

    @classmethod
    def late_cost(cls, config: ModelConfig, dim: int, context_tokens: int, rows: int) -> float:
        """Return the multiplications of the upper layers over T + K tokens, and of the head.

        A layer takes 12 (T + K) D^2 + 2 (T + K)^2 D. The first one makes the
        context's queries, keys and values once for all candidates, and the last one only the first token's output.
        """
        joint, upper = context_tokens + rows, config.block(DeformerConfig).upper
        whole = 12 * joint * dim**2 + 2 * joint**2 * dim
        last = (2 * joint + 10) * dim**2 + 2 * joint * dim
        known = (3 * context_tokens if upper > 1 else 2 * context_tokens + 1) * dim**2
        return float((upper - 1) * whole + last - known + dim)

    def second_scores(self, contexts: ContextState, candidates: CandidateState) -> Tensor:
        """Score every candidate for every context by h alone, (B, N)."""
        scores: Tensor = self.head(self._read(contexts, candidates))[..., 0]
        return scores

    @classmethod
    def counts_first_stage(cls, config: ModelConfig) -> bool:
        return config.block(DeformerConfig).residual

    @classmethod
    def unexplained(cls, config: ModelConfig) -> dict[Unexplained, str]:
        why = "its upper layers read all tokens of a context and a reply together"
        return super().unexplained(config) | second_stage_unexplained(why, cls.counts_first_stage(config))

    @classmethod
    def class_head(cls, config: ModelConfig, dim: int) -> nn.Module:
        return nn.Linear(dim, config.head_classes)

    def compared(self, contexts: ContextState, candidates: CandidateState) -> Tensor:
        return self._read(contexts, candidates)[0]

    def _read(self, contexts: ContextState, candidates: CandidateState) -> Tensor:
        """Return h of every context and candidate, (B, N, D)."""
        read = []
        for rows, mask in zip(*contexts.rows, strict=True):
            own = rows[mask].float()
            found = []
            others, exist = candidates.rows
            count = max(1, _TOKENS_AT_ONCE // (len(own) + others.shape[1]))
            for some, present in zip(torch.split(others.float(), count), torch.split(exist, count), strict=True):
                if torch.is_grad_enabled():  # keep what one part of the pairs takes, not what all of them take
                    found.append(checkpoint(self._first_outputs, own, some, present, use_reentrant=False))
                else:
                    found.append(self._first_outputs(own, some, present))
            read.append(torch.cat(found))
        return torch.stack(read)

    def upper_outputs(self, context: Tensor, candidates: Tensor, present: Tensor) -> list[Tensor]:
        """Return the outputs of each upper layer, (N, T + K, D), for a context (T, D) beside candidates (N, K, D).

        present: which tokens of the candidates exist, (N, K).
        """
        return self._run(context, candidates, present, whole=True)

    def _first_outputs(self, context: Tensor, candidates: Tensor, present: Tensor) -> Tensor:
        """Return the first outputs of the last layer, (N, D); arguments as `upper_outputs`."""
        return self._run(context, candidates, present, whole=False)[-1][:, 0]

    def _run(self, context: Tensor, candidates: Tensor, present: Tensor, *, whole: bool) -> list[Tensor]:
        """Run the upper layers; the last one only for the first token unless all outputs are wanted (`whole`)."""
        count, tokens = len(candidates), len(context)
        mask = torch.cat([present.new_ones(count, tokens), present], dim=1)

        def beside(own: Tensor, others: Tensor) -> Tensor:
            return torch.cat([own.expand(count, -1, -1), others], dim=1)

        states, outputs = beside(context, candidates), list[Tensor]()
        for place, layer in enumerate(self.upper):
            assert isinstance(layer, Layer)
            last = place == len(self.upper) - 1 and not whole
            if place == 0:  # the context is the same beside every candidate
                key, value = (beside(of(context), of(candidates)) for of in (layer.key, layer.value))
                query = layer.query(context[:1]).expand(count, -1, -1) if last else None
                query = beside(layer.query(context), layer.query(candidates)) if query is None else query
            else:
                key, value = layer.key(states), layer.value(states)
                query = layer.query(states[:, :1] if last else states)
            states = layer.attended(states[:, :1] if last else states, query, key, value, mask)
            outputs.append(states)
        return outputs


class StateTeacher:
    """A Deformer, best one whose layers are all upper ones, whose upper states another one is taught (Cao et al. 2020).

    The loss is the squared difference of the outputs of the student's upper layers and the teacher's last ones, the
    mean over layers, tokens and dimensions; to it is added that of the first output of the last layer.
    """

    def __init__(self, name: str, teacher: nn.Module, student: DeformerEncoder) -> None:
        """Raise InvalidInput where the two do not fit each other."""
        if not isinstance(teacher, DeformerEncoder):
            raise InvalidInput(f"inner-weight: {name} is no deformer, whose upper states a deformer is taught")
        self._teacher, self._student = teacher, student
        if teacher.context.dim != student.context.dim or len(teacher.upper) < len(student.upper):
            raise InvalidInput(f"inner-weight: {name} has states of another size, or fewer upper layers")

    def loss(
        self,
        contexts: Sequence[list[int]],
        candidates: Sequence[list[int]],
        listed: Sequence[tuple[int, int]],
        states: tuple[ContextState, CandidateState],
    ) -> Tensor:
        device = states[0].first.vectors.device
        teacher, pad_id = self._teacher, self._teacher.context.pad_id
        with torch.no_grad():
            read = teacher.context_batch(teacher.config, contexts, pad_id)
            beside = teacher.candidate_batch(teacher.config, candidates, pad_id)
            shown = (
                teacher.encode_contexts(TensorBatch.of(read, device)),
                teacher.encode_candidates(TensorBatch.of(beside, device)),
            )
        losses = []
        for row, column in listed:
            t, k = len(contexts[row]), len(candidates[column])
            ours = _upper(self._student, states, row, t, column, k)
            with torch.no_grad():
                theirs = _upper(teacher, shown, row, t, column, k)[-len(ours) :]
            pairs = list(zip(ours, theirs, strict=True))
            last, shown_last = pairs[-1]
            all_tokens = torch.stack([F.mse_loss(own, other) for own, other in pairs]).mean()
            losses.append(all_tokens + F.mse_loss(last[:, 0], shown_last[:, 0]))
        return torch.stack(losses).mean()


def _upper(
    encoder: DeformerEncoder, states: tuple[ContextState, CandidateState], row: int, t: int, column: int, k: int
) -> list[Tensor]:
    """Return the outputs of all upper layers over one pair, (1, T + K, D) each."""
    context, candidate = states[0].late, states[1].late
    assert context is not None
    assert candidate is not None
    own = candidate[column : column + 1, :k].float()
    return encoder.upper_outputs(context[row, :t].float(), own, torch.ones_like(own[..., 0], dtype=torch.bool))
