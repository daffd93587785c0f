"""The Helm chart renders what the code and the image know. helm comes with `make lint`."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from polyrank.service import cli
from polyrank.service.changes import builder_process
from polyrank.service.http import operations
from polyrank.service.observe import tracing
from polyrank.service.process import draining
from polyrank.service.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "docker/helm"
HELM = shutil.which("helm", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))

needs_helm = pytest.mark.skipif(HELM is None, reason="helm is not installed; `make lint` brings it on Linux on x86_64")


def _values(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CHART / name).read_text(encoding="utf-8"))
    return loaded


def _render(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    own = {f"HELM_{kind}_HOME": str(folder) for kind in ("CACHE", "CONFIG", "DATA")}
    command = [str(HELM), "template", "polyrank", str(CHART), *options]
    return subprocess.run(command, env={**os.environ, **own}, text=True, capture_output=True)


def _pod(folder: Path, *options: str) -> dict[str, Any]:
    rendered = _render(folder, *options)
    assert rendered.returncode == 0, rendered.stderr
    documents = [each for each in yaml.safe_load_all(rendered.stdout) if each]
    [deployment] = [each for each in documents if each["kind"] == "Deployment"]
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def test_the_chart_is_of_the_packages_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chart = _values("Chart.yaml")
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_values_are_paths_in_the_image_and_known_settings() -> None:
    values, full = _values("values.yaml"), _values("ci/full-values.yaml")
    for name in ("pool", "model", "reranker"):
        assert (ROOT / values[name].removeprefix("/app/")).exists()
    assert set(values["settings"]) | set(full["settings"]) <= set(Settings.model_fields)
    Settings(**full["settings"], store="/store", redis_url="redis://redis:6379/0")
    assert set(full) == set(values) - {"cacheSize", "podAnnotations"}, "the lint renders everything that can be set"


@needs_helm
@pytest.mark.parametrize("values", ["values.yaml", "ci/full-values.yaml"])
def test_commands_variables_and_probes_are_ones_that_exist(values: str, tmp_path: Path) -> None:
    pod = _pod(tmp_path, "--values", str(CHART / values))
    [builder], [api] = pod["initContainers"], pod["containers"]
    assert cli.parser().parse_args(api["args"]).run
    build = re.search(r"exec polyrank (build .*); fi", builder["args"][0])
    assert build is not None
    assert cli.parser().parse_args(build[1].split()).run
    names = [each["name"] for each in api["env"] if each["name"].startswith(PREFIX)]
    assert {name.removeprefix(PREFIX).lower() for name in names} <= set(Settings.model_fields)
    assert len(names) == len(set(names))
    paths = {route.path for route in operations.router.routes}  # type: ignore[attr-defined]
    assert {api[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness", "liveness")} <= paths
    assert pod["enableServiceLinks"] is False
    for container in (builder, api):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True


@needs_helm
def test_a_stop_is_given_the_time_that_it_may_take(tmp_path: Path) -> None:
    drains = Settings.model_fields["drain_delay_s"].default + draining.FINISH_SECONDS
    most = drains + builder_process.GRACE_SECONDS + tracing.CLOSE_SECONDS
    assert most < _pod(tmp_path)["terminationGracePeriodSeconds"] < 2 * most


@needs_helm
def test_numbers_reach_the_server_as_they_were_written(tmp_path: Path) -> None:
    [api] = _pod(tmp_path, "--set", "settings.max_body_bytes=16777216,settings.deterministic=true")["containers"]
    variables = {each["name"]: each.get("value") for each in api["env"]}
    assert variables[f"{PREFIX}MAX_BODY_BYTES"] == "16777216"
    assert variables[f"{PREFIX}DETERMINISTIC"] == "true"


@needs_helm
@pytest.mark.parametrize(
    ("option", "told"),
    [("replicas=2", "ReadWriteMany"), ("replica=2", "replica"), ("store.accessMode=Many", "accessMode")],
)
def test_values_that_cannot_work_are_refused_by_name(option: str, told: str, tmp_path: Path) -> None:
    rendered = _render(tmp_path, "--set", option)
    assert rendered.returncode != 0
    assert told in rendered.stderr


@needs_helm
def test_replicas_that_share_a_store_are_rolled_over(tmp_path: Path) -> None:
    rendered = _render(tmp_path, "--set", "replicas=2,store.accessMode=ReadWriteMany").stdout
    assert "RollingUpdate" in rendered
    assert "PodDisruptionBudget" in rendered
