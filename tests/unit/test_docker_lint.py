"""`make lint` checks files of deployment and of GitHub, and leaves out a missing tool, by name, only if it may."""

import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import scripts
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lint() -> ModuleType:
    return scripts.loaded("docker/lint.py")


def _tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def test_every_check_names_files_that_exist(lint: ModuleType) -> None:
    parts = [part.removeprefix("--config.file=") for check in lint.checks() for part in check.command]
    paths = [Path(part) for part in parts if part.endswith((".yml", ".yaml", "Dockerfile"))]
    assert len(paths) >= 8
    assert all(path.is_file() for path in paths)


def test_the_chart_is_checked_as_it_comes_and_with_everything_set(lint: ModuleType) -> None:
    linted = {check.command[-1] for check in lint.checks() if check.command[0] == "helm"}
    assert linted == {str(ROOT / "docker/helm/values.yaml"), str(ROOT / "docker/helm/ci/full-values.yaml")}
    validated = [check.stdin for check in lint.checks() if check.command[0] == "kubernetes-validate"]
    assert {rendered[-1] for rendered in validated if isinstance(rendered, tuple)} == linted


def test_the_pods_of_the_ray_cluster_are_checked(lint: ModuleType) -> None:
    checks = [check for check in lint.checks() if check.title.startswith("Ray cluster")]
    assert len(checks) == 2
    for check in checks:
        assert sorted(each["kind"] for each in yaml.safe_load_all(check.stdin)) == ["NetworkPolicy", "Pod", "Pod"]


def test_every_workflow_is_checked_and_its_actions_are_pinned(lint: ModuleType) -> None:
    found = sorted((ROOT / ".github/workflows").iterdir())
    [check] = [check for check in lint.checks() if check.title == "workflows"]
    assert [Path(part) for part in check.command[3:]] == found != []
    used = [use for path in found for use in re.findall(r"uses: (\S+)", path.read_text(encoding="utf-8"))]
    assert all(re.search(r"@[0-9a-f]{40}$", use) for use in used if not use.startswith("./"))


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
    check = lint.Check("rules", ("promtool", "check"), "a package")
    assert lint.failed(check, str(tmp_path)) is fails
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
