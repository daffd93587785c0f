"""Settings of a training run: one frozen value, validated, stored in the run's state and in its checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from pkgutil import resolve_name
from typing import Any, Literal

from polyrank.model.config import (
    ClassFrom,
    ContextVectors,
    DeformerConfig,
    MixConfig,
    MixPart,
    ModelConfig,
    Reduction,
    RowStrategy,
    VirtConfig,
)
from polyrank.model.errors import InvalidInput
from polyrank.model.registry import ARCHITECTURES, CLASSIFIERS, TASKS, TRAINED
from polyrank.model.training.bounds import BOUNDS
from polyrank.model.training.recipes import PRETRAINING, recipe_settings
from polyrank.model.training.schedule import Schedule

Loss = Literal["listwise", "pointwise"]
Optimizer = Literal["adamw", "adamax"]
Precision = Literal["no", "bf16", "fp16"]

_RESCALES = "output_like is for bi and poly"
_FOR_RANKING = {"teacher": "", "retriever": "", "first_stage": "", "loss": "listwise", "extra_replies": 0}
SCORE_FIELDS = (
    "context_vectors", "n_codes", "reduction", "reduction_m", "shared_encoder", "normalize", "code_scale", "score_scale"
)  # fmt: skip
MODEL_FIELDS = (*SCORE_FIELDS, "max_context_tokens", "max_candidate_tokens", "max_turns")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings that every architecture has. The defaults are ours; those of papers are recipes (recipes.py).

    Each objective adds its own settings, and the rules for them, in a subclass; `TrainConfig.of` chooses the subclass.
    The `refusal` of such a setting is the error message where it is given for an architecture that has no use for it.

    Attributes:
        base: a base model, or a checkpoint to go on from.
        recipe: the one that gave the settings which were not given; empty: the defaults did.
        task: to rank replies, or to tell the classes of pairs or of single texts.
        labels: the classes; `train` finds them in the files.
        class_from: what tells them, as in ModelConfig; it follows from the files, too.
        steps: optimizer steps; None: `epochs` times the examples.
        epochs: passes over the training examples.
        batch_size: examples in a batch, for each process.
        accumulate: batches whose gradients are added up for one step.
        negatives: how many of an example's listed negatives a step uses, drawn if there are more; see the objective. 0:
            only those of the batch.
        extra_replies: replies of this many other examples join a batch as negatives of all its rows. They are cheap
            where replies are much shorter than contexts.
        learning_rate: the rate at the end of warm-up.
        code_learning_rate: the rate of parameters that are drawn at random: codes and the Cross-encoder's head.
        weight_decay: of matrices. None: 0.01, and with Adamax 0, as in Humeau et al. 5.1.
        beta2: how slowly the optimizer forgets squares of gradients.
        warmup_steps: in which the rate rises to learning_rate.
        schedule: of the rate behind them, as in LearningRate.
        looks: how often in an epoch the selection slice is evaluated.
        patience: stop after this many looks without improvement; 0: never.
        tune: all, all-but-embeddings (best in Humeau et al., Table 3), or top-N layers.
        lora_rank: train adapters of this rank instead of the weights; 0: the weights.
        dropout: of the transformer; None: as its config.json says. 0 makes a step on a CPU twice as fast.
        chunk_tokens: padded tokens that are encoded at a time; a chunk holds sequences of similar length.
        gradient_cache: keep one chunk's graph in memory at a time, at the price of a second forward.
        gradient_checkpointing: keep one layer's activations in memory at a time, at the same price.
        precision: of autocast.
        seed: of initialisation, shuffling and dropout.
        context_vectors, n_codes, reduction, reduction_m, shared_encoder, normalize, code_scale, score_scale,
        max_context_tokens, max_candidate_tokens, max_turns: as in ModelConfig. None: as in the first stage; without
            one, as in the checkpoint to go on from; without either, what suits a sentence encoder
            (polyrank.model.training.student.student).
    """

    architecture: str
    base: str
    recipe: str = ""
    task: str = TASKS[0]
    labels: Sequence[str] = ()
    class_from: ClassFrom = "head"
    steps: int | None = None
    epochs: float = 3.0
    batch_size: int = 32
    accumulate: int = 1
    negatives: int = 7
    extra_replies: int = 0
    learning_rate: float = 5e-5
    code_learning_rate: float = 1e-3
    optimizer: Optimizer = "adamw"
    weight_decay: float | None = None
    beta2: float = 0.999
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
    reduction_m: int | None = None
    shared_encoder: bool | None = None
    normalize: bool | None = None
    code_scale: float | None = None
    score_scale: float | None = None
    max_context_tokens: int | None = None
    max_candidate_tokens: int | None = None
    max_turns: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))  # read from a file they are a list
        if self.weight_decay is None:
            object.__setattr__(self, "weight_decay", 0.0 if self.optimizer == "adamax" else 0.01)
        for name, bounds in BOUNDS.items():  # of some ModelConfig has its own, whose message would name a missing file
            value = getattr(self, name, None)
            require(value is None or bounds.hold(value), f"{name} must be {bounds}")
        require(self.task in TASKS, f"task is {self.task!r}; give {' or '.join(TASKS)}")
        able = self.task == "rank" or self.architecture in CLASSIFIERS
        require(able, f"task classify is for {', '.join(CLASSIFIERS)}, not for {self.architecture}")
        for name, default in _FOR_RANKING.items() if self.task == "classify" else ():
            require(getattr(self, name, default) == default, f"{name} is for task rank")

    @staticmethod
    def of(*, architecture: str, **options: Any) -> "TrainConfig":
        """Build the settings that the architecture's objective wants.

        An option of another objective is left out, or refused where it has a `refusal` and is not the default. What is
        not given is as the recipe says, if there is one, or the default.

        Raises InvalidInput for values and combinations that make no sense.
        """
        require(architecture in TRAINED, f"architecture is {architecture!r}; give {', '.join(TRAINED)}")
        if options.get("recipe"):
            options = recipe_settings(options["recipe"], architecture, options["base"]) | options
        kind = _settings_of(architecture)
        own = {setting.name for setting in fields(kind)}
        for name, known in _options().items():
            if name in options and name not in own:
                refusal = known.metadata.get("refusal")
                require(options.pop(name) == known.default or refusal is None, f"{refusal}")
        return kind(architecture=architecture, **options)

    def blocks(self, source: ModelConfig) -> dict[str, Any]:
        """Return the fields of ModelConfig that this architecture alone has, of a model that begins as `source`."""
        return {}

    @staticmethod
    def option_names() -> set[str]:
        """Return the names of all settings, those of every objective included."""
        return set(_options())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as they are stored."""
        return asdict(self)

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """Name the settings that differ from a stored run's."""
        return [name for name, value in asdict(self).items() if _as_json(stored.get(name)) != _as_json(value)]


def _as_json(value: Any) -> Any:
    """Return a setting as a checkpoint keeps it: there a tuple is a list."""
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, kw_only=True)
class LateTrainConfig(TrainConfig):
    """Settings of an encoder that keeps both sides apart.

    The batch's other replies are each row's negatives; listed ones join them.

    Attributes:
        teacher: a model of any architecture with a network to distil from; empty: none.
        teacher_weight: share of the distillation in the loss, from 0 to 1.
        teacher_temperature: by which both models' scores are divided before they are compared; the loss is multiplied
            by its square (Hinton et al. 2015).
        output_like: a model; outputs begin with the standard deviation of its outputs (student/rescaling.py). Empty:
            they begin as they are.
    """

    teacher: str = field(
        default="", metadata={"refusal": "a teacher teaches models that encode candidates apart, not cross"}
    )
    teacher_weight: float = 0.5
    teacher_temperature: float = 1.0
    output_like: str = field(default="", metadata={"refusal": _RESCALES})

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not (self.output_like and self.lora_rank), "output_like changes whole weights; train without lora_rank")
        require(
            not self.teacher or self.negatives >= 1, "negatives must be at least 1 with a teacher, which scores them"
        )
        require(self.batch_size >= 2, "batch_size must be at least 2: the others are the negatives")


@dataclass(frozen=True, kw_only=True)
class TwoStageTrainConfig(LateTrainConfig):
    """Settings of an encoder with a second stage.

    Attributes:
        first_weight: weight of the first stage's own loss; 0: none.
    """

    first_weight: float = field(default=1.0, metadata={"refusal": "first_weight is for models with a second stage"})

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.output_like, _RESCALES)


_FOR_MIX = {"refusal": "rows, row_strategy, interaction_layers and without are for mix"}
_RESIDUAL = {"refusal": "no_residual is for deformer, mix and virt"}


@dataclass(frozen=True, kw_only=True)
class InnerTrainConfig(TwoStageTrainConfig):
    """Settings of an encoder that a teacher may show more than its scores.

    Attributes:
        inner_weight: weight of the loss towards what the teacher's layers do with each gold and listed pair
            (objectives/inner.py); 0: none.
    """

    inner_weight: float = field(default=0.0, metadata={"refusal": "inner_weight is for deformer and virt"})

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.inner_weight or bool(self.teacher), "inner_weight goes with a teacher")


@dataclass(frozen=True, kw_only=True)
class DeformerTrainConfig(InnerTrainConfig):
    """Settings of a Deformer.

    Attributes:
        upper_layers: `upper` of DeformerConfig.
        residual: as there. None for either: as in the checkpoint to go on from, or DeformerConfig's default.
    """

    upper_layers: int | None = field(default=None, metadata={"refusal": "upper_layers is for deformer"})
    residual: bool | None = field(default=None, metadata=_RESIDUAL)

    def blocks(self, source: ModelConfig) -> dict[str, Any]:
        """Return the DeformerConfig of the model to train."""
        given = {name: getattr(self, own) for name, own in (("upper", "upper_layers"), ("residual", "residual"))}
        given = {name: value for name, value in given.items() if value is not None}
        return {"deformer": replace(source.deformer or DeformerConfig(), **given)}


@dataclass(frozen=True, kw_only=True)
class MixTrainConfig(TwoStageTrainConfig):
    """Settings of a MixEncoder.

    Attributes:
        rows, row_strategy, interaction_layers, without: `rows`, `strategy`, `layers` and `without` of MixConfig. None:
            as in the checkpoint to go on from, or MixConfig's default.
        residual: likewise.
    """

    rows: int | None = field(default=None, metadata=_FOR_MIX)
    row_strategy: RowStrategy | None = field(default=None, metadata=_FOR_MIX)
    interaction_layers: Sequence[int] | None = field(default=None, metadata=_FOR_MIX)
    without: MixPart | None = field(default=None, metadata=_FOR_MIX)
    residual: bool | None = field(default=None, metadata=_RESIDUAL)

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = self.interaction_layers
        require(
            layers is None or (len(layers) > 0 and 0 not in layers),
            "interaction_layers must name layers: the first is 1, the last -1",
        )

    def blocks(self, source: ModelConfig) -> dict[str, Any]:
        """Return the MixConfig of the model to train."""
        asked = {"rows": self.rows, "strategy": self.row_strategy, "residual": self.residual, "without": self.without}
        layers = None if self.interaction_layers is None else tuple(self.interaction_layers)
        given: dict[str, Any] = {
            name: value for name, value in {**asked, "layers": layers}.items() if value is not None
        }
        return {"mix": replace(source.mix or MixConfig(), **given)}


@dataclass(frozen=True, kw_only=True)
class VirtTrainConfig(InnerTrainConfig):
    """Settings of a VIRT.

    Attributes:
        residual: as in VirtConfig. None: as in the checkpoint to go on from, or VirtConfig's default.
    """

    residual: bool | None = field(default=None, metadata=_RESIDUAL)

    def blocks(self, source: ModelConfig) -> dict[str, Any]:
        """Return the VirtConfig of the model to train."""
        block = source.virt or VirtConfig()
        return {"virt": block if self.residual is None else VirtConfig(residual=self.residual)}


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(TrainConfig):
    """Settings of pre-training, which reads context and reply as a Cross-encoder does.

    Attributes:
        mask_share: share of a sequence's words that are masked.
        alternate: batches learn words and replies in turns; otherwise each learns both.
        batch_tokens: a batch takes examples until it has so many tokens; 0: it takes batch_size examples.
    """

    architecture: str = "cross"
    epochs: float = 1.0
    learning_rate: float = 1e-4
    schedule: Schedule = "linear"
    tune: str = "all"
    mask_share: float = 0.15
    alternate: bool = False
    batch_tokens: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.batch_size >= 2, "batch_size must be at least 2: wrong replies are those of others")

    @staticmethod
    def with_recipe(*, base: str, **options: Any) -> "PretrainConfig":
        """Build the settings; what is not given is as the recipe says, if there is one, or the default.

        Raises InvalidInput for values that make no sense.
        """
        if options.get("recipe"):
            options = recipe_settings(options["recipe"], PRETRAINING, base) | options
        return PretrainConfig(base=base, **options)


@dataclass(frozen=True, kw_only=True)
class PairTrainConfig(TrainConfig):
    """Settings of a Cross-encoder. `negatives` is how many candidates each row has besides the gold reply.

    Attributes:
        retriever: a Bi- or Poly-encoder checkpoint that picks negatives among the batch's replies: those that it ranks
            highest, and one that is drawn; empty: all are drawn.
        first_stage: a Poly-encoder checkpoint to whose scores the Cross-encoder adds; empty: none.
        loss: listwise (LCE) or pointwise (BCE).
    """

    retriever: str = field(default="", metadata={"refusal": "a retriever picks the negatives of cross alone"})
    first_stage: str = field(default="", metadata={"refusal": "a first stage is for cross"})
    loss: Loss = field(default="listwise", metadata={"refusal": "the pointwise loss is for cross"})

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.negatives >= 1, "negatives must be at least 1")
        least = "negatives must be at least 2 with a retriever: one is drawn"
        require(not self.retriever or self.negatives >= 2, least)
        for name in SCORE_FIELDS if self.first_stage else ():
            require(getattr(self, name) is None, f"{name} is as the first stage has it; leave it out")


def _options() -> dict[str, Field[Any]]:
    return {setting.name: setting for row in TRAINED for setting in fields(_settings_of(row))}


def _settings_of(architecture: str) -> type[TrainConfig]:
    objective = ARCHITECTURES[architecture].objective
    assert objective is not None, "one of TRAINED"
    kind: type[TrainConfig] = resolve_name(objective).settings
    return kind


def require(holds: bool, message: str) -> None:
    """Raise InvalidInput with that message; settings in it are written as options."""
    if not holds:
        raise InvalidInput(message.replace("_", "-"))
