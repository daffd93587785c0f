"""Runs with one change against the same runs without, over tiny models and made-up conversations."""

from pathlib import Path

import orjson
import pytest
from benchmarks import one_change, systems
from benchmarks.random_models import TINY, write_base

from polyrank.model.checkpoint.files import CONFIG_FILE
from polyrank.service.cli.commands.evaluate import measure


def settings(checkpoint: Path) -> dict[str, object]:
    kept: dict[str, object] = orjson.loads((checkpoint / CONFIG_FILE).read_bytes())["training"]["settings"]
    return kept


@pytest.mark.parametrize("change", one_change.CHANGES)
def test_both_runs_differ_in_one_setting(
    change: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, output = write_base(tmp_path / "base", TINY), tmp_path / "out"
    given = [change, "--data", str(data), "--output", str(output), "--base", str(base), "--steps", "2", "--systems"]
    teacher = ["--teacher", str(output / "bi-0")]
    systems.main([*given[1:], "bi"])
    capsys.readouterr()
    one_change.main([*given, "poly", "--pretrain-steps", "2", *teacher, "--json"])
    table = orjson.loads(capsys.readouterr().out)
    folders = {"pretraining": ("", "pretrained"), "teacher": ("untaught", "taught")}[change]
    plain, changed = (output / folder / "poly-0" for folder in folders)
    ours, theirs = settings(plain), settings(changed)
    assert [name for name in ours if ours[name] != theirs[name]] == [{"pretraining": "base"}.get(change, change)]
    for name, path in systems.YARDSTICKS.items():
        told = table[name]["poly"]
        with_it, without = (measure(str(each), data / path).as_object()["recall@1"] for each in (changed, plain))
        assert told["R@1"][0] == pytest.approx(with_it)
        assert told["more"][0] == pytest.approx(with_it - without)
    one_change.main([*given, "poly", "--pretrain-steps", "2", *teacher])
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 + len(systems.YARDSTICKS)
    assert all(row.count("|") == rows[0].count("|") for row in rows)


def test_negatives_are_replies_of_others(data: Path, tmp_path: Path) -> None:
    written = one_change.with_negatives(data / systems.TRAIN[0], tmp_path / "negatives.jsonl")
    rows = [orjson.loads(line) for line in written.read_bytes().splitlines()]
    assert len(rows) == 60
    assert all(len(row["negatives"]) == one_change.NEGATIVES for row in rows)
    assert all(row["response"] not in row["negatives"] for row in rows)
