"""What a teacher shows beside its scores: a Cross-encoder's attention, or the upper states of a Deformer.

Axes: T tokens of a context, K tokens of a candidate, H heads, D dimensions.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from polyrank.model.architectures.backbone import Backbone
from polyrank.model.architectures.batching import TokenBatch, pad
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.deformer import DeformerEncoder
from polyrank.model.architectures.late import CandidateState, ContextState, LateEncoder
from polyrank.model.architectures.layers import layers_of
from polyrank.model.errors import CheckpointInvalid, InvalidInput
from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.rankers.late import LateRanker
from polyrank.model.rankers.networks import NetworkRanker
from polyrank.model.text.assembly import Assembler, Conversation
from polyrank.model.training.config import InnerTrainConfig, TrainConfig
from polyrank.model.training.data.words import PairWords
from polyrank.model.training.objectives.late import Tokens, TwoStageObjective
from polyrank.model.training.student.student import Student

_PROBE = Conversation.of("The quick brown fox, 12345: naïve!")  # texts of one tokenizer give these tokens
_TINY = 1e-12  # keeps the gradient of a root finite

Listed = Sequence[tuple[int, int]]
"""Pairs that are taught, as places of a context and of a candidate in the batch."""


class InnerTeacher(Protocol):
    """A teacher that shows what its layers do with pairs."""

    def loss(self, tokens: Tokens, listed: Listed, states: tuple[ContextState, CandidateState]) -> Tensor:
        """Return how far the student is from it, the mean over the pairs.

        tokens: of the batch. states: what the student makes of them.
        """


class AttentionTeacher:
    """A Cross-encoder, whose attention between context and candidate a VIRT is taught (Li et al. 2021).

    The student never lets them attend to each other. Its *virtual* attention is made of both sides' own queries and
    keys, `softmax(Q_x K_y^T / sqrt(D / H))` and the reverse; the teacher's is that of the same layer, with its softmax
    over the other text alone. The loss is the Frobenius norm of the difference, the mean over layers and heads, for
    both directions.
    """

    def __init__(self, teacher: NetworkRanker, student: LateEncoder, assembler: Assembler) -> None:
        """Raise InvalidInput where the two do not fit each other."""
        if not isinstance(teacher.encoder, CrossEncoder):
            raise InvalidInput(f"inner-weight: {teacher.name} is no cross-encoder, whose attention virt is taught")
        self._teacher, self._student = teacher.encoder.encoder, student
        texts = [_PROBE.turns[0].text]
        assert isinstance(teacher, CrossRanker)
        _require_same(teacher, teacher.tokenize_pairs(_PROBE, texts)[0], assembler.pairs(_PROBE, texts)[0])
        self._tokenizer = assembler.tokenizer
        shapes = [(len(_layers(each)), _head_count(each)) for each in (self._teacher, student.context)]
        if shapes[0] != shapes[1]:
            raise InvalidInput(f"inner-weight: {teacher.name} has another number of layers or heads")

    def loss(self, tokens: Tokens, listed: Listed, states: tuple[ContextState, CandidateState]) -> Tensor:
        """Return the loss of the virtual attention; `states` are not read: they are those of the last layer."""
        contexts, candidates = tokens
        device = states[0].first.vectors.device
        columns = sorted({column for _, column in listed})
        own = [candidates[column] for column in columns]
        encoder = self._student
        read_x = _projections(encoder.context, pad(contexts, encoder.context.pad_id).to(device))
        read_y = _projections(encoder.candidate, pad(own, encoder.candidate.pad_id).to(device))
        joint = [self._joint(contexts[row], candidates[column]) for row, column in listed]
        begins = [begin for _, begin in joint]
        with torch.no_grad():
            shown = _projections(self._teacher, pad([ids for ids, _ in joint], self._teacher.pad_id, begins).to(device))
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


class StateTeacher:
    """A Deformer, best one whose layers are all upper ones, whose upper states another one is taught (Cao et al. 2020).

    The loss is the squared difference of the outputs of the student's upper layers and the teacher's last ones, the
    mean over layers, tokens and dimensions; to it is added that of the first output of the last layer.
    """

    def __init__(self, teacher: NetworkRanker, student: DeformerEncoder, assembler: Assembler) -> None:
        """Raise InvalidInput where the two do not fit each other."""
        encoder = teacher.encoder
        if not isinstance(encoder, DeformerEncoder):
            raise InvalidInput(f"inner-weight: {teacher.name} is no deformer, whose upper states a deformer is taught")
        self._teacher, self._student = encoder, student
        texts = [_PROBE.turns[0].text]
        assert isinstance(teacher, LateRanker)
        _require_same(teacher, teacher.tokenize_candidates(texts)[0], assembler.candidates(texts)[0])
        if encoder.context.dim != student.context.dim or len(encoder.upper) < len(student.upper):
            raise InvalidInput(f"inner-weight: {teacher.name} has states of another size, or fewer upper layers")

    def loss(self, tokens: Tokens, listed: Listed, states: tuple[ContextState, CandidateState]) -> Tensor:
        """Return the loss of the upper states."""
        contexts, candidates = tokens
        device = states[0].first.vectors.device
        teacher, pad_id = self._teacher, self._teacher.context.pad_id
        with torch.no_grad():
            shown = (
                teacher.encode_contexts(teacher.context_batch(teacher.config, contexts, pad_id).to(device)),
                teacher.encode_candidates(teacher.candidate_batch(teacher.config, candidates, pad_id).to(device)),
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


class InnerObjective(TwoStageObjective):
    """The loss of two stages, to which `inner_weight` times that of an inner teacher is added."""

    def __init__(
        self, student: Student, config: TrainConfig, device: torch.device, words: PairWords | None = None
    ) -> None:
        super().__init__(student, config, device, words)
        assert isinstance(config, InnerTrainConfig)
        self._inner_weight = config.inner_weight
        teacher = self._teacher if config.inner_weight else None
        self._inner = None if teacher is None else self.inner_teacher(teacher)

    @abstractmethod
    def inner_teacher(self, teacher: NetworkRanker) -> InnerTeacher:
        """Return what the teacher shows; raises InvalidInput where it does not fit the student."""

    def _inner_loss(self, tokens: Tokens, listed: Tensor, states: tuple[ContextState, CandidateState]) -> Tensor:
        if self._inner is None:
            return super()._inner_loss(tokens, listed, states)
        pairs = [(row, column) for row, column in listed.nonzero().tolist()]
        return self._inner_weight * self._inner.loss(tokens, pairs, states)


def _upper(
    encoder: DeformerEncoder, states: tuple[ContextState, CandidateState], row: int, t: int, column: int, k: int
) -> list[Tensor]:
    """Return the outputs of all upper layers over one pair, (1, T + K, D) each."""
    context, candidate = states[0].late, states[1].late
    assert context is not None
    assert candidate is not None
    own = candidate[column : column + 1, :k].float()
    return encoder.upper_outputs(context[row, :t].float(), own, torch.ones_like(own[..., 0], dtype=torch.bool))


def _projections(backbone: Backbone, batch: TokenBatch) -> list[tuple[Tensor, Tensor]]:
    """Return the queries and keys of each layer, (B, H, T, D / H) each."""
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


def _require_same(teacher: NetworkRanker, theirs: object, ours: object) -> None:
    """Refuse a teacher that reads other tokens of the same text."""
    if theirs != ours:
        raise InvalidInput(f"inner-weight: {teacher.name} has another tokenizer")
