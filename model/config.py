"""The contents of `polyrank.json`, validated: what a checkpoint says about itself."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from polyrank.model.bounds import MOST_WHOLE, WIDEST
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.registry import ARCHITECTURES, CLASSIFIERS

ContextVectors = Literal["codes", "first", "last", "last+first"]
Reduction = Literal[
    "first", "mean", "first-m mean", "all-but-first mean", "max", "mean-sqrt-len", "weighted-mean", "last"
]
Head = Literal["linear", "published"]
ClassFrom = Literal["head", "score"]
RowStrategy = Literal["codes", "inputs"]
MixPart = Literal["E", "H"]
Activation = Literal["identity", "tanh", "relu", "gelu"]
Weights = Literal["base", "adapter", "full"]

FORMAT_VERSION = 1
ASSEMBLY_VERSION = 1
EVIDENCE_VERSION = 1
MOST_ROWS = 64
CALIBRATION_VERSION = 1
_MOST_SHOWN = 80  # letters of a value in a message
_MOST = 1e6  # of a weight; sums of such weights stay finite in float32


@dataclass(frozen=True, kw_only=True, slots=True)
class AssemblyConfig:
    """How turns and persona become one token sequence (polyrank.model.text.assembly).

    Attributes:
        version: version of the assembly rules; a checkpoint of another version is refused.
        turn_separator: between turns; a special token's name, or text.
        persona_separator: between persona sentences, and between persona and turns.
        role_markers: text before a turn of a role, e.g. {"user": "customer:"}; other roles get none.
        persona_marker: text before the first persona sentence.
        max_turns: how many turns are kept, newest first. None: as many as the token budget allows.
        context_prompt, candidate_prompt: text before each context and each candidate, as published with a base model.
    """

    version: int = ASSEMBLY_VERSION
    turn_separator: str = "[SEP]"
    persona_separator: str = "[SEP]"
    role_markers: Mapping[str, str] = field(default_factory=dict)
    persona_marker: str = ""
    max_turns: int | None = None
    context_prompt: str = ""
    candidate_prompt: str = ""

    def __post_init__(self) -> None:
        _require_types(self, "assembly.")
        _require(self.version == ASSEMBLY_VERSION, f"assembly.version {self.version} is not {ASSEMBLY_VERSION}")
        _require(self.max_turns is None or self.max_turns >= 1, "assembly.max_turns must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceConfig:
    """How words count in the score, beside what the network says (polyrank.model.evidence).

    Attributes:
        version: version of the features and all their constants; a checkpoint of another version is refused.
        late_weight: factor on the network's score: that of the vectors, or of the pair for a Cross-encoder. For a
            lexical model, which has no network, it says nothing.
        weights: factor on each feature, by its name; features without one count nothing.
    """

    version: int = EVIDENCE_VERSION
    late_weight: float = 1.0
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_types(self, "evidence.")
        _require(self.version == EVIDENCE_VERSION, f"evidence.version {self.version} is not {EVIDENCE_VERSION}")
        _require(0 < self.late_weight <= _MOST, f"evidence.late_weight must be above 0, and at most {_MOST:.0f}")
        for name, weight in self.weights.items():  # also false for what is no number
            _require(abs(weight) <= _MOST, f"evidence.weights.{name} must lie between -{_MOST:.0f} and {_MOST:.0f}")


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationConfig:
    """What a score says: a text is right with probability `1 / (1 + exp(-(slope * score + intercept)))`.

    Attributes:
        version: version of the formula; a checkpoint of another version is refused.
        prior: the share of right texts among those scored that is assumed. Where p is right instead, the intercept is
            larger by `logit(p) - logit(prior)`.
        slope: above 0, so that the order of the scores stays.
        intercept: what a score of 0 says.
        alone_slope, alone_intercept: the same for a Cross-encoder whose words do not count, because a server knows no
            pool; None: its score is the same in any case.
    """

    version: int = CALIBRATION_VERSION
    prior: float
    slope: float
    intercept: float
    alone_slope: float | None = None
    alone_intercept: float | None = None

    def __post_init__(self) -> None:
        _require_types(self, "calibration.")
        _require(self.version == CALIBRATION_VERSION, f"calibration.version {self.version} is not known")
        _require(0 < self.prior < 1, "calibration.prior must lie between 0 and 1")
        _require((self.alone_slope is None) == (self.alone_intercept is None), "calibration lacks half of a line")
        for slope, intercept in (self.line(words=True), self.line(words=False)):
            _require(0 < slope <= _MOST, f"calibration: slopes must be above 0, and at most {_MOST:.0f}")
            _require(abs(intercept) <= _MOST, f"calibration: intercepts must lie between -{_MOST:.0f} and {_MOST:.0f}")

    def line(self, words: bool) -> tuple[float, float]:
        """Return slope and intercept for scores in which words count, or do not."""
        if words or self.alone_slope is None or self.alone_intercept is None:
            return self.slope, self.intercept
        return self.alone_slope, self.alone_intercept


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseConfig:
    """A linear map of a reduced vector, and the function after it.

    Attributes:
        inputs, outputs: sizes of the vector before and after it.
        bias: whether a vector is added.
    """

    inputs: int
    outputs: int
    bias: bool = True
    activation: Activation = "tanh"

    def __post_init__(self) -> None:
        _require_types(self, "dense.")
        _require(0 < self.inputs <= WIDEST and 0 < self.outputs <= WIDEST, "dense: sizes must be positive and sane")


@dataclass(frozen=True, kw_only=True, slots=True)
class ColbertConfig:
    """What ColBERT has beyond other architectures (polyrank.model.architectures.colbert).

    Attributes:
        dim: size of a token's vector.
        query_tokens: contexts below this length are filled up to it with the mask token; 0: none is.
        mask_id: id of the mask token.
        query_marker, candidate_marker: ids of the tokens behind the first one of a side; None: there is none.
        dropped: ids of tokens whose vectors a candidate does not keep: punctuation.
    """

    dim: int = 128
    query_tokens: int = 0
    mask_id: int = 0
    query_marker: int | None = None
    candidate_marker: int | None = None
    dropped: Sequence[int] = ()

    def __post_init__(self) -> None:
        _require_types(self, "colbert.")
        _require(1 <= self.dim <= WIDEST, f"colbert.dim must be at least 1 and at most {WIDEST}")
        _require(self.query_tokens >= 0, "colbert.query_tokens must be at least 0")
        _require(min(self.ids) >= 0, "colbert names a token id below 0")

    @property
    def ids(self) -> list[int]:
        """All token ids that it names."""
        markers = [marker for marker in (self.query_marker, self.candidate_marker) if marker is not None]
        return [self.mask_id, *markers, *self.dropped]


@dataclass(frozen=True, kw_only=True, slots=True)
class MixConfig:
    """What a MixEncoder has beyond other architectures (polyrank.model.architectures.mix).

    Attributes:
        rows: K, how many rows a candidate has.
        strategy: "codes": learnt codes attend over a candidate's token states. "inputs": learnt inputs take the place
            of its first token, and the rows are their outputs.
        layers: the transformer's layers that interact: from 1, or from -1, the last one, downwards; ascending.
        residual: the first stage's score is added. The paper's form is without, and has the strategy "inputs".
        without: what the score lacks, as in the paper's ablation (Table 3). "E": candidates are compared by their rows
            as they were before they read the context. "H": contexts are compared by their first-stage vector.
    """

    rows: int = 1
    strategy: RowStrategy = "codes"
    layers: Sequence[int] = (-1,)
    residual: bool = True
    without: MixPart | None = None

    def __post_init__(self) -> None:
        _require_types(self, "mix.")
        _require(1 <= self.rows <= MOST_ROWS, f"mix.rows must be at least 1 and at most {MOST_ROWS}")
        _require(len(self.layers) > 0 and 0 not in self.layers, "mix.layers must name layers, from 1 or from -1")


@dataclass(frozen=True, kw_only=True, slots=True)
class VirtConfig:
    """What VIRT has beyond other architectures (polyrank.model.architectures.virt).

    Attributes:
        residual: the first stage's score is added; the paper's form is without.
    """

    residual: bool = True

    def __post_init__(self) -> None:
        _require_types(self, "virt.")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeformerConfig:
    """What a Deformer has beyond other architectures (polyrank.model.architectures.deformer).

    Attributes:
        upper: U, how many upper layers read context and candidate together.
        residual: the first stage's score is added; the paper's form is without.
    """

    upper: int = 2
    residual: bool = True

    def __post_init__(self) -> None:
        _require_types(self, "deformer.")
        _require(self.upper >= 1, "deformer.upper must be at least 1: below, no layer reads both texts")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Architecture facts of a checkpoint.

    A lexical model has an architecture, its evidence and a training summary; the other fields say nothing of it.

    Attributes:
        architecture: a name in polyrank.model.registry.
        base_name: the base model's name, for people; `base_sha256` is its identity.
        base_sha256: sha256 of the base's model.safetensors; empty where the weights do not refer to a base.
        weights: where the transformer's weights are. "base": the base's own, by reference. "adapter": the base's, plus
            a low-rank difference in the checkpoint (checkpoint/adapter.py). "full": in the checkpoint.
        residual: the Cross-encoder adds to the score of a Poly-encoder (architectures/cross.py). The checkpoint holds
            both; the fields from `context_vectors` to `score_scale` describe the Poly-encoder.
        head: what makes a Cross-encoder's score of token states. "linear": a linear map of the first one. "published":
            what the base model was published with, as a sequence classifier with one label.
        context_vectors: which context vectors the Poly-encoder uses (Humeau et al. 4.4, Appendix C).
        n_codes: M of the Poly-encoder.
        reduction: how token states become one vector (Humeau et al. 4.2).
        reduction_m: m of "first-m mean".
        dense: linear maps of the Bi-encoder's reduced vectors, one after the other, as published with a base model.
        shared_encoder: True: one transformer for both sides. False: one for each.
        normalize: scale token states in the code attention, context vectors and candidate embeddings to unit length.
        code_scale: factor on the logits of the code attention.
        score_scale: factor on the dot products of context vectors and candidate embedding.
        max_context_tokens, max_candidate_tokens: limits for one text, special tokens included.
        evidence: how words count in the score; None: they do not.
        colbert, deformer, mix, virt: of the architectures of these names; None for others.
        labels: the classes that a classifier tells; empty: the model ranks.
        class_from: what tells the classes. "head": outputs for a context and a text, one for each label, in their
            order. "score": the score of each label as a reply to the context, whose last turn is the text.
        calibration: what its scores say; None: that is not known. Not part of the model's identity: no score and no
            vector depends on it.
        training: free-form summary of the training run; not part of the model's identity.
    """

    architecture: str
    base_name: str
    base_sha256: str = ""
    weights: Weights = "full"
    residual: bool = False
    head: Head = "linear"
    context_vectors: ContextVectors = "codes"
    n_codes: int = 64
    reduction: Reduction = "first"
    reduction_m: int = 16
    dense: Sequence[DenseConfig] = ()
    shared_encoder: bool = False
    normalize: bool = False
    code_scale: float = 1.0
    score_scale: float = 1.0
    max_context_tokens: int = 360
    max_candidate_tokens: int = 72
    assembly: AssemblyConfig = field(default_factory=AssemblyConfig)
    evidence: EvidenceConfig | None = None
    calibration: CalibrationConfig | None = None
    colbert: ColbertConfig | None = None
    deformer: DeformerConfig | None = None
    mix: MixConfig | None = None
    virt: VirtConfig | None = None
    labels: Sequence[str] = ()
    class_from: ClassFrom = "head"
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_types(self, "")
        known = ", ".join(ARCHITECTURES)
        _require(self.architecture in ARCHITECTURES, f"architecture is {_shown(self.architecture)}, not one of {known}")
        retrieves = ARCHITECTURES[self.architecture].retrieves
        _require(self.has_network or self.evidence is not None, "evidence is missing, by which a lexical model ranks")
        _require(not self.residual or not retrieves, "residual is for cross")
        _require(self.head == "linear" or not (retrieves or self.residual), "a published head is for a cross alone")
        _require(not self.dense or self.architecture == "bi", "dense is for bi")
        self._check_labels()
        for name in ("n_codes", "reduction_m"):
            _require(1 <= getattr(self, name) <= WIDEST, f"{name} must be at least 1 and at most {WIDEST}")
        for name in ("code_scale", "score_scale"):
            _require(0 < getattr(self, name) <= _MOST, f"{name} must be positive and at most {_MOST:.0f}")
        for name in ("labels", "dense"):
            _require(len(getattr(self, name)) <= WIDEST, f"{name} has more than {WIDEST} entries")
        for name in ("max_context_tokens", "max_candidate_tokens"):
            _require(getattr(self, name) >= 8, f"{name} must be at least 8")

    def _check_labels(self) -> None:
        if not self.labels:
            _require(self.class_from == "head", "class_from is for a classifier, whose labels are missing")
            return
        _require(self.architecture in CLASSIFIERS, f"labels are for {', '.join(CLASSIFIERS)}")
        _require(len(set(self.labels)) == len(self.labels) >= 2, "labels must be at least two, and differ")
        _require(not self.residual and self.head == "linear", "labels are for a cross of its own head alone")
        fitted = self.evidence is not None or self.calibration is not None
        _require(not fitted, "a classifier has neither evidence nor calibration")

    @property
    def head_classes(self) -> int:
        """How many classes a head tells; 0: the model gives scores."""
        return len(self.labels) if self.class_from == "head" else 0

    @property
    def has_network(self) -> bool:
        """Whether there is a network behind it, with weights and a tokenizer; a lexical model has none."""
        return _has_network(self.architecture)

    @property
    def sides_differ(self) -> bool:
        """Whether contexts and candidates are encoded in two ways: by two transformers, or up to two lengths."""
        return not self.shared_encoder or self.max_context_tokens != self.max_candidate_tokens

    def with_blocks(
        self,
        *,
        colbert: ColbertConfig | None = None,
        deformer: DeformerConfig | None = None,
        mix: MixConfig | None = None,
        virt: VirtConfig | None = None,
    ) -> "ModelConfig":
        """Return it with these blocks of single architectures, and no others."""
        return replace(self, colbert=colbert, deformer=deformer, mix=mix, virt=virt)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `polyrank.json` holds."""
        flat = asdict(self)
        if not self.has_network:
            own = {name: flat[name] for name in _WITHOUT_NETWORK if flat[name] is not None}
            return {"format_version": FORMAT_VERSION, **own}
        base = {"name": flat.pop("base_name"), "sha256": flat.pop("base_sha256")}
        # What is not used is left out, as it was before it could be used, so that fingerprints stay.
        unused: dict[str, Any] = dict.fromkeys(("evidence", "calibration", *_BLOCKS))
        for name, default in {**unused, "dense": (), "labels": (), "class_from": "head", "head": "linear"}.items():
            if flat[name] == default:
                del flat[name]
        for name in ("context_prompt", "candidate_prompt"):
            if not flat["assembly"][name]:
                del flat["assembly"][name]
        return {"format_version": FORMAT_VERSION, "base": base, **flat}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "ModelConfig":
        """Validate the contents of `polyrank.json`; raises CheckpointInvalid with what is wrong."""
        flat = dict(raw)
        version = flat.pop("format_version", None)
        _require(version == FORMAT_VERSION, f"format_version is {_shown(version)}, this release reads {FORMAT_VERSION}")
        if not _has_network(flat.get("architecture")):
            _refuse_unknown(flat, set(_WITHOUT_NETWORK), "")
            flat |= {"base": {"name": "", "sha256": ""}, "assembly": {}}
        base = flat.pop("base", None)
        assembly = flat.pop("assembly", None)
        _require(isinstance(base, dict) and set(base) == {"name", "sha256"}, "base must be {name, sha256}")
        _require(isinstance(assembly, dict), "assembly is missing")
        _refuse_unknown(flat, {f.name for f in fields(cls)} - {"base_name", "base_sha256"}, "")
        _refuse_unknown(assembly, {f.name for f in fields(AssemblyConfig)}, "assembly.")
        flat |= _weights_read(flat)
        flat["dense"] = _dense(flat.pop("dense", []))
        flat["labels"] = tuple(labels) if isinstance(labels := flat.pop("labels", []), list) else labels
        flat |= {name: _block(name, flat[name]) for name in _BLOCKS if flat.get(name) is not None}
        flat |= {"base_name": base["name"], "base_sha256": base["sha256"]}
        try:
            return cls(assembly=AssemblyConfig(**assembly), **flat)
        except TypeError as error:
            raise CheckpointInvalid(f"polyrank.json: {error}") from error


def _weights_read(flat: Mapping[str, Any]) -> dict[str, EvidenceConfig | CalibrationConfig]:
    """Read the blocks of numbers that were fitted, where there are any."""
    read: dict[str, EvidenceConfig | CalibrationConfig] = {}
    for name, kind in (("evidence", EvidenceConfig), ("calibration", CalibrationConfig)):
        if (raw := flat.get(name)) is None:
            continue
        _require(isinstance(raw, dict), f"{name} must be an object")
        _refuse_unknown(raw, {f.name for f in fields(kind)}, f"{name}.")
        try:
            read[name] = kind(**raw)
        except TypeError as error:
            raise CheckpointInvalid(f"polyrank.json: {name}: {error}") from error
    return read


def _dense(raw: object) -> tuple[DenseConfig, ...]:
    _require(isinstance(raw, list) and all(isinstance(each, dict) for each in raw), "dense must be a list of objects")
    assert isinstance(raw, list)
    for each in raw:
        _refuse_unknown(each, {f.name for f in fields(DenseConfig)}, "dense.")
    try:
        return tuple(DenseConfig(**each) for each in raw)
    except TypeError as error:
        raise CheckpointInvalid(f"polyrank.json: dense: {error}") from error


_BLOCKS = {"colbert": ColbertConfig, "deformer": DeformerConfig, "mix": MixConfig, "virt": VirtConfig}


def _block(name: str, raw: Any) -> ColbertConfig | DeformerConfig | MixConfig | VirtConfig:
    """Read the block of a single architecture; JSON's lists become tuples."""
    kind = _BLOCKS[name]
    _require(isinstance(raw, dict), f"{name} must be an object")
    _refuse_unknown(raw, {f.name for f in fields(kind)}, f"{name}.")
    read = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
    block: ColbertConfig | DeformerConfig | MixConfig | VirtConfig = kind(**read)
    return block


_WITHOUT_NETWORK = ("architecture", "evidence", "calibration", "training")


def _has_network(architecture: object) -> bool:
    row = ARCHITECTURES.get(architecture) if isinstance(architecture, str) else None
    return row is None or row.encoder is not None


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise CheckpointInvalid(f"polyrank.json: {message}")


def _refuse_unknown(raw: Mapping[str, Any], known: set[str], prefix: str) -> None:
    unknown = sorted(set(raw) - known)
    _require(not unknown, f"unknown field {prefix}{', '.join(unknown)}; written by a newer release?")


_Block = (
    AssemblyConfig
    | CalibrationConfig
    | DenseConfig
    | EvidenceConfig
    | ColbertConfig
    | DeformerConfig
    | MixConfig
    | VirtConfig
    | ModelConfig
)


def _require_types(config: _Block, prefix: str) -> None:
    """Check each field against its annotation: JSON may hold any type anywhere."""
    for name, hint in get_type_hints(type(config)).items():
        value = getattr(config, name)
        _require(_is_a(value, hint), f"{prefix}{name} is {_shown(value)}, not {_in_words(hint)}")
        whole = value if isinstance(value, list | tuple) else (value,)
        large = any(isinstance(each, int) and abs(each) > MOST_WHOLE for each in whole)
        _require(not large, f"{prefix}{name} is larger than {MOST_WHOLE}")


def _is_a(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Literal:
        return value in get_args(hint)
    if origin in (Union, UnionType):  # the first where a Literal takes part
        return any(_is_a(value, choice) for choice in get_args(hint))
    if origin is Sequence:
        return isinstance(value, Sequence) and all(_is_a(each, get_args(hint)[0]) for each in value)
    if origin is Mapping:
        key, item = get_args(hint)
        return isinstance(value, Mapping) and all(_is_a(k, key) and _is_a(v, item) for k, v in value.items())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return hint is Any or isinstance(value, hint)


def _shown(value: object) -> str:
    said = repr(value)
    return said if len(said) <= _MOST_SHOWN else f"{said[:_MOST_SHOWN]}…"


def _in_words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    if get_origin(hint) is Sequence:
        return "a list"
    if get_origin(hint) is Mapping:
        items = {Any: "", str: " of strings", float: " of numbers"}
        return f"an object{items[get_args(hint)[1]]}"
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_in_words, get_args(hint)))
    return _JSON_NAMES.get(hint, str(hint.__name__))


_JSON_NAMES = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", type(None): "null"}
