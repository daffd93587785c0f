"""The table of architectures: one row for each name. All other code asks a row for a capability and compares no names.

An architecture is one module, in `polyrank.model.architectures` or outside the packages, and its row here, which says
what must be known before torch is imported: the command line lists names and options, and configs are checked, in no
time. So a row holds its own options, and references ("module:class") to the rest, which are resolved on first use.
This also keeps the rooms apart: what serves never imports `training`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, ClassVar, Literal

from polyrank.model.options import WIDEST, Block, Bounds, option, require

_TRAINING = "polyrank.model.training"
_SETTINGS = f"{_TRAINING}.config"


@dataclass(frozen=True, slots=True)
class Architecture:
    """What one architecture brings."""

    # Reference to the network, a VectorEncoder (`retrieves`) or a PairEncoder; None: it has none, and ranks by words
    # alone.
    encoder: str | None
    retrieves: bool = True  # True: it can search a whole pool; False: it scores pairs
    # It reads a context once for all candidates, each of which then costs its own tokens alone.
    reads_once: bool = False
    # Reference to its settings of training, a TrainConfig (polyrank.model.training.config) that knows nothing of
    # `options`.
    settings: str = f"{_SETTINGS}:TwoStageTrainConfig"
    # What it alone has, in `polyrank.json` and as options of training; None: nothing.
    options: type[Block] | None = None
    # Reference to what trains the network, an Objective (polyrank.model.training.objective).
    objective: str | None = f"{_TRAINING}.vector_objective:VectorObjective"
    # Reference to what trains the network to tell classes of pairs, an Objective; None: it cannot.
    classifier: str | None = f"{_TRAINING}.vector_objective:ApartObjective"
    # Whether it reads texts as they are, and ranks by candidate attention between vectors alone: then it serves without
    # its network's class, which takes torch, where it was compiled before.
    by_vectors: bool = False
    # What its score needs beyond one vector of each side and their dot product, for a message; empty: nothing, so that
    # tools which compare vectors can use it.
    beyond_vectors: str = ""

    @property
    def network(self) -> type[Any]:
        """The class of the network; imports torch."""
        assert self.encoder is not None, "it has a network"
        found: type[Any] = resolve_name(self.encoder)
        return found

    @property
    def embeds(self) -> bool:
        """Whether its vectors say something about a candidate."""
        return self.retrieves and self.encoder is not None


_RESIDUAL = "add the first stage's score, unlike the papers"


@dataclass(frozen=True, kw_only=True)
class ColbertConfig(Block):
    """What ColBERT has beyond other architectures; all but `dim` follows from the tokenizer."""

    of: ClassVar[str] = "colbert"
    dim: int = 128
    query_tokens: int = 0  # contexts below this length are filled up to it with the mask token; 0: none is
    mask_id: int = 0
    # Ids of the tokens behind the first one of a side; None: there is none.
    query_marker: int | None = None
    candidate_marker: int | None = None
    dropped: Sequence[int] = ()  # ids of tokens whose vectors a candidate does not keep: punctuation

    def __post_init__(self) -> None:
        super().__post_init__()
        require(1 <= self.dim <= WIDEST, f"colbert.dim must be at least 1 and at most {WIDEST}")
        require(self.query_tokens >= 0, "colbert.query_tokens must be at least 0")
        require(min(self.ids) >= 0, "colbert names a token id below 0")

    @property
    def ids(self) -> list[int]:
        markers = [marker for marker in (self.query_marker, self.candidate_marker) if marker is not None]
        return [self.mask_id, *markers, *self.dropped]


@dataclass(frozen=True, kw_only=True)
class DeformerConfig(Block):
    """What a Deformer has beyond other architectures."""

    of: ClassVar[str] = "deformer"
    upper: int = option(2, "layers that read both texts together", Bounds(1, 1000), name="upper_layers", metavar="U")
    residual: bool = option(True, _RESIDUAL)


@dataclass(frozen=True, kw_only=True)
class MixConfig(Block):
    """What a MixEncoder has beyond other architectures.

    Strategy "codes": learnt codes attend over a candidate's token states. "inputs": learnt inputs take the place of its
    first token, and the rows are their outputs; the paper's. Without "E" candidates are compared by their rows as they
    were before they read the context; without "H" contexts by their first-stage vector (its Table 3).
    """

    of: ClassVar[str] = "mix"
    rows: int = option(1, "rows of a candidate", Bounds(1, 64), metavar="K")
    strategy: Literal["codes", "inputs"] = option("codes", "what makes rows", name="row_strategy")
    layers: Sequence[int] = option(
        (-1,), "layers that interact, ascending: from 1, or from -1, the last one", Bounds(-1000, 1000),
        name="interaction_layers", metavar="L",
    )  # fmt: skip
    residual: bool = option(True, _RESIDUAL)
    without: Literal["E", "H"] | None = option(None, "leave out a part of the score, as in the paper's ablation")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.layers) > 0 and 0 not in self.layers, "mix.layers must name layers, from 1 or from -1")


@dataclass(frozen=True, kw_only=True)
class UniConfig(Block):
    """What a Uni-Encoder has beyond other architectures.

    With "one-way" a context does not see candidates, so a score depends on its pair alone. With "arrow", the paper's,
    it sees all that are sent together, and so each score depends on them.
    """

    of: ClassVar[str] = "uni"
    mask: Literal["one-way", "arrow"] = option("one-way", "arrow: the context sees the candidates; the paper's")
    state: Literal["mean", "first"] = option(
        "mean", "which of a candidate's last states make its score", name="score_state"
    )


@dataclass(frozen=True, kw_only=True)
class VirtConfig(Block):
    """What VIRT has beyond other architectures."""

    of: ClassVar[str] = "virt"
    residual: bool = option(True, _RESIDUAL)


_NETWORKS = "polyrank.model.architectures"
ARCHITECTURES = {
    "bi": Architecture(f"{_NETWORKS}.bi:BiEncoder", settings=f"{_SETTINGS}:OneStageTrainConfig", by_vectors=True),
    "colbert": Architecture(
        f"{_NETWORKS}.colbert:ColbertEncoder",
        options=ColbertConfig,
        classifier=None,
        beyond_vectors="it compares every token of a context with every token of a candidate",
    ),
    "deformer": Architecture(
        f"{_NETWORKS}.deformer:DeformerEncoder",
        settings=f"{_SETTINGS}:InnerTrainConfig",
        options=DeformerConfig,
        beyond_vectors="its upper layers read all tokens of a context and a candidate together",
    ),
    "mix": Architecture(
        f"{_NETWORKS}.mix:MixEncoder",
        options=MixConfig,
        beyond_vectors="rows of a candidate attend over the tokens of a context",
    ),
    "poly": Architecture(
        f"{_NETWORKS}.poly:PolyEncoder",
        settings=f"{_SETTINGS}:OneStageTrainConfig",
        by_vectors=True,
        beyond_vectors="a context has several vectors, and each candidate weighs them in its own way",
    ),
    "virt": Architecture(
        f"{_NETWORKS}.virt:VirtEncoder",
        settings=f"{_SETTINGS}:InnerTrainConfig",
        options=VirtConfig,
        beyond_vectors="token states of a candidate attend to those of a context",
    ),
    "cross": Architecture(
        f"{_NETWORKS}.cross:CrossEncoder",
        retrieves=False,
        settings=f"{_SETTINGS}:PairTrainConfig",
        objective=f"{_TRAINING}.pair_objective:PairObjective",
        classifier=f"{_TRAINING}.pair_objective:JointObjective",
        beyond_vectors="it reads context and candidate together, and makes no vectors",
    ),
    "uni": Architecture(
        f"{_NETWORKS}.uni:UniEncoder",
        retrieves=False,
        reads_once=True,
        settings=f"{_SETTINGS}:PairTrainConfig",
        options=UniConfig,
        objective=f"{_TRAINING}.pair_objective:PairObjective",
        classifier=None,
        beyond_vectors="a candidate reads the context's tokens, and it makes no vectors",
    ),
    "lexical": Architecture(
        None, objective=None, classifier=None, beyond_vectors="it has no network, and makes no vectors"
    ),
}
"""The rows by name. An architecture from outside the packages adds its own row before its models are used."""

TASKS = ("rank", "classify")
"""What a network can be trained to do."""


def trainable() -> tuple[str, ...]:
    """Name the architectures that have a network to train."""
    return tuple(name for name, row in ARCHITECTURES.items() if row.objective is not None)


def classifiers() -> tuple[str, ...]:
    """Name the architectures that can be trained to tell classes of pairs."""
    return tuple(name for name, row in ARCHITECTURES.items() if row.classifier is not None)


def listed(names: Sequence[str], last: str = "and") -> str:
    """Join names for a message.

    >>> listed(["bi", "mix", "virt"]), listed(["bi"])
    ('bi, mix and virt', 'bi')
    """
    return f" {last} ".join(", ".join(names).rsplit(", ", 1))


def names_in_words(retrieves: bool) -> str:
    """Name the encoders with or without candidate embeddings, for a message.

    >>> names_in_words(retrieves=True)
    'bi-, colbert-, deformer-, mix-, poly- or virt-encoder'
    """
    names = [f"{name}-" for name, row in ARCHITECTURES.items() if row.encoder and row.retrieves == retrieves]
    return listed(names, "or") + "encoder"


def in_words(architecture: str) -> str:
    """Say what a model of this architecture is, for a message.

    >>> in_words("poly"), in_words("lexical")
    ('a poly-encoder', 'a lexical model, which ranks by words alone')
    """
    if ARCHITECTURES[architecture].encoder is None:
        return f"a {architecture} model, which ranks by words alone"
    return f"a {architecture}-encoder"
