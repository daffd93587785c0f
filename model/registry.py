"""The table of architectures: one row for each name. All other code asks a row for a capability and compares no names.

A new architecture is a module in `polyrank.model.architectures` and a row here.

Importing this module must be quick: the command line lists the names, and the config checks them, without torch. A row
therefore holds references ("module:class") that are resolved on first use. This also keeps the rooms apart: an
architecture brings its training objective, but `architectures` and what serves never import `training`; only
`polyrank.model.training` resolves that reference.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Architecture:
    """What one architecture brings.

    Attributes:
        encoder: reference to the network, a LateEncoder (`retrieves`) or a CrossEncoder; None: it has none, and ranks
            by words alone.
        objective: reference to what trains the network, an Objective (polyrank.model.training.objectives.objective).
        retrieves: True: it can search a whole pool. False: it scores pairs.
        beyond_vectors: what its score needs beyond one vector of each side and their dot product, for a message; empty:
            nothing, so that tools which compare vectors can use it.
        classifier: reference to what trains the network to tell classes of pairs, an Objective; None: it cannot.
    """

    encoder: str | None
    objective: str | None
    retrieves: bool
    beyond_vectors: str = ""
    classifier: str | None = None

    @property
    def embeds(self) -> bool:
        """Whether its vectors say something about a candidate."""
        return self.retrieves and self.encoder is not None


_ENCODERS = "polyrank.model.architectures"
_OBJECTIVES = "polyrank.model.training.objectives"

_APART, _JOINT = f"{_OBJECTIVES}.classes:ApartObjective", f"{_OBJECTIVES}.classes:JointObjective"

ARCHITECTURES = {
    "bi": Architecture(
        f"{_ENCODERS}.bi:BiEncoder", f"{_OBJECTIVES}.late:LateObjective", retrieves=True, classifier=_APART
    ),
    "colbert": Architecture(
        f"{_ENCODERS}.colbert:ColbertEncoder",
        f"{_OBJECTIVES}.late:TwoStageObjective",
        retrieves=True,
        beyond_vectors="it compares every token of a context with every token of a candidate",
    ),
    "deformer": Architecture(
        f"{_ENCODERS}.deformer:DeformerEncoder",
        f"{_OBJECTIVES}.deformer:DeformerObjective",
        retrieves=True,
        beyond_vectors="its upper layers read all tokens of a context and a candidate together",
        classifier=_APART,
    ),
    "mix": Architecture(
        f"{_ENCODERS}.mix:MixEncoder",
        f"{_OBJECTIVES}.mix:MixObjective",
        retrieves=True,
        beyond_vectors="rows of a candidate attend over the tokens of a context",
        classifier=_APART,
    ),
    "poly": Architecture(
        f"{_ENCODERS}.poly:PolyEncoder",
        f"{_OBJECTIVES}.late:LateObjective",
        retrieves=True,
        beyond_vectors="a context has several vectors, and each candidate weighs them in its own way",
        classifier=_APART,
    ),
    "virt": Architecture(
        f"{_ENCODERS}.virt:VirtEncoder",
        f"{_OBJECTIVES}.virt:VirtObjective",
        retrieves=True,
        beyond_vectors="token states of a candidate attend to those of a context",
        classifier=_APART,
    ),
    "cross": Architecture(
        f"{_ENCODERS}.cross:CrossEncoder",
        f"{_OBJECTIVES}.pairs:PairObjective",
        retrieves=False,
        beyond_vectors="it reads context and candidate together, and makes no vectors",
        classifier=_JOINT,
    ),
    "lexical": Architecture(
        encoder=None, objective=None, retrieves=True, beyond_vectors="it has no network, and makes no vectors"
    ),
}

TRAINED = tuple(name for name, row in ARCHITECTURES.items() if row.objective is not None)
"""The architectures that have a network to train."""

TASKS = ("rank", "classify")
"""What a network can be trained to do."""

CLASSIFIERS = tuple(name for name, row in ARCHITECTURES.items() if row.classifier is not None)
"""The architectures that can be trained to tell classes of pairs."""


def names_in_words(retrieves: bool) -> str:
    """Name the encoders with or without candidate embeddings, for a message.

    >>> names_in_words(retrieves=True)
    'bi-, colbert-, deformer-, mix-, poly- or virt-encoder'
    """
    names = [f"{name}-" for name, row in ARCHITECTURES.items() if row.encoder and row.retrieves == retrieves]
    return " or ".join(", ".join(names).rsplit(", ", 1)) + "encoder"


def in_words(architecture: str) -> str:
    """Say what a model of this architecture is, for a message.

    >>> in_words("poly"), in_words("lexical")
    ('a poly-encoder', 'a lexical model, which ranks by words alone')
    """
    if ARCHITECTURES[architecture].encoder is None:
        return f"a {architecture} model, which ranks by words alone"
    return f"a {architecture}-encoder"
