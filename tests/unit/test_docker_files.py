"""The deployment files agree with each other and with the code; no Docker is needed to see it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import compose_file
import image_build
import pytest
import yaml

from polyrank.service import cli
from polyrank.service.changes import jobs
from polyrank.service.observe import tracing
from polyrank.service.observe.metrics import Metrics
from polyrank.service.process import draining
from polyrank.service.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
GPU = "api-gpu"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The compose file as it reads when no variable is set."""
    return compose_file.compose()


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions: (keyword, rest), continued lines joined."""
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    joined = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def stages(instructions: list[tuple[str, str]]) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Name of each stage -> (what it is built from, its own instructions)."""
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    name = ""
    for keyword, rest in instructions:
        if keyword == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()
            found[name] = (base, [])
        else:
            found[name][1].append((keyword, rest))
    return found


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DOCKER / "grafana/dashboards/polyrank.json").read_text(encoding="utf-8"))
    return loaded


def _yaml(name: str) -> Any:
    return yaml.safe_load((DOCKER / name).read_text(encoding="utf-8"))


def _value(stage: list[tuple[str, str]], keyword: str) -> str:
    return next(rest for key, rest in stage if key == keyword)


def _flag(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


# --- the image


@pytest.mark.parametrize("target", ["runtime-cpu", "runtime-cuda"])
def test_an_image_runs_unprivileged_and_has_what_was_installed_alone(stages: dict[str, Any], target: str) -> None:
    base, added = stages[target]
    runtime = [*stages[base][1], *added]
    assert [rest for key, rest in runtime if key == "USER"][-1] == "10001:10001"
    assert not [entry for entry in _value(runtime, "ENV").split() if entry.startswith(PREFIX)], "flags hide behind them"
    builder = target.replace("runtime", "builder")
    assert added[-1] == ("COPY", f"--from={builder} /opt/venv /opt/venv")
    assert "-c constraints.txt" in _value(stages[builder][1], "RUN")


def test_image_listens_where_its_healthcheck_looks(stages: dict[str, Any]) -> None:
    runtime = stages["runtime"][1]
    port = _flag(json.loads(_value(runtime, "CMD")), "--port")
    assert port == _value(runtime, "EXPOSE") == str(Settings.model_fields["port"].default)
    probe = json.loads(_value(runtime, "HEALTHCHECK").split("CMD ", 1)[1])
    assert probe[:2] == ["python", "-c"]
    compile(probe[2], "healthcheck", "exec")
    assert f"'http://127.0.0.1:{port}/readyz'" in probe[2]


def test_docker_context_holds_what_the_dockerfile_copies(instructions: list[tuple[str, str]]) -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line[1:] for line in ignore if line.startswith("!")}
    copied = {
        source
        for keyword, rest in instructions
        if keyword == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert "*" in ignore
    assert copied == allowed


def _make_image(path: str, *variables: str) -> subprocess.CompletedProcess[str]:
    make = shutil.which("make")
    assert make is not None
    environment = {"PATH": path, "LC_ALL": "C"}
    return subprocess.run([make, "image", *variables], cwd=ROOT, env=environment, text=True, capture_output=True)


def test_make_image_shows_and_runs_what_builds_the_image_that_compose_runs(
    tmp_path: Path, stages: dict[str, Any], compose: dict[str, Any]
) -> None:
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\necho "ran: $*"\n', encoding="utf-8")
    docker.chmod(0o755)
    done = _make_image(f"{tmp_path}:{os.defpath}")
    shown, ran = done.stdout.splitlines()
    assert shown.removeprefix("DOCKER_BUILDKIT=1 docker ") == ran.removeprefix("ran: ")
    words = ran.split()
    assert (ROOT / _flag(words, "--file")).is_file()
    assert _flag(words, "--target") in stages
    assert _flag(words, "--tag") == compose["services"]["api"]["image"]
    assert words[-1] == "."
    own = ("TARGET=runtime-cuda", "IMAGE=shop/polyrank:1", "TORCH_INDEX=http://a/b")
    told = "--target runtime-cuda --tag shop/polyrank:1 --build-arg TORCH_INDEX=http://a/b ."
    assert told in _make_image(f"{tmp_path}:{os.defpath}", *own).stdout
    docker.unlink()
    for tool in ("sh", "echo"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    without = _make_image(str(tmp_path))
    assert without.returncode != 0
    assert "docker build --file docker/Dockerfile" in without.stdout
    assert "docker is not installed" in without.stderr


def test_what_make_test_image_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert image_build.refusal().endswith(": apt-get install buildah debootstrap iproute2 util-linux")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "as root" in image_build.refusal()


# --- compose


def test_every_service_stands_alone_and_is_confined(compose: dict[str, Any]) -> None:
    uses = re.findall(r"(?<!\$)\$(?!\$)\S*", compose_file.text())
    assert uses
    assert all(re.match(r"\$\{[A-Z_]+:[-+][^}]*\}", use) for use in uses), "every variable has a default"
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        assert re.fullmatch(r"\d+[mg]", service["mem_limit"]), name
        assert service["cpu_quota"] in (100_000, 200_000), name
        assert "cpus" not in service, f"{name}: a machine with fewer processors would refuse it"
        for source, _, target in (mount.partition(":") for mount in service.get("volumes", [])):
            if source.startswith("."):
                assert (ROOT / source).exists(), source
                assert target.endswith(":ro")
            else:
                assert source in compose["volumes"]


def test_the_service_alone_is_opened_to_others_and_only_where_that_is_asked_for(compose: dict[str, Any]) -> None:
    for variables, beyond in (({}, set()), ({"BIND": "0.0.0.0"}, {"api", GPU})):
        services = compose_file.compose(**variables)["services"].items()
        assert {name for name, each in services for port in each.get("ports", []) if "127.0.0.1:" not in port} == beyond
    assert compose["services"]["redis"]["networks"] == ["data"]
    assert "ports" not in compose["services"]["redis"]
    assert compose["networks"]["data"]["internal"] is True


def test_grafana_has_an_account_only_with_a_password_that_was_given() -> None:
    for variables, no_account in (({}, "true"), ({"GRAFANA_PASSWORD": "much longer"}, "false")):
        grafana = compose_file.compose(**variables)["services"]["grafana"]
        defaults = dict(each.removeprefix("cfg:default.").split("=") for each in grafana["command"])
        environment = {name: value for name, value in grafana["environment"].items() if value}  # it ignores empty ones
        name = "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"
        assert environment.get(name, defaults["security.disable_initial_admin_creation"]) == no_account
        assert environment.get("GF_SECURITY_ADMIN_PASSWORD") == variables.get("GRAFANA_PASSWORD")
        assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


def test_a_stop_is_given_the_time_that_it_may_take(compose: dict[str, Any]) -> None:
    drains = Settings.model_fields["drain_delay_s"].default + draining.FINISH_SECONDS
    most = drains + jobs.GRACE_SECONDS + tracing.CLOSE_SECONDS
    for name in ("api", GPU):
        grace = re.fullmatch(r"(\d+)s", compose["services"][name]["stop_grace_period"])
        assert most < int(grace.group(1)) < 2 * most


def test_commands_are_those_of_polyrank(compose: dict[str, Any], stages: dict[str, Any]) -> None:
    services = compose["services"]
    build = re.search(r"exec polyrank (build .*); fi", services["builder"]["command"][0])
    image = json.loads(_value(stages["runtime"][1], "CMD"))
    for command in (build.group(1).split(), services["api"]["command"], services[GPU]["command"], image):
        assert cli.parser().parse_args(command).run  # argparse ends the test where it knows a flag not


def test_paths_in_the_image_are_copied_into_it(stages: dict[str, Any]) -> None:
    copied = {rest.split()[-1] for keyword, rest in stages["runtime"][1] if keyword == "COPY"}
    for path in set(re.findall(r"/app/[\w./-]+", compose_file.text())):
        assert (ROOT / path.removeprefix("/app/")).exists(), path
        assert any(path.startswith(root) for root in copied), path


def test_names_that_one_file_has_from_another_are_the_same(compose: dict[str, Any], dashboard: dict[str, Any]) -> None:
    services = compose["services"]
    names = [name for name in services["api"]["environment"] if name.startswith(PREFIX)]
    assert {name.removeprefix(PREFIX).lower() for name in names} <= set(Settings.model_fields)
    asked = [str(services[name]["command"]) for name in ("builder", "api")]
    assert set(re.findall(r"redis://[\w:/]+", " ".join(asked))) == {"redis://redis:6379/0"}
    prometheus = _yaml("prometheus.yml")
    [scraped] = prometheus["scrape_configs"]
    [managers] = prometheus["alerting"]["alertmanagers"]
    [target], [manager] = scraped["static_configs"], managers["static_configs"]
    for [name, port] in (each.split(":") for each in [*target["targets"], *manager["targets"]]):
        assert any(published.endswith(f":{port}") for published in services[name]["ports"]), name
        assert set(services[name]["networks"]) & set(services["prometheus"]["networks"]), name
    mounted = {mount.split(":")[1] for mount in services["prometheus"]["volumes"]}
    assert {f"/etc/prometheus/{name}" for name in [*prometheus["rule_files"], "prometheus.yml"]} <= mounted
    [receivers] = [mount.split(":")[0] for mount in services["alertmanager"]["volumes"] if mount.startswith("./")]
    told = yaml.safe_load((ROOT / receivers).read_text(encoding="utf-8"))["receivers"]
    assert {rule["labels"]["severity"] for rule in _alerts()} == {each["name"] for each in told}
    [source] = _yaml("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert dashboard["templating"]["list"][0]["current"]["value"] == source["uid"]
    [provider] = _yaml("grafana/provisioning/dashboards/polyrank.yml")["providers"]
    path = provider["options"]["path"]
    assert f"./docker/grafana/dashboards:{path}:ro" in services["grafana"]["volumes"]


# --- Prometheus and Grafana


def _families() -> dict[str, str]:
    """Every metric of the service -> its type."""
    text = Metrics().render().decode()
    found = dict(re.findall(r"^# TYPE (polyrank_\w+) (\w+)", text, flags=re.MULTILINE))
    return {name: kind for name, kind in found.items() if not name.endswith("_created")}


def _series() -> dict[str, str]:
    """Every name that a query may use -> the metric it belongs to."""
    suffixes = {"histogram": ("_bucket", "_sum", "_count")}
    return {name + end: name for name, kind in _families().items() for end in suffixes.get(kind, ("",))}


def _alerts() -> list[dict[str, Any]]:
    return [rule for group in _yaml("alerts.yml")["groups"] for rule in group["rules"] if "alert" in rule]


def _expressions(dashboard: dict[str, Any]) -> list[str]:
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return shown + [rule["expr"] for group in _yaml("alerts.yml")["groups"] for rule in group["rules"]]


def test_dashboard_and_alerts_name_metrics_that_exist_and_leave_none_out(dashboard: dict[str, Any]) -> None:
    used = {name for expression in _expressions(dashboard) for name in re.findall(r"polyrank_\w+", expression)}
    series = _series()
    assert used - set(series) == set()
    assert set(_families()) - {series[name] for name in used} == set()


def test_recorded_series_are_used_and_those_used_are_recorded(dashboard: dict[str, Any]) -> None:
    rules = [rule for group in _yaml("alerts.yml")["groups"] for rule in group["rules"]]
    used = {name for expression in _expressions(dashboard) for name in re.findall(r"polyrank:[\w:]+", expression)}
    assert used == {rule["record"] for rule in rules if "record" in rule}


def test_every_alert_leads_to_its_entry_in_the_runbook_and_every_entry_has_an_alert(compose: dict[str, Any]) -> None:
    config, environment = _yaml("prometheus.yml"), compose["services"]["prometheus"]["environment"]
    assert config["global"]["external_labels"] == {"runbook": "${RUNBOOK_URL}"}
    assert environment == {"RUNBOOK_URL": "docs/runbook.md"}
    entries = re.findall(r"^## (\w+)$", (ROOT / "docs/runbook.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(entries) == sorted({rule["alert"] for rule in _alerts()})
    for rule in _alerts():
        link = re.fullmatch(
            r'\{\{ or \$externalLabels\.runbook "([^"]+)" \}\}(#\w+)', rule["annotations"]["runbook_url"]
        )
        assert link.groups() == (environment["RUNBOOK_URL"], f"#{rule['alert'].lower()}")  # a heading's own anchor
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_every_alert_is_tried_where_it_fires_and_where_it_does_not() -> None:
    tried = [each for test in _yaml("alerts.test.yml")["tests"] for each in test.get("alert_rule_test", [])]
    fires = {each["alertname"] for each in tried if each["exp_alerts"]}
    is_silent = {each["alertname"] for each in tried if not each["exp_alerts"]}
    assert fires == is_silent == {rule["alert"] for rule in _alerts()}
    seen = {(each["alertname"], alert["exp_labels"].get("window")) for each in tried for alert in each["exp_alerts"]}
    assert seen == {(rule["alert"], rule["labels"].get("window")) for rule in _alerts()}
