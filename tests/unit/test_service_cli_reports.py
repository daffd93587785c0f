"""Pages to look at, parsed as a browser would: their tables, charts and texts."""

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from command_line import call
from fakes import HashEncoder, pool
from report_pages import Page, require_self_contained

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.names import KINDS
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.service.cli.page import Interval, Section, Series, curves, intervals, ticks, write_page
from polyrank.service.cli.reports import read_curves
from polyrank.service.cli.tasks import conversation_texts

Capture = pytest.CaptureFixture[str]


def test_texts_stay_texts(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script><img src=x onerror=alert(1)> \"'& ‮right to left \ud800"
    chart = intervals(hostile, [Interval(hostile, 0.5, 0.4, 0.6)])
    section = Section(hostile, hostile, chart, [hostile], [[hostile, hostile]], [[(hostile, hostile)]])
    write_page(tmp_path / "page.html", hostile, [section])
    page = Page(tmp_path / "page.html")
    require_self_contained(page)
    assert page.rows[1] == [hostile.replace("\ud800", "?")] * 2


def test_cells_of_a_wide_table_are_named_for_narrow_screens(tmp_path: Path) -> None:
    head = ["a", "b", "c", "d", '"e"']
    write_page(
        tmp_path / "page.html", "t", [Section(head=head, rows=[["1", "2", "3", "4", "5"]]), Section(rows=[["6"]])]
    )
    tags = Page(tmp_path / "page.html").tags
    assert [attributes.get("class") for tag, attributes in tags if tag == "table"] == ["wide", None]
    assert [attributes["data-name"] for tag, attributes in tags if tag == "td"] == head[1:]


def test_turns_have_their_role_or_their_number() -> None:
    said = Conversation((Turn("hi"), Turn("hello", "agent"), Turn("bye")), ("a fact",))
    assert conversation_texts(said) == [("fact", "a fact"), ("turn 1", "hi"), ("agent", "hello"), ("turn 3", "bye")]


def test_a_chart_places_values_by_their_size() -> None:
    drawn = intervals("x", [Interval("a", 0.2, 0.1, 0.3), Interval("b", 0.4, 0.4, 0.4, 1)])
    page = HTMLParser()
    centres: list[float] = []
    page.handle_starttag = lambda tag, attrs: centres.append(float(dict(attrs)["cx"] or 0)) if tag == "circle" else None
    page.feed(drawn)
    assert 200 < centres[0] < centres[1] <= 704
    assert (centres[1] - 200) == pytest.approx(2 * (centres[0] - 200), abs=0.2), "0 is at the left end"


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3e-5, 2e-5), (1.0, 1.05), (0.0, 123456.0), (-7.0, -6.5)])
def test_ticks_are_few_and_round(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 3 <= len(found) <= 8
    assert low <= found[0] < found[-1] <= high
    assert np.ptp(np.diff(found)) < 1e-9 * (high - low)


def test_each_kind_of_index_has_a_colour_in_light_and_dark(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", "x", [])
    styles = (tmp_path / "page.html").read_text()
    kinds = ({*KINDS} - {"auto", "exact"}) | {"custom"}
    for place in range(len(kinds)):
        [name] = re.findall(rf"^.*\.series-{place} {{ stroke: var\((--\w+)\); fill: var\(\1\) }}", styles, re.MULTILINE)
        assert len(re.findall(rf"{name}: #", styles)) == 2


def test_a_long_series_is_thinned() -> None:
    assert len(curves("x", [Series("a", range(100_000), [1.0] * 100_000)], "step", "loss")) < 100_000


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_run_that_was_resumed_is_one_curve(tmp_path: Path, names: str) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for name, steps, value in (("0", range(1, 6), 1.0), ("1", range(4, 9), 2.0)):
        with SummaryWriter(str(tmp_path / name)) as writer:
            for step in steps:
                writer.add_scalar("train/loss", value, step)
        [file] = (tmp_path / name).iterdir()
        file.rename(tmp_path / f"events.out.tfevents.{names[int(name)]}")
    curve = read_curves(tmp_path)["train/loss"]
    assert curve.steps == list(range(1, 9))
    assert curve.values == [1.0] * 3 + [2.0] * 5


def test_a_store_shows_recall_against_time(capsys: Capture, tmp_path: Path) -> None:
    store, report = tmp_path / "store", tmp_path / "store.html"
    scan = build(HashEncoder(), pool(300, "a"), store, BuildOptions()).generation
    graph = build(HashEncoder(), pool(300, "b"), store, BuildOptions(index="hnsw")).generation
    listed = call(capsys, "store", "list", "--store", store, "--report", report, "--json").result
    page = Page(report)
    require_self_contained(page)
    assert [row[0] for row in page.rows[1:]] == [scan, graph]
    recall = next(each["recall"] for each in listed["generations"] if each["id"] == graph)
    assert page.rows[2][2:4] == ["hnsw", f"{recall['recall@10']:.3f}"]
    assert page.rows[2][-1] == "active"
    assert page.count("circle") == 1, "a scan is not measured"
    damaged = store / "generations" / scan / "embeddings.bin"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert call(capsys, "store", "verify", "--store", store, "--report", report).status == 1
    page = Page(report)
    assert "refused" in page.rows[1][-1]
    assert page.rows[2][-1] == "every byte is right"
