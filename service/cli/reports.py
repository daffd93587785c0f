"""The pages that `--report` writes.

Of `polyrank evaluate` the figures with their intervals, and the texts where two models differ; of `polyrank train` the
curves of a run; of `polyrank store` the generations, and what their indexes find in which time. And the page of
`polyrank feedback report`.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.service.cli.page import Interval, Section, Series, curves, intervals, write_page

if TYPE_CHECKING:  # they take torch or the store's libraries, which other pages do without
    from polyrank.service.cli.figures import EvaluationReport
    from polyrank.service.cli.tasks import Task, TaskResult
    from polyrank.service.feedback.report import FeedbackFigures, Share

SHOWN = 20
_LETTERS = 1000
_TURNS = 6
_LABEL_LETTERS = 15  # beside a chart; of a generation's id they are the second when it was built

_HEADINGS = {
    "loss": "Loss",
    "rescaled_loss": "Loss at the scale that suits the scores best",
    "recall_at_1": "R@1 over held-out examples",
    "code_cosine": "Mean cosine of the codes",
}
_SMOOTHED = 20
_HEAD = ("generation", "candidates", "index", "recall@10", "recall@100", "p50, ms", "p99, ms", "model", "state")


def write_evaluation(
    path: Path, report: "EvaluationReport", task: "Task[Any]", outcomes: "Sequence[TaskResult]"
) -> None:
    """Write the page; `outcomes` are those of the model and, if there is one, of the one it is compared with."""
    models = report.models
    title = models["model"] + (f" against {models['against']}" if "against" in models else "")
    about = [*models.items(), *((name, str(value)) for name, value in report.about.items())]
    sections = [Section(rows=about), _figures(report)]
    if "against" in models:
        differences = report.estimates["difference"]
        chart = intervals("Differences with intervals", [Interval(name, *differences[name]) for name in differences])
        text = "Model minus against, over the same examples. Where an interval holds 0, chance may be the reason."
        table = [[name, differences[name].shown("+")] for name in differences]
        sections.append(Section("Difference", text, chart, ["", "difference"], table))
        sections += _disagreements(report, task, outcomes)
    else:
        sections.append(_mistakes(task, outcomes[0]))
    write_page(path, f"Evaluation of {title}", sections)


def _figures(report: "EvaluationReport") -> Section:
    roles = list(report.models)
    rows = [
        Interval(name if role == "model" else "", *report.estimates[role][name], series)
        for name in report.estimates["model"]
        for series, role in enumerate(roles)
    ]
    chart = intervals("Figures with intervals", rows, roles if len(roles) > 1 else ())
    table = [[name, *(report.estimates[role][name].shown() for role in roles)] for name in report.estimates["model"]]
    return Section("Figures", report.note, chart, ["", *roles], table)


def _disagreements(report: "EvaluationReport", task: "Task[Any]", outcomes: "Sequence[TaskResult]") -> list[Section]:
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
                *_texts_of(task, place),
                (report.models["model"], _shortened(model.first[place])),
                (report.models["against"], _shortened(against.first[place])),
            ]
            for place in places[:SHOWN]
        ]
        sections.append(Section(heading, text, cards=cards))
    return sections


def _mistakes(task: "Task[Any]", outcome: "TaskResult") -> Section:
    """Show examples where something else than the right answer came first, the worst first."""
    main = next(iter(outcome.values))
    losses = {name: -values for name, values in outcome.values.items()}
    places = [place for place in _by_size(losses) if outcome.values[main][place] < 1]
    text = f"{len(places)} of {len(task.groups)} examples by {main}. Shown: {min(SHOWN, len(places))}."
    cards = [[*_texts_of(task, place), ("first", _shortened(outcome.first[place]))] for place in places[:SHOWN]]
    return Section("Mistakes", text, cards=cards)


def _by_size(gains: dict[str, NDArray[np.float64]]) -> list[int]:
    """Order places by the sum of all gains, largest first; a loss counts as a gain with the other sign."""
    total = np.sum([-values if name.endswith("loss") else values for name, values in gains.items()], axis=0)
    order: list[int] = np.argsort(-total, kind="stable").tolist()
    return order


def _texts_of(task: "Task[Any]", place: int) -> list[tuple[str, str]]:
    example = task.example(place)
    left_out = len(example.texts) - _TURNS
    lines = [("", f"{left_out} texts before")] if left_out > 0 else []
    lines += [(name, _shortened(text)) for name, text in example.texts[-_TURNS:]]
    return [*lines, ("right", _shortened(example.right))]


def _shortened(text: str) -> str:
    return text if len(text) <= _LETTERS else text[:_LETTERS] + " …"


class Curve(NamedTuple):
    """Values of a run by step."""

    steps: list[int]
    values: list[float]


def read_curves(logs: Path) -> dict[str, Curve]:
    """Read all scalars that a run logged, by tag. Of a step that a resumed run made again the last value counts."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(logs), {"scalars": 0})  # 0: all of them
    accumulator.Reload()
    by_tag = {}
    for tag in accumulator.Tags()["scalars"]:
        # Files are read in the order of their names, which is not always that of time.
        by_time = sorted(accumulator.Scalars(tag), key=lambda event: event.wall_time)
        by_step = {event.step: event.value for event in by_time}
        steps = sorted(by_step)
        by_tag[tag] = Curve(steps, [by_step[step] for step in steps])
    return by_tag


def write_training(path: Path, output: Path, summary: Mapping[str, Any], valid: Mapping[str, Any] | None) -> None:
    """Write the page of the run whose checkpoint is in `output`; `valid`: its figures on --valid, if there are any."""
    by_tag = read_curves(output / "logs")
    # The others are details that the checkpoint's polyrank.json has.
    single = [(name, str(value)) for name, value in summary.items() if isinstance(value, str | int | float)]
    sections = [Section(rows=single)]
    for name, heading in _HEADINGS.items():
        series = []
        if train := by_tag.get(f"train/{name}"):
            series.append(Series(f"training, mean of {_SMOOTHED} steps", train.steps, _smoothed(train.values)))
        if selection := by_tag.get(f"selection/{name}"):
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


def write_store(path: Path, store: Path, rows: Sequence[Mapping[str, Any]], states: Mapping[str, str]) -> None:
    """Write the page: `rows` as in `store list --json`, and `states`, what else is to be said of some, by id."""
    measured = [row for row in rows if "error" not in row and row["recall"]["count"]]
    sections = [Section("Generations", "", None, _HEAD, [_cells(row, states.get(row["id"])) for row in rows])]
    if measured:
        series = []
        for kind in sorted({row["index"] for row in measured}):
            own = [row["recall"] for row in measured if row["index"] == kind]
            series.append(Series(kind, [each["p50_ms"] for each in own], [each["recall@10"] for each in own]))
        chart = curves("Recall against time", series, "p50 of a search, ms", "recall@10", dots=True)
        text = "A dot for each generation whose search was measured. A scan finds everything and is not shown."
        sections.append(Section("Recall against time", text, chart))
    write_page(path, f"Store {store}", sections)


def _cells(row: Mapping[str, Any], state: str | None) -> list[str]:
    mark = state or ("active" if row["active"] else "on trial" if row["trial"] else "")
    if "error" in row:
        return [row["id"], *[""] * (len(_HEAD) - 2), f"refused: {row['error']}"]
    recall = row["recall"]
    if recall["count"]:
        figures = [f"{recall[name]:.3f}" for name in ("recall@10", "recall@100")]
        figures += [f"{recall[name]:.2f}" for name in ("p50_ms", "p99_ms")]
    else:
        figures = ["1 (exact)", "1 (exact)", "", ""]
    return [row["id"], str(row["count"]), row["index"], *figures, row["model"], mark]


def write_feedback(path: Path, store: Path, figures: "FeedbackFigures") -> None:
    """Write the page: what people took of what they were shown, and what they missed."""
    sections = [_summary(figures)]
    if figures.judged:
        sections += [
            _shares("First reply taken, by generation", figures.generations),
            _shares("First reply taken, by day (UTC)", figures.days),
            *(_shares(f"First reply taken, by its “{name}”", values) for name, values in figures.groups.items()),
            _ranks(figures),
            *_lacking(figures),
            _untaken(figures),
        ]
    write_page(path, f"Feedback in {store}", sections)


def _summary(figures: "FeedbackFigures") -> Section:
    rows = [["rankings", f"{figures.rankings:,}"]]
    if figures.rankings:
        began, ended = (f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}" for at in (figures.began, figures.ended))
        rows.append(["answered", f"{began} to {ended} UTC"])
    rows.append(["outcome known", f"{figures.judged:,}: a reply was sent, or none was good"])
    if figures.judged:
        rows.append(["first reply taken", _share(figures.first)])
    if figures.events:
        rows.append(["events", ", ".join(f"{count:,} {kind}" for kind, count in sorted(figures.events.items()))])
    text = "" if figures.judged else "No event says yet which replies were sent, so there is nothing to count."
    return Section("", text, None, (), rows)


def _shares(heading: str, shares: "Mapping[str, Share]") -> Section:
    """Show shares with Wilson's intervals; of groups with few rankings only the table tells."""
    from polyrank.service.feedback.report import FEW

    bars = [
        Interval(name[:_LABEL_LETTERS], share.value, *share.interval())
        for name, share in shares.items()
        if share.of >= FEW
    ]
    rows = [
        [name, _share(share), f"{share.of:,}" + (" (few)" if share.of < FEW else "")] for name, share in shares.items()
    ]
    text = "Sent as it stood, or edited. In brackets: 95 % intervals."
    if few := sum(share.of < FEW for share in shares.values()):
        text += f" {few} of {len(shares)} have fewer than {FEW} rankings with a known outcome, and are not drawn."
    return Section(heading, text, intervals(heading, bars) if bars else None, ["", "taken", "of"], rows)


def _share(share: "Share") -> str:
    low, high = share.interval()
    return f"{share.value:.3f} [{low:.3f}, {high:.3f}]".replace(" ", "\N{NO-BREAK SPACE}")


def _ranks(figures: "FeedbackFigures") -> Section:
    from polyrank.service.feedback.report import Share

    last = max((rank for rank in figures.sent if isinstance(rank, int)), default=0)
    counts = {f"rank {rank}": figures.sent[rank] for rank in range(1, last + 1)}
    others: dict[str, int | str] = {
        "a rank not recorded": 0,
        "written by hand": "written",
        "none was good": "none_good",
    }
    counts |= {name: figures.sent[other] for name, other in others.items()}
    shares = {name: Share(count, figures.judged) for name, count in counts.items() if count or name.startswith("rank ")}
    heading = "Where the reply that was sent stood"
    chart = intervals(heading, [Interval(name, share.value, *share.interval()) for name, share in shares.items()])
    rows = [[name, _share(share), f"{share.taken:,}"] for name, share in shares.items()]
    return Section(heading, "Shares of the rankings whose outcome is known.", chart, ["", "share", "count"], rows)


def _lacking(figures: "FeedbackFigures") -> list[Section]:
    heading = "What the pool lacks"
    if not figures.with_texts:
        return [Section(heading, "Contexts are not recorded; polyrank serve --feedback texts records them.")]
    total = figures.alone + sum(group.contexts for group in figures.lacks)
    text = f"For {total:,} of {figures.with_texts:,} contexts a reply was written by hand, or none was good."
    if total:
        text += " Here they are by words that they share, the largest groups first."
        text += f" {figures.alone:,} are in none of these groups." if figures.alone else ""
    cards = [
        [
            (f"{group.contexts:,} contexts", ", ".join(group.words)),
            *(("such as", _shortened(example)) for example in group.examples),
        ]
        for group in figures.lacks
    ]
    return [Section(heading, text, cards=cards)]


def _untaken(figures: "FeedbackFigures") -> Section:
    from polyrank.service.feedback.report import SHOWN_OFTEN

    heading = "Replies that are never taken"
    text = f"Replies that were shown {SHOWN_OFTEN} times or more: {figures.shown_often:,}."
    if figures.untaken:
        text += " Nobody took these; those that were shown first most often lead."
    elif figures.shown_often:
        text += " Each was taken."
    cards = [
        [
            (each.id, "its text is in no generation any more" if each.text is None else _shortened(each.text)),
            ("shown", f"{each.shown:,} times, {each.first:,} of them first"),
        ]
        for each in figures.untaken
    ]
    return Section(heading, text, cards=cards)
