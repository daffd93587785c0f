"""Pages of `polyrank evaluate --report` beside what the command prints and writes."""

import json
from pathlib import Path

import pytest
from command_line import call, write_rows
from report_pages import Page, require_self_contained

Capture = pytest.CaptureFixture[str]


def conversations(count: int) -> list[dict[str, object]]:
    replies = [f"w{n} w{n + 1}" for n in range(8)]
    return [
        {
            "context": ["w1 w2", f"asked{n} <b>now</b> w{n % 9}"],
            "response": replies[n % 8],
            "candidates": replies,
            "label": n % 8,
        }
        for n in range(count)
    ]


def right_first(path: Path) -> dict[int, float]:
    """Return the chance that each example's right reply is first, where scores tie."""
    lines = map(json.loads, path.read_text().splitlines())
    return {line["example"]: (line["rank"] == 1) / (1 + line["tied"]) for line in lines}


def test_an_evaluation_shows_figures_and_mistakes(capsys: Capture, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", conversations(16))
    report, output = tmp_path / "report.html", tmp_path / "lines.jsonl"
    options = ("--data", str(data), "--report", str(report), "--output", str(output), "--json")
    printed = call(capsys, "evaluate", "--model", "lexical", *options).result
    page = Page(report)
    require_self_contained(page)
    low, high = printed["interval"]["recall@1"]
    assert ["recall@1", f"{printed['recall@1']:.3f} [{low:.3f}, {high:.3f}]"] in page.rows
    assert page.count("circle") == 5
    wrong = {number for number, chance in right_first(output).items() if chance < 1}
    assert wrong
    shown = {number for number in range(16) for card in page.cards if f"asked{number} <b>now</b>" in card}
    assert (shown, len(page.cards)) == (wrong, len(wrong))


def test_two_models_are_shown_where_they_differ(capsys: Capture, tmp_path: Path, checkpoints: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", conversations(16))
    report, output = tmp_path / "report.html", tmp_path / "lines.jsonl"
    models = ("--model", "lexical", "--against", str(checkpoints / "poly"))
    options = ("--data", str(data), "--report", str(report), "--output", str(output), "--json")
    printed = call(capsys, "evaluate", *models, *options).result
    page, lexical = Page(report), right_first(output)
    call(capsys, "evaluate", "--model", checkpoints / "poly", "--data", data, "--output", output)
    differing = {number for number, chance in right_first(output).items() if chance != lexical[number]}
    assert differing
    shown = {number for number in range(16) for card in page.cards if f"asked{number} <b>now</b>" in card}
    assert (shown, len(page.cards)) == (differing, len(differing))
    difference = printed["difference"]["recall@1"]
    low, high = difference["interval"]
    assert ["recall@1", f"{difference['value']:+.3f} [{low:+.3f}, {high:+.3f}]"] in page.rows
