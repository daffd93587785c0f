"""`make lint` checks files of deployment and of GitHub, and leaves out a missing tool, by name, only if it may."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import scripts

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lint() -> ModuleType:
    return scripts.loaded("docker/lint.py")


def _tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def test_every_query_of_the_dashboard_becomes_a_rule_without_grafanas_variables(lint: ModuleType) -> None:
    dashboard = json.loads((ROOT / "docker/grafana/dashboards/polyrank.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    (group,) = json.loads(lint.as_rules(dashboard))["groups"]
    assert [rule["expr"] for rule in group["rules"]] == [
        query.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$pool", ".*") for query in queries
    ]
    assert "$" not in lint.as_rules(dashboard)


@pytest.mark.parametrize(("ci", "fails", "said"), [("", False, "not checked"), ("true", True, "is not installed")])
def test_a_missing_tool_is_named_and_fails_only_continuous_integration(
    lint: ModuleType,
    ci: str,
    fails: bool,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CI", ci)
    assert lint.failed(lint.Check("rules", ("promtool", "check"), "a package"), str(tmp_path)) is fails
    shown = capsys.readouterr().err
    assert "promtool is not installed (a package brings it)" in shown
    assert said in shown


def test_what_a_tool_finds_is_shown_and_fails(lint: ModuleType, tmp_path: Path, capsys) -> None:
    _tool(tmp_path, "linter", 'read line; echo "bad $line $1"; [ "$1" = good ]')
    assert lint.failed(lint.Check("file", ("linter", "name"), "x", "stdin\n"), str(tmp_path))
    assert "bad stdin name" in capsys.readouterr().err
    assert not lint.failed(lint.Check("file", ("linter", "good"), "x", "stdin\n"), str(tmp_path))
    assert capsys.readouterr().out == "file: ok\n"


def test_what_one_tool_prints_the_other_reads_unless_the_first_fails(lint: ModuleType, tmp_path: Path, capsys) -> None:
    _tool(tmp_path, "renderer", 'echo "$1"; [ "$1" != broken ]')
    _tool(tmp_path, "linter", 'read line; echo "linter read $line"; [ "$line" = good ]')
    for rendered, told in (("good", ""), ("bad", "linter read bad"), ("broken", "broken")):
        assert lint.failed(lint.Check("file", ("linter",), "x", ("renderer", rendered)), str(tmp_path)) is bool(told)
        shown = capsys.readouterr()
        assert shown.out == f"file: {'failed' if told else 'ok'}\n"
        assert shown.err.strip() == told
