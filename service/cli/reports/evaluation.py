"""`polyrank evaluate --report`: the figures with their intervals, and the texts where two models differ."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.service.cli.evaluation.report import Estimate, EvaluationReport
from polyrank.service.cli.evaluation.tasks import Task, TaskResult
from polyrank.service.cli.reports.charts import Interval, intervals
from polyrank.service.cli.reports.page import Section, write_page

SHOWN = 20
_LETTERS = 1000
_TURNS = 6


def write_evaluation(path: Path, report: EvaluationReport, task: Task[Any], outcomes: Sequence[TaskResult]) -> None:
    """Write the page; `outcomes` are those of the model and, if there is one, of the one it is compared with."""
    models = report.models
    title = models["model"] + (f" against {models['against']}" if "against" in models else "")
    sections = [_about(report), _figures(report)]
    if "against" in models:
        sections += [_difference(report), *_disagreements(report, task, outcomes)]
    else:
        sections.append(_mistakes(task, outcomes[0]))
    write_page(path, f"Evaluation of {title}", sections)


def _about(report: EvaluationReport) -> Section:
    return Section(rows=[*report.models.items(), *((name, str(value)) for name, value in report.about.items())])


def _figures(report: EvaluationReport) -> Section:
    roles = list(report.models)
    rows = [
        Interval(name if role == "model" else "", *report.estimates[role][name], series)
        for name in report.estimates["model"]
        for series, role in enumerate(roles)
    ]
    chart = intervals("Figures with intervals", rows, roles if len(roles) > 1 else ())
    table = [[name, *(_cell(report.estimates[role][name]) for role in roles)] for name in report.estimates["model"]]
    return Section("Figures", report.note, chart, ["", *roles], table)


def _difference(report: EvaluationReport) -> Section:
    found = report.estimates["difference"]
    chart = intervals("Differences with intervals", [Interval(name, *found[name]) for name in found])
    text = "Model minus against, over the same examples. Where an interval holds 0, chance may be the reason."
    return Section("Difference", text, chart, ["", "difference"], [[name, _cell(found[name], "+")] for name in found])


def _disagreements(report: EvaluationReport, task: Task[Any], outcomes: Sequence[TaskResult]) -> list[Section]:
    """Show examples that one model gets right first and the other one does not, largest differences first."""
    model, against = outcomes
    main = next(iter(model.values))
    sections = []
    for heading, better, worse in (
        (f"Better in {report.models['model']}", model, against),
        (f"Better in {report.models['against']}", against, model),
    ):
        gains = {name: better.values[name] - worse.values[name] for name in better.values}
        places = [place for place in _by_size(gains) if gains[main][place] > 0]
        text = f"{len(places)} of {len(task.groups)} examples by {main}. Shown: {min(SHOWN, len(places))}."
        cards = [
            [
                *_asked(task, place),
                (report.models["model"], _shortened(model.first[place])),
                (report.models["against"], _shortened(against.first[place])),
            ]
            for place in places[:SHOWN]
        ]
        sections.append(Section(heading, text, cards=cards))
    return sections


def _mistakes(task: Task[Any], outcome: TaskResult) -> Section:
    """Show examples where something else than the right answer came first, the worst first."""
    main = next(iter(outcome.values))
    losses = {name: -values for name, values in outcome.values.items()}
    places = [place for place in _by_size(losses) if outcome.values[main][place] < 1]
    text = f"{len(places)} of {len(task.groups)} examples by {main}. Shown: {min(SHOWN, len(places))}."
    cards = [[*_asked(task, place), ("first", _shortened(outcome.first[place]))] for place in places[:SHOWN]]
    return Section("Mistakes", text, cards=cards)


def _by_size(gains: dict[str, NDArray[np.float64]]) -> list[int]:
    """Order places by the sum of all gains, largest first; a loss counts as a gain with the other sign."""
    total = np.sum([-values if name.endswith("loss") else values for name, values in gains.items()], axis=0)
    order: list[int] = np.argsort(-total, kind="stable").tolist()
    return order


def _asked(task: Task[Any], place: int) -> list[tuple[str, str]]:
    example = task.example(place)
    left_out = len(example.asked) - _TURNS
    lines = [("", f"{left_out} texts before")] if left_out > 0 else []
    lines += [(name, _shortened(text)) for name, text in example.asked[-_TURNS:]]
    return [*lines, ("right", _shortened(example.right))]


def _shortened(text: str) -> str:
    return text if len(text) <= _LETTERS else text[:_LETTERS] + " …"


def _cell(estimate: Estimate, sign: str = "") -> str:
    return f"{estimate.value:{sign}.3f} [{estimate.low:{sign}.3f}, {estimate.high:{sign}.3f}]"
