"""The contents of `polyrank.json`, validated: what a checkpoint says about itself."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeVar

from polyrank.model.errors import CheckpointInvalid
from polyrank.model.options import WIDEST, Block, read_block, require, require_known, require_types, shown
from polyrank.model.registry import ARCHITECTURES, UniConfig, classifiers, listed

ContextVectors = Literal["codes", "first", "last", "last+first"]
Reduction = Literal[
    "first", "mean", "first-m mean", "all-but-first mean", "max", "mean-sqrt-len", "weighted-mean", "last"
]
Head = Literal["linear", "published"]
ClassFrom = Literal["head", "score"]
Activation = Literal["identity", "tanh", "relu", "gelu"]
Weights = Literal["base", "adapter", "full"]
B = TypeVar("B", bound=Block)

FORMAT_VERSION = 1
ASSEMBLY_VERSION = 1
EVIDENCE_VERSION = 1
CALIBRATION_VERSION = 1
QUANTISATION_VERSION = 1
_MOST = 1e6  # of a weight; sums of such weights stay finite in float32


@dataclass(frozen=True, kw_only=True, slots=True)
class AssemblyConfig:
    """How turns and persona become one token sequence (polyrank.model.text.assembly)."""

    version: int = ASSEMBLY_VERSION
    turn_separator: str = "[SEP]"  # between turns; a special token's name, or text
    persona_separator: str = "[SEP]"  # between persona sentences, and between persona and turns
    # Text before a turn of a role, e.g. {"user": "customer:"}; other roles get none.
    role_markers: Mapping[str, str] = field(default_factory=dict)
    persona_marker: str = ""  # text before the first persona sentence
    max_turns: int | None = None  # how many turns are kept, newest first; None: as many as the token budget allows
    # Text before each context and each candidate, as published with a base model.
    context_prompt: str = ""
    candidate_prompt: str = ""

    def __post_init__(self) -> None:
        require_types(self, "assembly.")
        require(self.version == ASSEMBLY_VERSION, f"assembly.version {self.version} is not {ASSEMBLY_VERSION}")
        require(self.max_turns is None or self.max_turns >= 1, "assembly.max_turns must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class LexicalConfig:
    """How words count in the score, beside what the network says (polyrank.model.lexical)."""

    version: int = EVIDENCE_VERSION
    # Factor on the network's score: that of the vectors, or of the pair for a Cross-encoder. For a lexical model, which
    # has no network, it says nothing.
    late_weight: float = 1.0
    # Factor on each feature, by its name; features without one count nothing.
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_types(self, "evidence.")
        require(self.version == EVIDENCE_VERSION, f"evidence.version {self.version} is not {EVIDENCE_VERSION}")
        require(0 < self.late_weight <= _MOST, f"evidence.late_weight must be above 0, and at most {_MOST:.0f}")
        for name, weight in self.weights.items():  # also false for what is no number
            require(abs(weight) <= _MOST, f"evidence.weights.{name} must lie between -{_MOST:.0f} and {_MOST:.0f}")


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationConfig:
    """What a score says: a text is right with probability `1 / (1 + exp(-(slope * score + intercept)))`."""

    version: int = CALIBRATION_VERSION
    # The share of right texts among those scored that is assumed. Where p is right instead, the intercept is larger by
    # `logit(p) - logit(prior)`.
    prior: float
    slope: float  # above 0, so that the order of the scores stays
    intercept: float  # what a score of 0 says
    # The same for a Cross-encoder whose words do not count, because a server knows no pool; None: its score is the same
    # in any case.
    alone_slope: float | None = None
    alone_intercept: float | None = None

    def __post_init__(self) -> None:
        require_types(self, "calibration.")
        require(self.version == CALIBRATION_VERSION, f"calibration.version {self.version} is not known")
        require(0 < self.prior < 1, "calibration.prior must lie between 0 and 1")
        require((self.alone_slope is None) == (self.alone_intercept is None), "calibration lacks half of a line")
        for slope, intercept in (self.line(words=True), self.line(words=False)):
            require(0 < slope <= _MOST, f"calibration: slopes must be above 0, and at most {_MOST:.0f}")
            require(abs(intercept) <= _MOST, f"calibration: intercepts must lie between -{_MOST:.0f} and {_MOST:.0f}")

    def line(self, words: bool) -> tuple[float, float]:
        """Return slope and intercept for scores in which words count, or do not."""
        if words or self.alone_slope is None or self.alone_intercept is None:
            return self.slope, self.intercept
        return self.alone_slope, self.alone_intercept


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantisationConfig:
    """What int8 changes, over lists that calibration had not seen; what it found lies in a file beside `polyrank.json`.

    Differences are int8's figure minus float32's, as shares of 1; their intervals are of 95 %, over conversations.
    """

    version: int = QUANTISATION_VERSION
    made_for: str  # fingerprint of the model that was calibrated; it says nothing of another one
    sha256: str  # of quantised.safetensors
    # Over how many both were compared.
    lists: int
    conversations: int
    # float32's.
    recall_at_1: float
    mrr: float
    # The mean difference, and the ends of its interval.
    recall_change: Sequence[float]
    mrr_change: Sequence[float]
    # How near outputs are to float32's: "least cosine" and "mean cosine" of vectors, "correlation" of scores of pairs.
    nearness: Mapping[str, float]

    MOST_LOSS: ClassVar[float] = 0.003
    MOST_UNCERTAIN_LOSS: ClassVar[float] = 0.006

    def __post_init__(self) -> None:
        require_types(self, "quantisation.")
        require(self.version == QUANTISATION_VERSION, f"quantisation.version {self.version} is not known")
        for name in ("recall_change", "mrr_change"):
            three = getattr(self, name)
            require(len(three) == 3, f"quantisation.{name} must be a difference and the ends of its interval")
            require(all(-1 <= each <= 1 for each in three), f"quantisation.{name} must lie between -1 and 1")

    def why_not_chosen(self) -> str:
        """Return why `auto` must not take int8, empty if it may: by the loss of R@1, and by the worst it may be."""
        change, worst, _ = (100 * each for each in self.recall_change)
        if change < -100 * self.MOST_LOSS:
            return f"R@1 changes by {change:.2f} points, more than -{100 * self.MOST_LOSS:g}"
        if worst <= -100 * self.MOST_UNCERTAIN_LOSS:
            return f"R@1 may change by {worst:.2f} points, and -{100 * self.MOST_UNCERTAIN_LOSS:g} is too much"
        return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseConfig:
    """A linear map of a reduced vector, and the function after it.

    `inputs`, `outputs`: sizes of the vector before and after it.
    """

    inputs: int
    outputs: int
    bias: bool = True
    activation: Activation = "tanh"

    def __post_init__(self) -> None:
        require_types(self, "dense.")
        require(0 < self.inputs <= WIDEST and 0 < self.outputs <= WIDEST, "dense: sizes must be positive and sane")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Architecture facts of a checkpoint.

    A lexical model has an architecture, its evidence and a training summary; the other fields say nothing of it.
    """

    architecture: str
    base_name: str  # the base model's name, for people; `base_sha256` is its identity
    base_sha256: str = ""  # sha256 of the base's model.safetensors; empty where the weights do not refer to a base
    # sha256 of other forms of these weights that do, too, such as rounded ones. With each the model is another one: its
    # vectors differ, and so does its fingerprint.
    base_forms: Sequence[str] = ()
    # Where the transformer's weights are. "base": the base's own, by reference. "adapter": the base's, plus a low-rank
    # difference in the checkpoint (checkpoint/read.py). "full": in the checkpoint.
    weights: Weights = "full"
    # The Cross-encoder adds to the score of a Poly-encoder (architectures/cross.py). The checkpoint holds both; the
    # fields from `context_vectors` to `score_scale` describe the Poly-encoder.
    residual: bool = False
    # What makes a Cross-encoder's score of token states. "linear": a linear map of the first one. "published": what the
    # base model was published with, as a sequence classifier with one label.
    head: Head = "linear"
    # Which context vectors the Poly-encoder uses (Humeau et al. 4.4, Appendix C).
    context_vectors: ContextVectors = "codes"
    n_codes: int = 64
    # How token states become one vector (Humeau et al. 4.2).
    reduction: Reduction = "first"
    reduction_m: int = 16  # m of "first-m mean"
    # Linear maps of the Bi-encoder's reduced vectors, one after the other, as published with a base model.
    dense: Sequence[DenseConfig] = ()
    shared_encoder: bool = False  # True: one transformer for both sides; False: one for each
    # Scale token states in the code attention, context vectors and candidate embeddings to unit length.
    normalize: bool = False
    code_scale: float = 1.0  # factor on the logits of the code attention
    score_scale: float = 1.0  # factor on the dot products of context vectors and candidate embedding
    # Limits for one text, special tokens included.
    max_context_tokens: int = 360
    max_candidate_tokens: int = 72
    assembly: AssemblyConfig = field(default_factory=AssemblyConfig)
    evidence: LexicalConfig | None = None  # how words count in the score; None: they do not
    # What its scores say; None: that is not known. Not part of the model's identity: no score and no vector depends on
    # it.
    calibration: CalibrationConfig | None = None
    # What int8 changes; None: it was not calibrated. As all precisions, it is not part of the model's identity.
    quantisation: QuantisationConfig | None = None
    # What its architecture alone has (`options` of its row in the registry); `polyrank.json` holds it under the
    # architecture's name. None: nothing, or it is not known yet.
    own: Block | None = None
    # Those that it learnt, ISO 639-1; empty: that is not known. Not part of the model's identity.
    languages: Sequence[str] = ()
    labels: Sequence[str] = ()  # the classes that a classifier tells; empty: the model ranks
    # What tells the classes. "head": outputs for a context and a text, one for each label, in their order. "score": the
    # score of each label as a reply to the context, whose last turn is the text.
    class_from: ClassFrom = "head"
    # Free-form summary of the training run; not part of the model's identity.
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_types(self, "")
        choices = ", ".join(ARCHITECTURES)
        require(self.architecture in ARCHITECTURES, f"architecture is {shown(self.architecture)}, not one of {choices}")
        row = ARCHITECTURES[self.architecture]
        retrieves, fits = row.retrieves, self.own is None or type(self.own) is row.options
        require(fits, f"{self.architecture} has no {type(self.own).__name__}")
        require(self.has_network or self.evidence is not None, "evidence is missing, by which a lexical model ranks")
        require(not self.residual or not retrieves, "residual is for a model that scores pairs")
        require(self.head == "linear" or not (retrieves or self.residual), "a published head is for a cross alone")
        able: Sequence[str] = [name for name, each in ARCHITECTURES.items() if not each.beyond_vectors]
        require(not self.dense or self.architecture in able, f"dense is for {listed(able)}")
        self._check_labels()
        for name in ("n_codes", "reduction_m"):
            require(1 <= getattr(self, name) <= WIDEST, f"{name} must be at least 1 and at most {WIDEST}")
        for name in ("code_scale", "score_scale"):
            require(0 < getattr(self, name) <= _MOST, f"{name} must be positive and at most {_MOST:.0f}")
        for language in self.languages:
            code = len(language) == 2 and language.isascii() and language.islower()
            require(code, f"languages has {shown(language)}, which is no code of ISO 639-1, such as en")
        for name in ("labels", "dense", "languages"):
            require(len(getattr(self, name)) <= WIDEST, f"{name} has more than {WIDEST} entries")
        for name in ("max_context_tokens", "max_candidate_tokens"):
            require(getattr(self, name) >= 8, f"{name} must be at least 8")

    def _check_labels(self) -> None:
        if not self.labels:
            require(self.class_from == "head", "class_from is for a classifier, whose labels are missing")
            return
        able = classifiers()
        require(self.architecture in able, f"labels are for {', '.join(able)}")
        require(len(set(self.labels)) == len(self.labels) >= 2, "labels must be at least two, and differ")
        require(not self.residual and self.head == "linear", "labels are for a cross of its own head alone")
        fitted = self.evidence is not None or self.calibration is not None
        require(not fitted, "a classifier has neither evidence nor calibration")

    @property
    def base_weights(self) -> tuple[str, ...]:
        """The sha256 of each file of weights that will do as its base; empty: any."""
        return (self.base_sha256, *self.base_forms) if self.base_sha256 else ()

    @property
    def head_classes(self) -> int:
        """How many classes a head tells; 0: the model gives scores."""
        return len(self.labels) if self.class_from == "head" else 0

    @property
    def has_network(self) -> bool:
        """Whether there is a network behind it, with weights and a tokenizer; a lexical model has none."""
        return ARCHITECTURES[self.architecture].encoder is not None

    @property
    def scores_depend(self) -> bool:
        """Whether a score depends on which other candidates are sent."""
        return isinstance(self.own, UniConfig) and self.own.mask == "arrow"

    @property
    def sides_differ(self) -> bool:
        """Whether contexts and candidates are encoded in two ways: by two transformers, or up to two lengths."""
        return not self.shared_encoder or self.max_context_tokens != self.max_candidate_tokens

    def vector_dim(self, dim: int) -> int:
        """Return the size of a vector that is made of the states of a transformer, which have `dim` components."""
        return self.dense[-1].outputs if self.dense else dim

    def block(self, kind: type[B]) -> B:
        """Return what its architecture alone has; raises CheckpointInvalid where it is missing."""
        if not isinstance(self.own, kind):
            raise CheckpointInvalid(f"polyrank.json: {kind.of} is missing")
        return self.own

    def to_json(self) -> dict[str, Any]:
        """Return the object that `polyrank.json` holds: every field; what the architecture alone has, by its name."""
        flat = asdict(self)
        base = {name: flat.pop(f"base_{name}") for name in _OF_BASE}
        own = flat.pop("own")
        alone = {} if own is None else {self.architecture: own}
        return {"format_version": FORMAT_VERSION, "base": base, **flat, **alone}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "ModelConfig":
        """Validate the contents of `polyrank.json`; raises CheckpointInvalid with what is wrong."""
        flat = dict(raw)
        version = flat.pop("format_version", None)
        require(version == FORMAT_VERSION, f"format_version is {shown(version)}, this release reads {FORMAT_VERSION}")
        base, own = flat.pop("base", None), _own(flat)
        fits = isinstance(base, dict) and {"name", "sha256"} <= set(base) <= set(_OF_BASE)
        require(
            fits and isinstance(base.get("forms", []), list | tuple), "base must be {name, sha256, forms: [sha256]}"
        )
        base = {**base, "forms": tuple(base.get("forms", []))}
        require(isinstance(flat.get("assembly"), dict), "assembly is missing")
        require_known(flat, {f.name for f in fields(cls)} - {"own", *(f"base_{name}" for name in _OF_BASE)})
        for name, kind in _BLOCKS.items():
            if flat.get(name) is not None:
                flat[name] = read_block(kind, flat[name], name)
        dense = flat.pop("dense", [])
        require(isinstance(dense, list | tuple), "dense must be a list of objects")
        flat["dense"] = tuple(read_block(DenseConfig, each, "dense") for each in dense)
        for name in ("labels", "languages"):
            flat[name] = tuple(named) if isinstance(named := flat.pop(name, []), list) else named
        try:
            return cls(**{f"base_{name}": value for name, value in base.items()}, own=own, **flat)
        except TypeError as error:
            raise CheckpointInvalid(f"polyrank.json: {error}") from error


def _own(flat: dict[str, Any]) -> Block | None:
    """Take out and read what the architecture alone has."""
    name = flat.get("architecture")
    kind = ARCHITECTURES[name].options if isinstance(name, str) and name in ARCHITECTURES else None
    raw = None if kind is None else flat.pop(kind.of, None)
    return None if kind is None or raw is None else read_block(kind, raw, kind.of)


_OF_BASE = ("name", "sha256", "forms")
_BLOCKS = {
    "assembly": AssemblyConfig,
    "evidence": LexicalConfig,
    "calibration": CalibrationConfig,
    "quantisation": QuantisationConfig,
}
