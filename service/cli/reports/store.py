"""`polyrank store list --report` and `verify --report`: the generations, and what their indexes find in which time."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyrank.service.cli.reports.charts import Series, curves
from polyrank.service.cli.reports.page import Section, write_page

_HEAD = ("generation", "candidates", "index", "recall@10", "recall@100", "p50, ms", "p99, ms", "model", "state")


def write_store(path: Path, store: Path, rows: Sequence[Mapping[str, Any]], states: Mapping[str, str]) -> None:
    """Write the page: `rows` as in `store list --json`, and `states`, what else is to be said of some, by id."""
    measured = [row for row in rows if "error" not in row and row["recall"]["count"]]
    sections = [Section("Generations", "", None, _HEAD, [_cells(row, states.get(row["id"])) for row in rows])]
    if measured:
        kinds = sorted({row["index"] for row in measured})
        series = [_of_kind(kind, measured) for kind in kinds]
        chart = curves("Recall against time", series, "p50 of a search, ms", "recall@10", dots=True)
        text = "A dot for each generation whose search was measured. A scan finds everything and is not shown."
        sections.append(Section("Recall against time", text, chart))
    write_page(path, f"Store {store}", sections)


def _of_kind(kind: str, rows: Sequence[Mapping[str, Any]]) -> Series:
    found = [row["recall"] for row in rows if row["index"] == kind]
    return Series(kind, [recall["p50_ms"] for recall in found], [recall["recall@10"] for recall in found])


def _cells(row: Mapping[str, Any], state: str | None) -> list[str]:
    shown = state or ("active" if row["active"] else "on trial" if row["trial"] else "")
    if "error" in row:
        return [row["id"], *[""] * (len(_HEAD) - 2), f"refused: {row['error']}"]
    recall = row["recall"]
    if recall["count"]:
        figures = [f"{recall[name]:.3f}" for name in ("recall@10", "recall@100")]
        figures += [f"{recall[name]:.2f}" for name in ("p50_ms", "p99_ms")]
    else:
        figures = ["1 (exact)", "1 (exact)", "", ""]
    return [row["id"], str(row["count"]), row["index"], *figures, row["model"], shown]
