"""README, results and peers say the figures that were measured, and figures are drawn from data that say how."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DATA = sorted((DOCS / "figures" / "data").glob("*.json"))
POOL, CROWD = 31_000, 16  # replies and callers of the figures that README gives
ENGINES = {"float32": ("torch", "onnx", "openvino-f32"), "bfloat16": ("torch-bf16", "openvino-f16")}


def _prose(page: str) -> str:
    """The page as one line, so that a sentence is found wherever its lines break."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def _results(name: str) -> list[dict[str, Any]]:
    rows = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return list(rows)


def _data(name: str) -> Any:
    return json.loads((DOCS / "figures" / "data" / f"{name}.json").read_text(encoding="utf-8"))


def _served(callers: int) -> dict[str, Any]:
    """What callers of polyrank measured over 31,000 replies."""
    [row] = [
        row
        for row in _results("rank")
        if (row["who"], row["candidates"], row["callers"]) == ("polyrank", POOL, callers)
    ]
    return row


def _times_as_fast(work: str, precision: str) -> float:
    """How many times as fast polyrank encodes as the fastest engine that computes in this precision, on one thread."""
    rows = [row for row in _results("encode") if (row["work"], row["threads"]) == (work, 1)]
    ours = next(
        row["ms"]["median"]
        for row in rows
        if row["who"].startswith("polyrank") and row["about"]["precision"] == precision
    )
    return float(min(row["ms"]["median"] for row in rows if row["who"] in ENGINES[precision]) / ours)


def _right(of_set: str, model: str, figure: str = "r1") -> float:
    [rows] = [each["rows"] for each in _data("quality")["sets"] if each["set"] == of_set]
    [value] = [row[figure] for row in rows if row["model"] == model]
    return float(value)


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_a_request_takes_as_long_as_was_measured(page: str) -> None:
    alone, crowd = _served(1), _served(CROWD)
    prose = _prose(page)
    p50, p99 = alone["p50_ms"]["median"], alone["p99_ms"]["median"]
    assert f"{p50:.0f} ms in the median, {p99:.0f} ms at the 99th percentile" in prose
    assert f"{crowd['per_second']['median']:.0f} answers a second" in prose


def test_readme_says_how_often_the_right_reply_is_first() -> None:
    words, vectors = _right("ConvAI2", "chat-poly", "with_words"), _right("ConvAI2", "chat-poly")
    untrained = _right("ConvAI2", "untrained")
    assert f"{words:.0%} with `chat-poly`, {vectors:.0%} by its vectors alone".replace("%", " %") in _prose("README.md")
    assert f"{untrained:.0%} with the untrained model".replace("%", " %") in _prose("README.md")


def test_readme_says_how_soon_a_clone_ranks() -> None:
    [seconds] = re.findall(r"(\d+) s on the EPYC, of which", _prose("docs/measurements/serving.md"))
    assert f"in {round(int(seconds) / 30) / 2} minutes on two cores" in _prose("README.md")


def test_results_say_how_often_the_right_reply_is_first() -> None:
    prose = _prose("docs/results.md")
    untrained, trained = _right("ConvAI2", "untrained"), _right("ConvAI2", "chat-poly")
    assert f"from {untrained} to {trained}. With words it is {_right('ConvAI2', 'chat-poly', 'with_words')}" in prose
    irc = _right("Ubuntu IRC", "chat-poly"), _right("Ubuntu IRC", "chat-poly", "with_words")
    assert f"from {irc[0]} to {irc[1]}" in prose


def test_results_say_how_fast_encoding_is() -> None:
    one, many = (
        [_times_as_fast(work, precision) for precision in ("bfloat16", "float32")]
        for work in ("1 context", "32 contexts")
    )
    prose = _prose("docs/results.md")
    assert f"{one[0]:.1f} times as fast in bfloat16 and {one[1]:.1f} times in float32" in prose
    assert f"{many[0]:.1f} and {many[1]:.1f} times as fast" in prose


def test_results_say_what_happens_under_load() -> None:
    data = _data("load")
    twice = data["overload"][-1]
    ratios = [row["batched"] / row["one_by_one"] for row in data["batching"]][1:]
    prose = _prose("docs/results.md")
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times the answers" in prose
    assert f"its capacity of {data['capacity_per_second']} requests a second" in prose
    assert f"{twice['good_per_second']} good answers a second" in prose


def test_peers_lists_the_goals_as_they_were_measured() -> None:
    page = _prose("docs/measurements/peers.md")
    for goal in json.loads((ROOT / "benchmarks" / "results" / "goals.json").read_text(encoding="utf-8")):
        least = "at most " if goal["at_most"] else ""
        row = f"| {goal['work']} | {goal['against']} | {least}{goal['goal']} | {goal['reached']['median']:.3g}"
        assert " ".join(row.split()) in page


def test_data_say_how_they_were_measured() -> None:
    assert DATA
    for data in (json.loads(path.read_text(encoding="utf-8")) for path in DATA):
        assert all(data[each] for each in ("what", "source", "machine", "spread", "commands"))


def test_every_figure_on_a_page_has_a_function_that_draws_it() -> None:
    pages = "".join((DOCS / page).read_text(encoding="utf-8") for page in ("results.md", "measurements/peers.md"))
    shown = re.findall(r"\]\((?:\.\./)?figures/(\w+)\.svg\)", pages)
    drawn = re.findall(r"^def (\w+)\(\) -> Figure:", (DOCS / "draw.py").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert shown == drawn
