"""The answer of `polyrank evaluate`: figures with their intervals, as JSON and as a table."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.measures import RESAMPLES, Values, intervals

_NAME_WIDTH, _CELL_WIDTH = 12, 26


class ModelFigures(NamedTuple):
    """A model's figures of each example, how many seconds they took, and in how many examples several tie for first."""

    name: str
    values: Values
    seconds: float
    tied_first: float


class Estimate(NamedTuple):
    """A figure and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def shown(self, sign: str = "") -> str:
        """Write it with its interval; `sign` "+": also of positive numbers."""
        return f"{self.value:{sign}.3f} [{self.low:{sign}.3f}, {self.high:{sign}.3f}]"


class EvaluationReport:
    """The figures of one model, or of two on the same examples and their difference.

    Args:
        measured: the model, and the one it is compared with, if there is one.
        groups, unit, described: of the task.

    Attributes:
        models: name of the model and, if there is one, of the one it is compared with, by "model" and "against".
        estimates: each figure by "model", "against" and "difference".
        about: how many examples there are, and what else the task says of itself.
    """

    def __init__(
        self, measured: Sequence[ModelFigures], groups: NDArray[np.int64], unit: str, described: dict[str, Any]
    ) -> None:
        self._measured = dict(zip(("model", "against"), measured, strict=False))
        self.models = {role: figures.name for role, figures in self._measured.items()}
        columns = {role: figures.values for role, figures in self._measured.items()}
        if "against" in columns:
            columns["difference"] = {
                name: values - columns["against"][name] for name, values in columns["model"].items()
            }
        self.estimates = _estimates(columns, groups)
        self.about = {"examples": len(groups), **described}
        self.note = f"In brackets: 95 % bootstrap intervals, {RESAMPLES} resamples of {groups.max() + 1} {unit}."

    def as_object(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        result = {"model": self._measured["model"].name, **self.about, **self._figures("model")}
        if "against" in self._measured:
            result["against"] = {"model": self._measured["against"].name, **self._figures("against")}
            result["difference"] = {
                name: {"value": estimate.value, "interval": [estimate.low, estimate.high]}
                for name, estimate in self.estimates["difference"].items()
            }
        return result

    def as_text(self) -> str:
        """Return what is printed without `--json`: the models, a line for each figure, and what the intervals are."""
        heads = [
            f"{role:{_NAME_WIDTH}}{figures.name} (measured in {figures.seconds:.0f} s)"
            for role, figures in self._measured.items()
        ]
        about = [f"{name:{_NAME_WIDTH}}{value}" for name, value in self.about.items()]
        rows = [_row("", list(self.estimates))]
        for name in self.estimates["model"]:
            cells = [column[name].shown("+" if role == "difference" else "") for role, column in self.estimates.items()]
            rows.append(_row(name, cells))
        return "\n".join([*heads, *about, *rows, self.note])

    def _figures(self, role: str) -> dict[str, Any]:
        estimates = self.estimates[role]
        return {
            **{name: estimate.value for name, estimate in estimates.items()},
            "tied_first": self._measured[role].tied_first,
            "seconds": self._measured[role].seconds,
            "interval": {name: [estimate.low, estimate.high] for name, estimate in estimates.items()},
        }


def _estimates(columns: Mapping[str, Values], groups: NDArray[np.int64]) -> dict[str, dict[str, Estimate]]:
    """Mean and interval of every figure of every column. All share the draws, so the differences are paired."""
    names = list(columns["model"])
    values = np.column_stack([column[name] for column in columns.values() for name in names])  # (examples, figures)
    low, high = intervals(values, groups).tolist()
    estimates = map(Estimate, values.mean(axis=0).tolist(), low, high)
    return {role: {name: next(estimates) for name in names} for role in columns}


def _row(name: str, cells: Sequence[str]) -> str:
    return (f"{name:{_NAME_WIDTH}}" + "".join(f"{cell:{_CELL_WIDTH}}" for cell in cells)).rstrip()
