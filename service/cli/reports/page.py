"""The page that all reports share: a title, and sections of text, charts, tables and cards. It loads nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from polyrank.model.durable import write_atomically


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page; what is empty is left out.

    Attributes:
        chart: SVG of polyrank.service.cli.reports.charts.
        head, rows: a table; the first cell of a row names it.
        cards: each is a list of labels and texts.
    """

    heading: str = ""
    text: str = ""
    chart: Markup | None = None
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    cards: Sequence[Sequence[tuple[str, str]]] = ()


def write_page(path: Path, title: str, sections: Sequence[Section]) -> None:
    """Write a page, in one step; every text is escaped."""
    html = _template().render(title=title, sections=sections)
    write_atomically(path, html.encode("utf-8", "replace"))  # half a surrogate pair has no form in UTF-8


@cache
def _template() -> Template:
    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html")
