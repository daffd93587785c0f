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


def _specs(folder: Path, *options: str) -> dict[str, Any]:
    """Kind of each rendered document -> its `spec`; the chart has one of a kind."""
    rendered = _render(folder, *options)
    assert rendered.returncode == 0, rendered.stderr
    return {each["kind"]: each["spec"] for each in yaml.safe_load_all(rendered.stdout) if each}


def _pod(folder: Path, *options: str) -> dict[str, Any]:
    spec: dict[str, Any] = _specs(folder, *options)["Deployment"]["template"]["spec"]
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
    [
        ("replicas=2", "ReadWriteMany"),
        ("replicas=2,store.claim=mine", "ReadWriteMany"),
        ("autoscaling.maxReplicas=3", "ReadWriteMany"),
        ("autoscaling.maxReplicas=2,replicas=2,store.accessMode=ReadWriteMany", "maxReplicas"),
        ("replica=2", "replica"),
        ("store.accessMode=Many", "accessMode"),
        ("strategy=Sudden", "strategy"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(option: str, told: str, tmp_path: Path) -> None:
    rendered = _render(tmp_path, "--set", option)
    assert rendered.returncode != 0
    assert told in rendered.stderr


@needs_helm
@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteMany"])
def test_an_upgrade_keeps_a_replica_and_a_volume_of_one_node_its_node(mode: str, tmp_path: Path) -> None:
    deployment = _specs(tmp_path, "--set", f"store.accessMode={mode},affinity.nodeAffinity.some=thing")["Deployment"]
    assert deployment["strategy"]["type"] == "RollingUpdate"
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    affinity = deployment["template"]["spec"]["affinity"]
    assert affinity.pop("nodeAffinity") == {"some": "thing"}
    near = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": deployment["selector"]}]
    required = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": near}}
    assert affinity == (required if mode == "ReadWriteOnce" else {})


@needs_helm
@pytest.mark.parametrize("options", ["strategy=Recreate", "store.accessMode=ReadWriteOncePod"])
def test_where_two_pods_cannot_be_the_old_one_stops_first(options: str, tmp_path: Path) -> None:
    assert _specs(tmp_path, "--set", options)["Deployment"]["strategy"] == {"type": "Recreate"}


@needs_helm
@pytest.mark.parametrize("options", ["replicas=1", "replicas=3,store.accessMode=ReadWriteMany"])
def test_a_drain_stops_one_pod_at_a_time(options: str, tmp_path: Path) -> None:
    specs = _specs(tmp_path, "--set", options)
    assert specs["PodDisruptionBudget"] == {"maxUnavailable": 1, "selector": specs["Deployment"]["selector"]}


@needs_helm
def test_the_autoscaler_and_nobody_else_counts_replicas(tmp_path: Path) -> None:
    assert _specs(tmp_path)["Deployment"]["replicas"] == 1
    assert "HorizontalPodAutoscaler" not in _specs(tmp_path)
    specs = _specs(tmp_path, "--set", "replicas=2,autoscaling.maxReplicas=5,store.accessMode=ReadWriteMany")
    assert "replicas" not in specs["Deployment"]
    scaler = specs["HorizontalPodAutoscaler"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 5)
    assert scaler["scaleTargetRef"]["kind"] == "Deployment"
    [metric] = scaler["metrics"]
    assert metric["resource"] == {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}


@needs_helm
def test_memory_and_processors_of_every_container_are_limited(tmp_path: Path) -> None:
    specs = _specs(tmp_path)
    pod = specs["Deployment"]["template"]["spec"]
    for container in [*pod["initContainers"], *pod["containers"], *specs["Pod"]["containers"]]:
        assert set(container["resources"]["limits"]) == set(container["resources"]["requests"]) == {"cpu", "memory"}


@needs_helm
@pytest.mark.parametrize(
    ("options", "peers"),
    [
        ("replicas=1", [{"podSelector": {}}]),
        ("keysSecret=keys", None),
        (
            "networkPolicy.from[0].namespaceSelector.matchLabels.name=ingress",
            [
                {"namespaceSelector": {"matchLabels": {"name": "ingress"}}},
                {"podSelector": {"matchLabels": {"app.kubernetes.io/instance": "polyrank"}}},
            ],
        ),
    ],
)
def test_without_keys_the_namespace_alone_reaches_the_pods_and_no_port_but_theirs(
    options: str, peers: list[Any] | None, tmp_path: Path
) -> None:
    specs = _specs(tmp_path, "--set", options)
    policy = specs["NetworkPolicy"]
    assert policy["podSelector"] == specs["Deployment"]["selector"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    [rule] = policy["ingress"]
    assert rule["ports"] == [{"port": specs["Service"]["ports"][0]["targetPort"]}]
    assert rule.get("from") == peers


@needs_helm
@pytest.mark.parametrize(
    ("options", "ports"),
    [
        ("replicas=1", []),
        ("redis.url=redis://redis/0", [6379]),
        ("redis.url=redis://:word@10.0.0.5:6380/0", [6380]),
        ("redis.secret=redis,networkPolicy.egress[0].ports[0].port=4318", [6379, 4318]),
    ],
)
def test_pods_reach_names_redis_and_what_is_named(options: str, ports: list[int], tmp_path: Path) -> None:
    dns, *others = _specs(tmp_path, "--set", options)["NetworkPolicy"]["egress"]
    assert dns == {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53}]}
    assert others == [{"ports": [{"port": port}]} for port in ports]
