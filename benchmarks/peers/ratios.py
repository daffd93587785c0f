"""Medians, spreads and ratios of a comparison within one run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

OURS = "polyrank"


@dataclass(frozen=True, slots=True)
class Figure:
    """Median, smallest and largest value of several rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Figure":
        """Summarise one value a round.

        >>> Figure.of([3.0, 1.0, 2.0])
        Figure(median=2.0, low=1.0, high=3.0)
        """
        return cls(median(values), min(values), max(values))

    def times(self, factor: float) -> "Figure":
        """Convert to another unit."""
        return Figure(self.median * factor, self.low * factor, self.high * factor)

    def __str__(self) -> str:
        return f"{_short(self.median)} ({_short(self.low)} to {_short(self.high)})"


def ratios(took: Mapping[str, Sequence[float]], ours: str = OURS) -> dict[str, Figure]:
    """Compute how many times as long as ours each other side took. Quotients are taken within a round, because its
    times were measured next to each other.

    >>> ratios({"polyrank": [1.0, 2.0], "peer": [3.0, 4.0]})
    {'peer': Figure(median=2.5, low=2.0, high=3.0)}
    """
    return {
        name: Figure.of([theirs / own for theirs, own in zip(seconds, took[ours], strict=True)])
        for name, seconds in took.items()
        if name != ours
    }


def rows(took: Mapping[str, Sequence[float]], count: int, what: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Make a row for each side, for a file of results.

    Args:
        took: seconds of each side and round.
        count: number of pieces of work in a round.
        what: fields that all rows share.
    """
    compared = ratios(took)
    return [
        {
            **what,
            "who": name,
            "ms": asdict(Figure.of(seconds).times(1000 / count)),
            "times_ours": asdict(compared[name]) if name in compared else None,
        }
        for name, seconds in took.items()
    ]


def _short(value: float) -> str:
    """Format a number with three significant digits.

    >>> [_short(each) for each in (0.0123, 4.567, 89.12, 1234.5)]
    ['0.0123', '4.57', '89.1', '1234']
    """
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
