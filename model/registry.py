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
        encoder: reference to the network, a LateEncoder (`retrieves`) or a CrossEncoder.
        objective: reference to what trains it, an Objective (polyrank.model.training.objectives.objective).
        retrieves: True: it has candidate embeddings, by which it can search a whole pool. False: it scores pairs.
    """

    encoder: str
    objective: str
    retrieves: bool


_ENCODERS = "polyrank.model.architectures"
_OBJECTIVES = "polyrank.model.training.objectives"

ARCHITECTURES = {
    "bi": Architecture(f"{_ENCODERS}.bi:BiEncoder", f"{_OBJECTIVES}.late:LateObjective", retrieves=True),
    "poly": Architecture(f"{_ENCODERS}.poly:PolyEncoder", f"{_OBJECTIVES}.late:LateObjective", retrieves=True),
    "cross": Architecture(f"{_ENCODERS}.cross:CrossEncoder", f"{_OBJECTIVES}.pairs:PairObjective", retrieves=False),
}


def names_in_words(retrieves: bool) -> str:
    """Name the architectures with or without candidate embeddings, for a message.

    >>> names_in_words(retrieves=True)
    'bi- or poly-encoder'
    """
    names = [f"{name}-" for name, row in ARCHITECTURES.items() if row.retrieves == retrieves]
    return " or ".join(", ".join(names).rsplit(", ", 1)) + "encoder"
