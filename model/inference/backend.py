"""What a back-end is."""

from collections.abc import Callable
from typing import Any, Protocol

from numpy.typing import NDArray

from polyrank.model.architectures.batching import TokenBatch
from polyrank.model.inference.parts import Part

# A padded batch to the part's outputs. Safe to call from several threads.
Forward = Callable[[TokenBatch], tuple[NDArray[Any], ...]]


class Backend(Protocol):
    """Runs the parts of one model.

    Attributes:
        name: as it is asked for.
        token_budget: tokens that a batch should have at most, padding included.
    """

    name: str
    token_budget: int

    def compile(self, part: Part) -> Forward:
        """Make a part ready to run."""
