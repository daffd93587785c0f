"""`polyrank train --report`: the curves of a run, from the logs that it keeps, and what it ended with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from polyrank.service.cli.reports.charts import Series, curves
from polyrank.service.cli.reports.page import Section, write_page

_HEADINGS = {"loss": "Loss", "recall_at_1": "R@1 over held-out examples", "code_cosine": "Mean cosine of the codes"}
_SMOOTHED = 20


class Curve(NamedTuple):
    """Values of a run by step."""

    steps: list[int]
    values: list[float]


def read_curves(logs: Path) -> dict[str, Curve]:
    """Read all scalars that a run logged, by tag. Of a step that a resumed run made again the last value counts."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(logs), {"scalars": 0})  # 0: all of them
    accumulator.Reload()
    found = {}
    for tag in accumulator.Tags()["scalars"]:
        # Files are read in the order of their names, which is not always that of time.
        by_time = sorted(accumulator.Scalars(tag), key=lambda event: event.wall_time)
        by_step = {event.step: event.value for event in by_time}
        steps = sorted(by_step)
        found[tag] = Curve(steps, [by_step[step] for step in steps])
    return found


def write_training(path: Path, output: Path, summary: Mapping[str, Any], valid: Mapping[str, Any] | None) -> None:
    """Write the page of the run whose checkpoint is in `output`; `valid`: its figures on --valid, if there are any."""
    logged = read_curves(output / "logs")
    sections = [Section(rows=[(name, str(value)) for name, value in _plain(summary).items()])]
    for name, heading in _HEADINGS.items():
        series = []
        if train := logged.get(f"train/{name}"):
            series.append(Series(f"training, mean of {_SMOOTHED} steps", train.steps, _smoothed(train.values)))
        if selection := logged.get(f"selection/{name}"):
            series.append(Series("held-out examples", selection.steps, selection.values))
        if series:
            sections.append(Section(heading, "", curves(heading, series, "step", "")))
    if valid is not None:
        figures = [(name, f"{value:.4f}") for name, value in valid.items() if isinstance(value, float)]
        sections.append(Section("Figures on --valid", rows=figures))
    write_page(path, f"Training of {output.resolve().name}", sections)


def _smoothed(values: list[float]) -> list[float]:
    """Average each value with those of the steps before it."""
    parts = (values[max(0, end - _SMOOTHED) : end] for end in range(1, len(values) + 1))
    return [sum(part) / len(part) for part in parts]


def _plain(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is no single value: details that the checkpoint's polyrank.json has."""
    return {name: value for name, value in summary.items() if isinstance(value, str | int | float)}
