"""What encoders of contexts and candidates apart share: the two transformers, and the vectors of the first stage.

Axes: B contexts, N candidates, T tokens, M context vectors, K rows of a candidate, D dimensions.
"""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyrank.model.architectures.attention import ContextCodes, attended_vectors, one_vector_each, poly_scores
from polyrank.model.architectures.backbone import Backbone, TensorBatch
from polyrank.model.architectures.batching import TokenBatch, pad
from polyrank.model.architectures.sums import Float64, StateSums, Unexplained, reduction_sums
from polyrank.model.config import DenseConfig, ModelConfig, Reduction
from polyrank.model.errors import InvalidInput
from polyrank.model.representations import LateRows
from polyrank.model.text.tokenizer import Tokenizer

First = TypeVar("First")


class SideState(NamedTuple, Generic[First]):
    """Contexts or candidates as scores read them."""

    first: First  # for the first stage: of contexts their codes, of candidates their vectors, (N, D1)
    late: Tensor | None = None  # rows for the second stage, (N, K, D2): of a context those of its tokens
    mask: Tensor | None = None  # which of these count, (N, K)

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        """`late` and `mask`, of an encoder with a second stage."""
        assert self.late is not None, "there is a second stage"
        assert self.mask is not None, "it goes with the rows"
        return self.late, self.mask


ContextState = SideState[ContextCodes]
CandidateState = SideState[Tensor]


class InnerTeacher(Protocol):
    """A teacher that shows what its layers do with pairs, which scores do not say."""

    def loss(
        self,
        contexts: Sequence[list[int]],
        candidates: Sequence[list[int]],
        listed: Sequence[tuple[int, int]],
        states: tuple[ContextState, CandidateState],
    ) -> Tensor:
        """Return how far the student is from it, the mean over pairs.

        contexts, candidates: token ids of a batch. listed: pairs that are taught, as places of a context and of a
        candidate among these. states: what the student makes of them.
        """


class VectorEncoder(nn.Module):
    """Encodes contexts and candidates apart, so that candidates can be encoded ahead (Humeau et al. 4.2).

    A back-end runs the transformer of a side and its `..._outputs`. What follows has no weights and reads the config
    alone, so it also works on outputs of a compiled model. An architecture with a second stage overrides `late_rows`,
    `second_scores` and `late_cost`, and makes states with `late`.

    Attributes:
        candidate: the transformer of candidates (T2); the same object where the encoder is shared.
        has_unit_vectors: its first stage compares unit vectors, whatever the config says.
        classes: from what is compared of a pair to logits of its classes; None: the model ranks.
        first_classes: the same of the first stage's vectors, where `counts_first_stage`; else None.
    """

    has_unit_vectors = False

    def __init__(self, config: ModelConfig, context: Backbone, candidate: Backbone) -> None:
        super().__init__()
        self.config = config
        self.context = context
        self.candidate = candidate
        self.dense = nn.ModuleList(map(Dense, config.dense))
        self.classes: nn.Module | None = None
        self.first_classes: nn.Module | None = None
        if config.head_classes:
            self.classes = self.class_head(config, context.dim)
            if self.counts_first_stage(config):  # it begins as its first stage
                self.first_classes = ClassHead(3 * self.first_dim(config, context.dim), config.head_classes)
                for parameter in list(self.classes.parameters())[-2:]:
                    nn.init.zeros_(parameter)

    @classmethod
    def build(cls, config: ModelConfig, backbone: Callable[[], Backbone]) -> Self:
        """Build it from new transformers; weights are still random."""
        context = backbone()
        return cls(config, context, context if config.shared_encoder else backbone())

    @classmethod
    def complete(cls, config: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
        """Fill in what the tokenizer says of what the architecture alone has, whose default is there; here nothing."""
        return config

    def begin(self) -> None:
        """Begin its own tensors with the transformers' weights, which have just been loaded; here there are none."""

    def inner_teacher(self, name: str, teacher: nn.Module, tokenizer: Tokenizer) -> InnerTeacher:
        """Return what a teacher of that name shows beside its scores, for `inner_weight` of training.

        Raises InvalidInput where it does not fit; here none does.
        """
        raise InvalidInput(f"inner-weight: {name} shows nothing beside its scores that this architecture is taught")

    @property
    def longest_input(self) -> int:
        """Tokens of the longest sequence that a transformer reads."""
        return max(self.config.max_context_tokens, self.config.max_candidate_tokens)

    def encode_contexts(self, batch: TensorBatch) -> ContextState:
        """Run the context side; the batch comes from `context_batch`."""
        outputs = self.context_outputs(self.context_tokens(batch), batch.mask)
        return self.context_state(self.config, outputs, batch)

    def encode_candidates(self, batch: TensorBatch) -> CandidateState:
        """Run the candidate side; the batch comes from `candidate_batch`."""
        outputs = self.candidate_outputs(self.candidate_tokens(batch), batch.mask)
        return self.candidate_state(self.config, outputs, batch)

    @classmethod
    def context_batch(cls, config: ModelConfig, contexts: Sequence[Sequence[int]], pad_id: int) -> TokenBatch:
        """Lay out tokenised contexts as the transformer is to read them."""
        return pad(contexts, pad_id)

    @classmethod
    def candidate_batch(cls, config: ModelConfig, candidates: Sequence[Sequence[int]], pad_id: int) -> TokenBatch:
        """Lay out tokenised candidates as the transformer is to read them."""
        return pad(candidates, pad_id)

    def context_tokens(self, batch: TensorBatch) -> Tensor:
        """Return token states of contexts, (B, T, W); W is `context_width`."""
        states: Tensor = self.context(batch)
        return states

    def candidate_tokens(self, batch: TensorBatch) -> Tensor:
        """Return token states of candidates, (N, T, W); W is `candidate_width`."""
        states: Tensor = self.candidate(batch)
        return states

    @property
    def context_width(self) -> int:
        """W, the size of a token state of `context_tokens`."""
        return self.context.dim

    def context_outputs(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Turn token states into tensors of contexts: first rows (B, R, E), then which of them exist, (B, R)."""
        return self.context_codes(states, mask)

    @property
    def candidate_width(self) -> int:
        """The size of a token state of `candidate_tokens`."""
        return self.candidate.dim

    def candidate_outputs(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Turn token states into tensors of candidates; a second one, if any, says which rows exist, (N, K)."""
        return (self.reduce(states, mask),)

    @classmethod
    def context_state(cls, config: ModelConfig, outputs: tuple[Tensor, ...], batch: TensorBatch) -> ContextState:
        """Make the states of contexts of what `context_outputs` gave."""
        vectors, present = outputs
        return ContextState(ContextCodes(vectors, present))

    @classmethod
    def candidate_state(cls, config: ModelConfig, outputs: tuple[Tensor, ...], batch: TensorBatch) -> CandidateState:
        """Make the states of candidates of what `candidate_outputs` gave."""
        return CandidateState(outputs[0])

    @classmethod
    def first_dim(cls, config: ModelConfig, dim: int) -> int:
        """Return D1, the size of a first-stage vector, of a transformer whose states have `dim` components."""
        return config.vector_dim(dim)

    @classmethod
    def late_rows(cls, config: ModelConfig, dim: int) -> LateRows | None:
        """Say what is kept of each candidate for the second stage; arguments as `first_dim`. None: there is none."""
        return None

    @classmethod
    def late_cost(cls, config: ModelConfig, dim: int, context_tokens: int, rows: int) -> float:
        """Return how many multiplications scoring a candidate of so many rows takes in the second stage."""
        return 0.0

    def context_codes(self, states: Tensor, mask: Tensor) -> ContextCodes:
        """Return the context vectors, (B, M, D), with the score scale multiplied in, and which exist, (B, M).

        states: token states of contexts, (B, T, D). mask: (B, T). Here each context has one vector.
        """
        vectors = self.reduce(states, mask)
        vectors = unit_length(vectors) if self.has_unit_vectors else vectors
        return one_vector_each(vectors * self.config.score_scale)

    def first_scores(self, contexts: ContextState, candidates: CandidateState) -> Tensor:
        """Score every candidate for every context by the first stage, (B, N)."""
        return poly_scores(contexts.first, candidates.first)

    def late_scores(self, contexts: ContextState, candidates: CandidateState) -> Tensor:
        """Score every candidate for every context by what places it, (B, N), without an encoder call.

        That is the second stage's score, to which a residual one adds the first stage's; or this alone.
        """
        second = self.second_scores(contexts, candidates)
        if second is None:
            return self.first_scores(contexts, candidates)
        return second + self.first_scores(contexts, candidates) if self.counts_first_stage(self.config) else second

    def second_scores(self, contexts: ContextState, candidates: CandidateState) -> Tensor | None:
        """Score every candidate for every context by the second stage alone, (B, N); None: there is none."""
        return None

    @classmethod
    def counts_first_stage(cls, config: ModelConfig) -> bool:
        """Say whether scores and logits of a second stage are added to those of the first."""
        return False

    @classmethod
    def class_head(cls, config: ModelConfig, dim: int) -> nn.Module:
        """Make what turns what `compared` gives into logits; arguments as `first_dim`."""
        return ClassHead(3 * cls.first_dim(config, dim), config.head_classes)

    def compared(self, contexts: ContextState, candidates: CandidateState) -> Tensor:
        """Return what tells the classes of one context with each of N candidates, (N, F).

        Here that is what the first stage compares.
        """
        return self.first_compared(contexts, candidates)

    def first_compared(self, contexts: ContextState, candidates: CandidateState) -> Tensor:
        """Return [x; y; |x - y|], (N, 3 D1): y is the candidate's vector, x the context vector that it attends to."""
        attended = attended_vectors(contexts.first, candidates.first)[0] / self.config.score_scale
        return side_by_side(attended, candidates.first)

    def class_logits(self, contexts: ContextState, candidates: CandidateState) -> Tensor:
        """Return the logits of the classes of one context with each of N candidates, (N, C)."""
        assert self.classes is not None, "it is a classifier"
        logits: Tensor = self.classes(self.compared(contexts, candidates))
        if self.first_classes is None:
            return logits
        first: Tensor = self.first_classes(self.first_compared(contexts, candidates))
        return logits + first

    @classmethod
    def unexplained(cls, config: ModelConfig) -> dict[Unexplained, str]:
        """Say which parts of its scores are no sums over tokens, and why, as ends of sentences."""
        found: dict[Unexplained, str] = {}
        if any(dense.bias or dense.activation != "identity" for dense in config.dense):
            why = "a Dense layer with a bias or an activation follows the mean of the tokens, so it is no sum over them"
            found = {"tokens": why, "reply_tokens": why}
        elif config.reduction in ("first", "last"):
            why = f"a reply's vector is the {config.reduction} output alone, which has read all tokens"
            found["reply_tokens"] = why
        return found

    @classmethod
    def context_layout(cls, config: ModelConfig, count: int) -> list[int | None]:
        """Return which of a context's tokens each position of `context_batch` holds; None: one that was added.

        count: how many tokens it has.
        """
        return [*range(count)]

    @classmethod
    def candidate_layout(cls, config: ModelConfig, ids: Sequence[int]) -> tuple[list[int | None], list[bool]]:
        """Return the same of `candidate_batch`, and whether a row is kept of each position."""
        return [*range(len(ids))], [True] * len(ids)

    def explained_pairs(self, context: Tensor, candidate: Tensor) -> Tensor | None:
        """Return what each of a context's rows (T, E) and a candidate's (K, E) add to the score, (T, K), float64.

        None: the second stage is no sum over pairs of them, or there is none.
        """
        return None

    def context_sums(self, states: Float64) -> StateSums:
        """Return the first stage's vectors of one context as sums over its tokens.

        states: what `context_tokens` gives for it, without padding, (T, W).
        """
        return self._reduction_sums(states[:, : self.context.dim])._replace(scale=self.config.score_scale)

    def candidate_sums(self, states: Float64) -> StateSums:
        """Return the first stage's vector of one candidate as a sum over its tokens; states as `context_sums`."""
        return self._reduction_sums(states[:, : self.candidate.dim])

    def _reduction_sums(self, states: Float64) -> StateSums:
        weights, values = reduction_sums(self.config.reduction, self.config.reduction_m, states)
        for dense in self.dense:
            assert isinstance(dense, Dense)
            values = values @ as_numpy(dense.linear.weight).T
        return StateSums(weights, values, unit=self.config.normalize or self.has_unit_vectors)

    def reduce(self, states: Tensor, mask: Tensor) -> Tensor:
        """red(): reduce token states (B, T, D) to one vector each, (B, D1) float32 (Humeau et al. 4.2, Table 7)."""
        if self.config.reduction == "first-m mean":
            states, mask = states[:, : self.config.reduction_m], mask[:, : self.config.reduction_m]
        reduced = reduced_by(self.config.reduction, states, mask)
        for dense in self.dense:
            reduced = dense(reduced)
        return unit_length(reduced) if self.config.normalize else reduced


def as_numpy(tensor: Tensor) -> Float64:
    """Copy a tensor, a weight too, to main memory."""
    copied: Float64 = tensor.detach().cpu().double().numpy()
    return copied


def second_stage_unexplained(why: str, counts_first_stage: bool) -> dict[Unexplained, str]:
    """Say that a second stage is no sum over tokens, nor is the whole score unless the first stage's is part of it."""
    if counts_first_stage:
        return {"second_stage": why}
    return {"second_stage": why, "tokens": why, "reply_tokens": why}


class ClassHead(nn.Sequential):
    """From F features of a pair to logits of C classes: `Linear(F, F), ReLU, dropout 0.1, Linear(F, C)`."""

    def __init__(self, size: int, count: int) -> None:
        super().__init__(nn.Linear(size, size), nn.ReLU(), nn.Dropout(0.1), nn.Linear(size, count))


def score_head(size: int, zero: bool) -> nn.Linear:
    """Make a linear map to a score; `zero`: it adds nothing to the first stage's in the beginning."""
    head = nn.Linear(size, 1)
    if zero:
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    return head


def side_by_side(x: Tensor, y: Tensor) -> Tensor:
    """Return [x; y; |x - y|] along the last axis."""
    return torch.cat([x, y, (x - y).abs()], dim=-1)


class Dense(nn.Module):
    """A linear map and the function after it, as sentence-transformers' module of that name."""

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.inputs, config.outputs, config.bias)
        self._activation = _ACTIVATIONS[config.activation]

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors (..., inputs) to (..., outputs)."""
        return self._activation(self.linear(vectors))


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": nn.Identity(),
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
}


def reduced_by(reduction: Reduction, states: Tensor, mask: Tensor) -> Tensor:
    """Reduce token states (B, T, D) with a mask (B, T) to one vector each, (B, D) float32.

    "all-but-first mean" leaves out [CLS] (Appendix B); of a single token it is that token. Beside the paper's these are
    the poolings of sentence-transformers: "mean-sqrt-len" divides the sum by the square root of the length,
    "weighted-mean" weighs a token by its place, counted from 1.
    """
    states = states.float()
    if reduction == "all-but-first mean":
        is_only = ~mask[:, 1:].any(dim=1, keepdim=True)
        return masked_mean(states, torch.cat([is_only & mask[:, :1], mask[:, 1:]], dim=1))
    if reduction == "first":
        return states[:, 0]
    if reduction == "last":
        places = (mask * torch.arange(mask.shape[1], device=mask.device)).argmax(dim=1)
        return states.gather(1, places[:, None, None].expand(-1, 1, states.shape[-1]))[:, 0]
    if reduction == "max":
        return states.masked_fill(~mask[..., None], float("-inf")).amax(dim=1)
    if reduction == "mean-sqrt-len":
        return masked_mean(states, mask) * mask.float().sum(dim=1, keepdim=True).sqrt()
    if reduction == "weighted-mean":
        weights = mask * torch.arange(1.0, mask.shape[1] + 1, device=mask.device)
        return (states * weights[..., None]).sum(dim=1) / weights.sum(dim=1, keepdim=True).clamp(min=1.0)
    return masked_mean(states, mask)


def masked_mean(rows: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the rows (..., K, D) whose mask (..., K) is True, (..., D) float32; zero if none is."""
    weights = mask[..., None].float()
    return (rows.float() * weights).sum(dim=-2) / weights.sum(dim=-2).clamp(min=1.0)


def unit_length(vectors: Tensor) -> Tensor:
    """Scale vectors along the last axis to length 1; zero vectors stay zero."""
    return F.normalize(vectors.float(), dim=-1)
