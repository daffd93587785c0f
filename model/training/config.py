"""Settings of a training run: one frozen value, validated, stored in the run's state and in its checkpoint.

Each is described here once: command line, help and reference pages are made of the fields (model/options.py).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

from polyrank.model.config import ClassFrom, ContextVectors, Reduction
from polyrank.model.errors import CheckpointInvalid, InvalidInput
from polyrank.model.options import WIDEST, Block, Bounds, Option, option, options_of, out_of_bounds
from polyrank.model.registry import ARCHITECTURES, TASKS, Architecture, classifiers, listed, trainable
from polyrank.model.training.recipes import PRETRAINING, recipe_settings

Schedule = Literal["plateau", "linear", "cosine", "constant", "inverse-sqrt"]
Precision = Literal["auto", "no", "bf16", "fp16"]

_STEPS, _RATE, _SCALE, _TOKENS = Bounds(1, 10**9), Bounds(1e-30, 1e30), Bounds(1e-9, 1e6), Bounds(8, 1_000_000)
_WEIGHT, _EPOCHS, _COUNT, _BATCH = Bounds(0.0, 1e6), Bounds(0.0001, 1e6), Bounds(0, 10**9), Bounds(1, 1_000_000)
_TUNE = re.compile(r"all|all-but-embeddings|top-[1-9]\d*")
_FOR_RANKING = {"teacher": "", "words": "", "retriever": "", "first_stage": "", "loss": "listwise", "extra_replies": 0}
SCORE_FIELDS = (
    "context_vectors", "n_codes", "reduction", "reduction_m", "shared_encoder", "normalize", "code_scale", "score_scale"
)  # fmt: skip
STATE_FILE = "training-state.pt"
"""In the output of an unfinished run: all that it needs to go on (polyrank.model.training.state)."""
LOGS = "logs"
"""In the output of a run: the folder of its curves, for TensorBoard."""
MODEL_FIELDS = (*SCORE_FIELDS, "max_context_tokens", "max_candidate_tokens", "max_turns", "languages")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings that every architecture has. The defaults are ours; those of papers are recipes (recipes.py).

    A subclass adds those of a kind of architecture, with their rules, and `TrainConfig.of` those that the architecture
    alone has, the options of its Block. Settings of MODEL_FIELDS are those of ModelConfig; None: as in the first stage;
    without one, as in the checkpoint to go on from; without either, what suits a sentence encoder
    (polyrank.model.training.student).
    """

    architecture: str
    base: str
    recipe: str = option("", "a paper's settings, without words; options that you give replace them")
    task: Literal["rank", "classify"] = option("rank", "classify: tell the classes of pairs or texts")
    labels: Sequence[str] = ()  # the classes; `train` finds them in the files
    class_from: ClassFrom = "head"  # what tells them, as in ModelConfig; it follows from the files, too
    steps: int | None = option(None, "optimizer steps", _STEPS, otherwise="as epochs say")
    epochs: float = option(3.0, "passes over the examples", _EPOCHS)
    batch_size: int = option(32, "examples in a batch, for each process", _BATCH)
    accumulate: int = option(1, "batches whose gradients are added up for one step", _BATCH, metavar="N")
    negatives: int = option(
        7,
        "listed negatives of an example that join a batch; cross, uni: any",
        Bounds(0, 100_000),
        metavar="N",
    )
    extra_replies: int = option(
        0,
        "how many other examples give a batch their replies as negatives",
        Bounds(0, 1_000_000),
        metavar="N",
    )
    learning_rate: float = option(
        None, "the rate at the end of warm-up", _RATE, metavar="R", otherwise="5e-5, with lora-rank 5e-4"
    )
    code_learning_rate: float = option(
        1e-3, "the rate of what is drawn at random: codes, rows, heads", _RATE, metavar="R"
    )
    optimizer: Literal["adamw", "adamax"] = option("adamw", "the optimizer")
    weight_decay: float = option(
        None, "decay of matrices", Bounds(0.0, 1000.0), otherwise="0.01, with adamax 0 (Humeau et al. 5.1)"
    )
    beta2: float = option(0.999, "how slowly the optimizer forgets squares of gradients", Bounds(1e-6, 0.999999))
    warmup_steps: int = option(100, "steps in which the rate rises", _COUNT, metavar="N")
    schedule: Schedule = option("plateau", "of the rate after them")
    looks: float = option(2.0, "how often in an epoch the selection slice is evaluated", _EPOCHS, metavar="N")
    patience: int = option(0, "stop after N looks without improvement; 0: never", Bounds(0, 1_000_000), metavar="N")
    seed: int = option(0, "of initialisation, shuffling and dropout", Bounds(0, 2**63 - 1))
    dropout: float | None = option(
        None,
        "of the transformer; 0 makes a step on a CPU twice as fast",
        Bounds(0.0, 0.999),
        otherwise="the base model's",
    )
    tune: str = option(
        "all-but-embeddings",
        "all, all-but-embeddings (best in Humeau et al., Table 3), or top-N layers",
        group="memory",
    )
    lora_rank: int = option(
        0, "train adapters of this rank; 0: the weights", Bounds(0, WIDEST), metavar="R", group="memory"
    )
    chunk_tokens: int = option(4096, "padded tokens encoded at a time", Bounds(1, 10**9), metavar="N", group="memory")
    gradient_cache: bool = option(False, "large batches in small memory, for a second forward", group="memory")
    gradient_checkpointing: bool = option(
        False, "one layer's activations at a time, for a second forward", group="memory"
    )
    precision: Precision = option("auto", "of autocast; auto: bf16 where the processor has it", group="memory")
    context_vectors: ContextVectors | None = option(
        None, "poly: which ones (Humeau et al. 4.4, Appendix C)", start="codes"
    )
    n_codes: int | None = option(None, "poly: how many", Bounds(1, WIDEST), start=64, metavar="M")
    reduction: Reduction | None = option(None, "how token states become one vector", otherwise="the base model's")
    reduction_m: int | None = option(
        None, "how many outputs 'first-m mean' takes", Bounds(1, WIDEST), start=16, metavar="M"
    )
    shared_encoder: bool | None = option(None, "one transformer for both sides", start=False)
    normalize: bool | None = option(None, "compare vectors of unit length", start=True)
    code_scale: float | None = option(None, "factor on the products of codes and token states", _SCALE, start=20.0)
    score_scale: float | None = option(None, "factor on the products of vectors", _SCALE, start=20.0)
    max_context_tokens: int | None = option(None, "most tokens of a context", _TOKENS, start=256, metavar="N")
    max_candidate_tokens: int | None = option(None, "most tokens of a reply", _TOKENS, start=72, metavar="N")
    max_turns: int | None = option(
        None, "history window", Bounds(1, 1_000_000), otherwise="what the tokens allow", metavar="N"
    )
    languages: Sequence[str] | None = option(
        None, "of the files, ISO 639-1; a build says where a pool is in none", metavar="L"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))  # read from a file they are a list
        if self.languages is not None:
            object.__setattr__(self, "languages", tuple(self.languages))
        if self.learning_rate is None:
            object.__setattr__(self, "learning_rate", 5e-4 if self.lora_rank else 5e-5)
        if self.weight_decay is None:
            object.__setattr__(self, "weight_decay", 0.0 if self.optimizer == "adamax" else 0.01)
        _require_bounds(self)
        require(
            _TUNE.fullmatch(self.tune) is not None,
            f"tune is {self.tune!r}; give all, all-but-embeddings or top-N, N layers",
        )
        require(self.task in TASKS, f"task is {self.task!r}; give {' or '.join(TASKS)}")
        able = self.task == "rank" or self.architecture in classifiers()
        require(able, f"task classify is for {', '.join(classifiers())}, not for {self.architecture}")
        for name, default in _FOR_RANKING.items() if self.task == "classify" else ():
            require(getattr(self, name, default) == default, f"{name} is for task rank")
        try:
            self.own(None)
        except CheckpointInvalid as error:
            raise InvalidInput(self._by_option(str(error).removeprefix("polyrank.json: "))) from error

    def _by_option(self, message: str) -> str:
        """Return a message about the architecture's block with the names of its options."""
        kind = ARCHITECTURES[self.architecture].options
        assert kind is not None, "a block was refused"
        for each in options_of(kind):
            message = message.replace(f"{kind.of}.{each.field} ", f"{each.name.replace('_', '-')} ")
        return message

    @staticmethod
    def of(*, architecture: str, **options: Any) -> "TrainConfig":
        """Build the settings of an architecture.

        What is not given is as the recipe says, if there is one, or the default. A setting of other architectures is
        refused where it is not its default.

        Raises InvalidInput for values and combinations that make no sense.
        """
        require(architecture in trainable(), f"architecture is {architecture!r}; give {', '.join(trainable())}")
        kind = settings_of(architecture)
        own = {setting.name for setting in fields(kind)}
        if options.get("recipe"):
            asked = recipe_settings(options["recipe"], architecture, options["base"])
            options = {name: value for name, value in asked.items() if name in own} | options
        for name, (known, having) in TrainConfig.options().items():
            if name in options and name not in own:
                require(options.pop(name) == known.default, f"{name} is for {listed(having)}")
        return kind(architecture=architecture, **options)

    def own(self, source: Block | None) -> Block | None:
        """Return what the architecture alone has, of a model that begins as one with `source`."""
        kind = ARCHITECTURES[self.architecture].options
        if kind is None:
            return None
        given = {each.field: getattr(self, each.name, None) for each in options_of(kind)}
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        begun = source if isinstance(source, kind) else kind()
        return replace(begun, **{name: value for name, value in given.items() if value is not None})

    @staticmethod
    def options() -> dict[str, tuple[Option, list[str]]]:
        """Return all that somebody can give, by name, and the architectures that each is for."""
        found: dict[str, tuple[Option, list[str]]] = {}
        for row in trainable():
            for each in options_of(settings_of(row)):
                found.setdefault(each.name, (each, []))[1].append(row)
        return found

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """Name the settings that differ from a stored run's."""
        return [name for name, value in asdict(self).items() if _as_json(stored.get(name)) != _as_json(value)]


def _as_json(value: Any) -> Any:
    """Return a setting as a checkpoint keeps it: there a tuple is a list."""
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, kw_only=True)
class VectorTrainConfig(TrainConfig):
    """Settings of an encoder that keeps both sides apart.

    The batch's other replies are each row's negatives; listed ones join them. A teacher's loss is multiplied by the
    square of its temperature (Hinton et al. 2015).
    """

    teacher: str = option("", "a model with a network to distil from", metavar="MODEL")
    teacher_weight: float = option(0.5, "share of the distillation in the loss", Bounds(0.0, 1.0), metavar="SHARE")
    teacher_temperature: float = option(
        1.0, "divides the scores of both models before they are compared", Bounds(1e-6, 1e6), metavar="T"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.teacher or self.negatives >= 1, "negatives must be at least 1 with a teacher, which scores them"
        )
        require(self.batch_size >= 2, "batch_size must be at least 2: the others are the negatives")


@dataclass(frozen=True, kw_only=True)
class OneStageTrainConfig(VectorTrainConfig):
    """Settings of an encoder whose vectors alone make the score (`rescale`)."""

    words: str = option("", "a model whose words count in the loss beside the network", metavar="MODEL")
    output_like: str = option("", "begin with outputs of the standard deviation of this model's", metavar="MODEL")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not (self.output_like and self.lora_rank), "output_like changes whole weights; train without lora_rank")


@dataclass(frozen=True, kw_only=True)
class TwoStageTrainConfig(VectorTrainConfig):
    """Settings of an encoder with a second stage."""

    first_weight: float = option(1.0, "how much the first stage's own loss counts", _WEIGHT, metavar="W")


@dataclass(frozen=True, kw_only=True)
class InnerTrainConfig(TwoStageTrainConfig):
    """Settings of an encoder that a teacher may show more than its scores (`VectorEncoder.inner_teacher`)."""

    inner_weight: float = option(
        0.0, "weight of the loss by the teacher's inner states or attention", _WEIGHT, metavar="W"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.inner_weight or bool(self.teacher), "inner_weight goes with a teacher")


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(TrainConfig):
    """Settings of pre-training, which reads context and reply as a Cross-encoder does."""

    architecture: str = "cross"
    epochs: float = 1.0
    learning_rate: float = 1e-4
    schedule: Schedule = "linear"
    tune: str = "all"
    mask_share: float = option(0.15, "of the words to mask", Bounds(0.001, 0.999), metavar="SHARE")
    alternate: bool = option(False, "batches learn words and replies in turns, and not each both")
    batch_tokens: int = option(0, "tokens of a batch; 0: batch-size counts", _COUNT, metavar="N")

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
    """Settings of an encoder of pairs. `negatives` is how many candidates each row has besides the gold reply.

    A retriever picks those that it ranks highest, and one that is drawn; without one all are drawn.
    """

    retriever: str = option("", "picks negatives among the batch's replies", metavar="MODEL")
    first_stage: str = option("", "a poly-encoder's checkpoint to whose scores it adds", metavar="MODEL")
    loss: Literal["listwise", "pointwise"] = option(
        "listwise", "listwise: a softmax over the candidates of a row; pointwise: each pair on its own"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.negatives >= 1, "negatives must be at least 1")
        least = "negatives must be at least 2 with a retriever: one is drawn"
        require(not self.retriever or self.negatives >= 2, least)
        for name in SCORE_FIELDS if self.first_stage else ():
            require(getattr(self, name) is None, f"{name} is as the first stage has it; leave it out")


def settings_of(architecture: str) -> type[TrainConfig]:
    """Return the settings of an architecture: those of its kind, and the options that it alone has."""
    return _settings(ARCHITECTURES[architecture])


@cache
def _settings(row: Architecture) -> type[TrainConfig]:
    kind: type[TrainConfig] = resolve_name(row.settings)
    if row.options is None:
        return kind
    alone = [
        (each.name, each.hint | None, field(default=None, metadata={"start": each.default, **each.about}))
        for each in options_of(row.options)
    ]
    return make_dataclass(f"{row.options.__name__}Training", alone, bases=(kind,), frozen=True, kw_only=True)


@dataclass(frozen=True, slots=True)
class Data:
    """Files to train on."""

    paths: Sequence[Path]
    weights: Sequence[float] = option(
        (),
        "relative shares of the files in batches",
        Bounds(1e-6, 1e6),
        otherwise="their sizes",
        metavar="W",
    )
    every_turn: bool = option(False, "make an example of every reply")
    held_out: int = option(
        1000, "examples of a file to select by; of a small file a tenth", Bounds(1, 10**9), metavar="N"
    )
    max_rejected: float = option(0.01, "most bad lines that a file may have", Bounds(0.0, 1.0), metavar="SHARE")

    def __post_init__(self) -> None:
        if self.weights and len(self.weights) != len(self.paths):
            raise InvalidInput(f"{len(self.weights)} weights for {len(self.paths)} files; give one each")
        _require_bounds(self)


def _require_bounds(config: TrainConfig | Data) -> None:
    for each in out_of_bounds(config):
        require(False, f"{each.name} must be {each.bounds}")


def require(holds: bool, message: str) -> None:
    """Raise InvalidInput with that message; settings in it are written as options."""
    if not holds:
        raise InvalidInput(message.replace("_", "-"))
