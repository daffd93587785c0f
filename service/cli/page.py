"""The page that all reports share: a title, and sections of text, charts, tables and cards. It loads nothing.

Charts are SVG elements of the page, with its colours and fonts; screen readers are told a name.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from polyrank.model.durable import write_atomically

WIDTH = 720.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 60.0, 16.0, 12.0, 40.0
_ROW = 22.0
_LABEL = 200.0
_MOST_POINTS = 1000


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page; what is empty is left out."""

    heading: str = ""
    text: str = ""
    chart: Markup | None = None  # SVG, as `intervals` and `curves` make it
    head: Sequence[str] = ()  # of a table
    rows: Sequence[Sequence[str]] = ()  # the first cell of each names it
    cards: Sequence[Sequence[tuple[str, str]]] = ()  # each is a list of labels and texts


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


class Interval(NamedTuple):
    """A figure's value, and the ends of its interval."""

    label: str
    value: float
    low: float
    high: float
    series: int = 0


class Series(NamedTuple):
    """Points of one colour, with a name for the legend."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]


class Scale(NamedTuple):
    """Maps numbers from `low` to `high` to places from `start` to `end`, in pixels."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the place of a number.

        >>> Scale(0, 10, 100, 200).at(5)
        150.0
        """
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def ticks(low: float, high: float) -> list[float]:
    """Return three to eight round numbers from `low` to `high`, in steps of 1, 2 or 5 times a power of ten.

    >>> ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> ticks(-0.03, 0.05)
    [-0.02, 0.0, 0.02, 0.04]
    """
    exponent = math.floor(math.log10((high - low) / 4))
    step = next(size for size in (1, 2, 5, 10) if size * 10.0**exponent >= (high - low) / 6) * 10.0**exponent
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, max(0, 2 - exponent)) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def intervals(name: str, rows: Sequence[Interval], legend: Sequence[str] = ()) -> Markup:
    """Draw a row for each figure: a dot at its value and a line over its interval. `legend` names the series."""
    low, high = min(row.low for row in rows), max(row.high for row in rows)
    scale = Scale(*_widened(min(low, 0.0) if low >= 0 else low, max(high, 0.0)), _LABEL, WIDTH - _RIGHT)
    bottom = _TOP + _ROW * len(rows)
    chart = _chart(name, bottom + (48 if legend else 24))
    for tick in ticks(scale.low, scale.high):
        _line(chart, "zero" if tick == 0 else "grid", scale.at(tick), _TOP, scale.at(tick), bottom)
        _text(chart, scale.at(tick), bottom + 16, f"{tick:g}", "middle")
    for place, row in enumerate(rows):
        y = _TOP + _ROW * (place + 0.5)
        _text(chart, _LABEL - 10, y + 4, row.label, "end")
        group = ElementTree.SubElement(chart, "g", {"class": f"series-{row.series}"})
        title = f"{row.label}: {row.value:.3f} [{row.low:.3f}, {row.high:.3f}]"
        ElementTree.SubElement(group, "title").text = title
        _line(group, "", scale.at(row.low), y, scale.at(row.high), y)
        _dot(group, scale.at(row.value), y)
    _name_series(chart, legend, _LABEL, bottom + 40)
    return _markup(chart)


def curves(name: str, series: Sequence[Series], x_label: str, y_label: str, *, dots: bool = False) -> Markup:
    """Draw each series as a line, or as dots, over common axes. Of a long series every so many points are drawn."""
    series = [_thinned(each) for each in series]
    xs = [x for each in series for x in each.xs]
    ys = [y for each in series for y in each.ys]
    height = 300.0
    across = Scale(*_widened(min(xs), max(xs)), _LEFT, WIDTH - _RIGHT)
    up = Scale(*_widened(min(ys), max(ys)), height - _BOTTOM, _TOP)
    chart = _chart(name, height + 20)
    for tick in ticks(across.low, across.high):
        _line(chart, "grid", across.at(tick), up.end, across.at(tick), up.start)
        _text(chart, across.at(tick), up.start + 16, f"{tick:g}", "middle")
    for tick in ticks(up.low, up.high):
        _line(chart, "grid", across.start, up.at(tick), across.end, up.at(tick))
        _text(chart, across.start - 6, up.at(tick) + 4, f"{tick:g}", "end")
    _text(chart, (across.start + across.end) / 2, up.start + 34, x_label, "middle")
    _text(chart, across.start + 6, up.end + 12, y_label, "start")
    for place, each in enumerate(series):
        group = ElementTree.SubElement(chart, "g", {"class": f"series-{place}"})
        ElementTree.SubElement(group, "title").text = each.label
        places = [(across.at(x), up.at(y)) for x, y in zip(each.xs, each.ys, strict=True)]
        if dots or len(places) == 1:
            for x, y in places:
                _dot(group, x, y)
        else:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            ElementTree.SubElement(group, "polyline", {"points": line, "fill": "none"})
    _name_series(chart, [each.label for each in series], across.start, height + 12)
    return _markup(chart)


def _name_series(chart: ElementTree.Element, names: Sequence[str], x: float, y: float) -> None:
    width = (WIDTH - x) / max(1, len(names))
    for place, name in enumerate(names):
        group = ElementTree.SubElement(chart, "g", {"class": f"series-{place}"})
        _text(group, x + width * place, y, f"● {name}", "start")


def _thinned(series: Series) -> Series:
    step = max(1, math.ceil(len(series.xs) / _MOST_POINTS))
    return Series(series.label, series.xs[::step], series.ys[::step])


def _widened(low: float, high: float) -> tuple[float, float]:
    """Leave room around the numbers, also where all are one."""
    room = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
    return (low if low == 0 else low - room), high + room


def _chart(name: str, height: float) -> ElementTree.Element:
    return ElementTree.Element("svg", {"viewBox": f"0 0 {WIDTH:g} {height:g}", "role": "img", "aria-label": name})


def _line(parent: ElementTree.Element, kind: str, x1: float, y1: float, x2: float, y2: float) -> None:
    places = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    ElementTree.SubElement(parent, "line", {**({"class": kind} if kind else {}), **places})


def _dot(parent: ElementTree.Element, x: float, y: float) -> None:
    ElementTree.SubElement(parent, "circle", {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": "4"})


def _text(parent: ElementTree.Element, x: float, y: float, text: str, anchor: str) -> None:
    where = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
    ElementTree.SubElement(parent, "text", where).text = text


def _markup(chart: ElementTree.Element) -> Markup:
    return Markup(ElementTree.tostring(chart, encoding="unicode"))  # ElementTree escapes texts
