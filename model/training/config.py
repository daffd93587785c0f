"""What a training run is told: one frozen value, validated, written into its state and its checkpoint."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from polyrank.model.config import Architecture, ContextVectors, Reduction
from polyrank.model.errors import InvalidInput
from polyrank.model.training.schedule import Schedule

Loss = Literal["listwise", "pointwise"]
Optimizer = Literal["adamw", "adamax"]
Precision = Literal["no", "bf16", "fp16"]


_SCORE_FIELDS = (
    "context_vectors", "n_codes", "reduction", "shared_encoder", "normalize", "code_scale", "score_scale"
)  # fmt: skip
MODEL_FIELDS = (*_SCORE_FIELDS, "max_context_tokens", "max_candidate_tokens", "max_turns")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Settings of one run. The defaults are the recipe of Humeau et al. 5, for a CPU-sized batch.

    Attributes:
        architecture: bi, poly or cross.
        base: a base model, or a checkpoint to go on from.
        steps: optimizer steps; None: `epochs` times the examples.
        epochs: passes over the training examples.
        batch_size: examples a step and process; each is a negative for the others (Bi, Poly).
        accumulate: batches whose gradients are added up for one step.
        negatives: listed negatives taken from each example; for a Cross-encoder candidates beside the gold one.
        extra_replies: replies of so many other examples go with a batch, as negatives of all its rows: where replies
            are much shorter than contexts they are cheap ones.
        retriever: a Bi- or Poly-encoder checkpoint that picks a Cross-encoder's negatives among the batch's replies,
            the ones it ranks highest, but one that is drawn; empty: all are drawn.
        first_stage: a Poly-encoder checkpoint to whose scores a Cross-encoder adds (residual.py); empty: none.
        loss: listwise (in-batch, LCE) or pointwise (BCE, Cross-encoder only).
        teacher: a Cross-encoder checkpoint to distil from; empty: none.
        teacher_weight: share of the distillation in the loss.
        learning_rate: at the end of warm-up.
        code_learning_rate: of what is drawn at random: codes and the Cross-encoder's head.
        optimizer: adamw or adamax.
        weight_decay: 0.01 in the paper, for public weights.
        warmup_steps: 100 in the paper (Bi, Poly), 1000 (Cross).
        schedule: plateau (the paper: times 0.4), linear, cosine, constant.
        looks: how often an epoch the selection slice is looked at; 2 in the paper.
        patience: stop after so many looks without improvement; 0: never.
        tune: all, all-but-embeddings (the paper's best), or top-N layers.
        lora_rank: train adapters of this rank instead of the weights; 0: the weights.
        dropout: of the transformer; None: as its config.json says. 0 makes a step on a CPU twice as fast.
        chunk_tokens: padded tokens encoded at a time; sequences of like length go together.
        gradient_cache: keep one chunk's graph in memory at a time, at the price of a second forward.
        gradient_checkpointing: keep one layer's activations at a time, likewise.
        precision: no, bf16 or fp16 (autocast).
        seed: of initialisation, shuffling and dropout.
        context_vectors, n_codes, reduction, shared_encoder, normalize, code_scale, score_scale,
        max_context_tokens, max_candidate_tokens, max_turns: the checkpoint's (ModelConfig). None: as the
            first stage has it, else the checkpoint to go on from, or what suits a sentence encoder
            (polyrank.model.training.student.student).
    """

    architecture: Architecture
    base: str
    steps: int | None = None
    epochs: float = 3.0
    batch_size: int = 32
    accumulate: int = 1
    negatives: int = 7
    extra_replies: int = 0
    retriever: str = ""
    first_stage: str = ""
    loss: Loss = "listwise"
    teacher: str = ""
    teacher_weight: float = 0.5
    learning_rate: float = 5e-5
    code_learning_rate: float = 1e-3
    optimizer: Optimizer = "adamw"
    weight_decay: float = 0.01
    warmup_steps: int = 100
    schedule: Schedule = "plateau"
    looks: float = 2.0
    patience: int = 0
    tune: str = "all-but-embeddings"
    lora_rank: int = 0
    dropout: float | None = None
    chunk_tokens: int = 4096
    gradient_cache: bool = False
    gradient_checkpointing: bool = False
    precision: Precision = "no"
    seed: int = 0
    context_vectors: ContextVectors | None = None
    n_codes: int | None = None
    reduction: Reduction | None = None
    shared_encoder: bool | None = None
    normalize: bool | None = None
    code_scale: float | None = None
    score_scale: float | None = None
    max_context_tokens: int | None = None
    max_candidate_tokens: int | None = None
    max_turns: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "accumulate", "negatives", "chunk_tokens"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1")
        for name in ("epochs", "learning_rate", "code_learning_rate", "looks"):
            _require(0 < getattr(self, name) < math.inf, f"{name} must be above 0 and finite")
        for name in ("extra_replies", "weight_decay", "warmup_steps", "patience", "lora_rank"):
            _require(getattr(self, name) >= 0, f"{name} must not be negative")
        _require(self.steps is None or self.steps >= 1, "steps must be at least 1")
        _require(self.dropout is None or 0 <= self.dropout < 1, "dropout must be at least 0 and below 1")
        _require(0 <= self.teacher_weight <= 1, "teacher_weight must lie between 0 and 1")
        for name, least in (("n_codes", 1), ("max_turns", 1), ("max_context_tokens", 8), ("max_candidate_tokens", 8)):
            value = getattr(self, name)  # as in ModelConfig, whose message would name a file that is not there yet
            _require(value is None or value >= least, f"{name} must be at least {least}")
        for name in ("code_scale", "score_scale"):
            value = getattr(self, name)
            _require(value is None or 0 < value < math.inf, f"{name} must be above 0 and finite")
        _require(0 <= self.seed < 2**63, "seed must be at least 0 and below 2**63")
        self._require_what_goes_together()

    def _require_what_goes_together(self) -> None:
        late = self.architecture != "cross"
        _require(not late or self.batch_size >= 2, "batch_size must be at least 2: the others are the negatives")
        _require(not late or self.loss == "listwise", "the pointwise loss is for cross")
        _require(not late or not self.retriever, "a retriever picks the negatives of cross, not of bi and poly")
        _require(
            not self.retriever or self.negatives >= 2, "negatives must be at least 2 with a retriever: one is drawn"
        )
        _require(not late or not self.first_stage, "a first stage is for cross")
        for name in _SCORE_FIELDS if self.first_stage else ():
            _require(getattr(self, name) is None, f"{name} is as the first stage has it; leave it out")
        _require(late or not self.teacher, "a teacher teaches bi and poly, not cross")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they are stored."""
        return asdict(self)

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """Names of the settings that differ from a stored run's."""
        return [name for name, value in asdict(self).items() if stored.get(name) != value]


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidInput(message.replace("_", "-"))
