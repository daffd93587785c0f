"""The figures of docs/results.md are drawn from data that say how they were measured."""

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
DATA = sorted((DOCS / "figures" / "data").glob("*.json"))


def test_there_are_data() -> None:
    assert DATA


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.stem)
def test_data_say_how_they_were_measured(path: Path) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["commands"]
    assert all(data[each] for each in ("what", "source", "machine", "spread"))


def test_every_figure_on_the_page_has_a_function_that_draws_it() -> None:
    shown = re.findall(r"\]\(figures/(\w+)\.svg\)", (DOCS / "results.md").read_text(encoding="utf-8"))
    drawn = re.findall(r"^def (\w+)\(\) -> Figure:", (DOCS / "draw.py").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert shown == drawn
