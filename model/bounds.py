"""What a number that somebody gives may be, and how a message says it; imports nothing that takes time."""

from dataclasses import dataclass
from typing import Final

WIDEST: Final = 65_536  # components of a vector, and rows, labels and layers of a model
MOST_WHOLE: Final = 10_000_000  # of any whole number in a model's configs, far above the sizes of published ones


@dataclass(frozen=True, slots=True)
class Bounds:
    """From `least` to `most`, both included; whole numbers if these are.

    >>> str(Bounds(1, 65_535)), str(Bounds(0.0, 1.0))
    ('a whole number from 1 to 65,535', 'a number from 0 to 1')
    """

    least: float
    most: float

    @property
    def kind(self) -> type[int] | type[float]:
        """The type of the number."""
        return int if isinstance(self.least, int) else float

    def hold(self, value: float) -> bool:
        """Whether they hold a value; none that is not a number."""
        return self.least <= value <= self.most

    def __str__(self) -> str:
        kind, form = ("a whole number", ",") if self.kind is int else ("a number", ",.12g")
        return f"{kind} from {self.least:{form}} to {self.most:{form}}"
