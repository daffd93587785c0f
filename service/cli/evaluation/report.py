"""The answer of `polyrank evaluate`: figures with their intervals, as an object and as a table."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.evaluation.intervals import RESAMPLES, intervals
from polyrank.model.evaluation.metrics import Values

_NAME_WIDTH, _CELL_WIDTH = 12, 26


class Measured(NamedTuple):
    """A model, its figures of each example, and how long they took."""

    name: str
    values: Values
    seconds: float


class Estimate(NamedTuple):
    """A figure and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


Estimates = dict[str, Estimate]


class Report:
    """What one model reached, or one beside another on the same examples.

    Args:
        measured: the model, and the one it is compared with, where there is one.
        groups: number of the dialogue or query that each example is part of, (examples,).
        unit: what a group is.
        described: what else there is to say of the examples.
    """

    def __init__(
        self, measured: Sequence[Measured], groups: NDArray[np.int64], unit: str, described: dict[str, Any]
    ) -> None:
        columns = [each.values for each in measured]
        if len(columns) == 2:
            columns.append({name: columns[0][name] - columns[1][name] for name in columns[0]})
        self._measured = measured
        self._estimates = _estimates(columns, groups)
        self._examples = {"examples": len(groups), **described}
        self._resampled = f"{groups.max() + 1} {unit}"

    def as_object(self) -> dict[str, Any]:
        """What `--json` prints."""
        model, *others = [
            {
                **{name: estimate.value for name, estimate in found.items()},
                "seconds": each.seconds,
                "interval": {name: [estimate.low, estimate.high] for name, estimate in found.items()},
            }
            for each, found in zip(self._measured, self._estimates, strict=False)
        ]
        result = {"model": self._measured[0].name, **self._examples, **model}
        if others:
            result["against"] = {"model": self._measured[1].name, **others[0]}
            result["difference"] = {
                name: {"value": estimate.value, "interval": [estimate.low, estimate.high]}
                for name, estimate in self._estimates[2].items()
            }
        return result

    def as_text(self) -> str:
        """What is printed without `--json`: the models, a line a figure, and what the intervals are."""
        named = zip(["model", "against"], self._measured, strict=False)
        heads = [f"{role:{_NAME_WIDTH}}{each.name} ({each.seconds:.0f} s)" for role, each in named]
        about = [f"{name:{_NAME_WIDTH}}{value}" for name, value in self._examples.items()]
        rows = [_row("", ["model", "against", "difference"][: len(self._estimates)])]
        for name in self._estimates[0]:
            signs = ["", "", "+"]
            rows.append(
                _row(name, [_cell(found[name], sign) for found, sign in zip(self._estimates, signs, strict=False)])
            )
        note = f"In brackets: 95 % bootstrap intervals, {RESAMPLES} resamples of {self._resampled}."
        return "\n".join([*heads, *about, *rows, note])


def _estimates(columns: Sequence[Values], groups: NDArray[np.int64]) -> list[Estimates]:
    """Mean and interval of every figure in every column; all share the draws, so those of a difference are paired."""
    names = list(columns[0])
    values = np.column_stack([column[name] for column in columns for name in names])  # (examples, columns * names)
    low, high = intervals(values, groups).tolist()
    each = map(Estimate, values.mean(axis=0).tolist(), low, high)
    return [{name: next(each) for name in names} for _ in columns]


def _cell(estimate: Estimate, sign: str) -> str:
    value, low, high = (format(number, f"{sign}.3f") for number in estimate)
    return f"{value} [{low}, {high}]"


def _row(name: str, cells: Sequence[str]) -> str:
    return (f"{name:{_NAME_WIDTH}}" + "".join(f"{cell:{_CELL_WIDTH}}" for cell in cells)).rstrip()
