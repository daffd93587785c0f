"""The Helm chart renders what the code and the image know. helm comes with `make lint`."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jmespath
import pytest
import yaml

from polyrank.service import cli
from polyrank.service.changes import jobs
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


def test_the_chart_is_of_the_packages_version_and_its_values_are_known() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chart, values, full = (_values(name) for name in ("Chart.yaml", "values.yaml", "ci/full-values.yaml"))
    assert chart["version"] == chart["appVersion"] == project["version"]
    for name in ("pool", "model", "reranker"):
        assert (ROOT / values[name].removeprefix("/app/")).exists()
    Settings(**values["settings"], store="/store")
    Settings(**full["settings"], store="/store", redis_url="redis://redis:6379/0")
    assert set(full) == set(values) - {"cacheSize", "podAnnotations"}, "the lint renders everything that can be set"


@needs_helm
@pytest.mark.parametrize("values", ["values.yaml", "ci/full-values.yaml"])
def test_what_is_rendered_is_what_the_code_knows(values: str, tmp_path: Path) -> None:
    specs = _specs(tmp_path, "--values", str(CHART / values))
    pod = specs["Deployment"]["template"]["spec"]
    [builder], [api] = pod["initContainers"], pod["containers"]
    [build] = re.findall(r"exec polyrank (build .*); fi", builder["args"][0])
    assert all(cli.parser().parse_args(command).run for command in (api["args"], build.split()))
    names = [each["name"].removeprefix(PREFIX).lower() for each in api["env"] if each["name"].startswith(PREFIX)]
    assert set(names) <= set(Settings.model_fields)
    assert len(names) == len(set(names))
    paths = {route.path for route in operations.router.routes}
    assert {api[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness", "liveness")} <= paths
    assert pod["enableServiceLinks"] is False
    assert specs["NetworkPolicy"]["podSelector"] == specs["Deployment"]["selector"]
    assert specs["NetworkPolicy"]["policyTypes"] == ["Ingress", "Egress"]
    [ingress] = specs["NetworkPolicy"]["ingress"]
    assert ingress["ports"] == [{"port": specs["Service"]["ports"][0]["targetPort"]}]
    assert specs["PodDisruptionBudget"] == {"maxUnavailable": 1, "selector": specs["Deployment"]["selector"]}
    for each in (builder, api, *specs["Pod"]["containers"]):
        assert {"cpu", "memory"} <= set(each["resources"]["limits"]) & set(each["resources"]["requests"])
        assert each["securityContext"]["readOnlyRootFilesystem"] is True


@needs_helm
def test_a_stop_is_given_the_time_that_it_may_take(tmp_path: Path) -> None:
    drains = Settings.model_fields["drain_delay_s"].default + draining.FINISH_SECONDS
    most = drains + jobs.GRACE_SECONDS + tracing.CLOSE_SECONDS
    assert most < _specs(tmp_path)["Deployment"]["template"]["spec"]["terminationGracePeriodSeconds"] < 2 * most


ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
AFFINITY, SCALED = "Deployment.template.spec.affinity", "autoscaling.maxReplicas=5,store.accessMode=ReadWriteMany"
NODES = f"{AFFINITY}.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[]"
VARIABLE = "Deployment.template.spec.containers[0].env[?name=='POLYRANK_{}'].value"
FROM, TO = "NetworkPolicy.ingress[0].from", "NetworkPolicy.egress[1:]"
OWN = {"podSelector": {"matchLabels": {"app.kubernetes.io/instance": "polyrank"}}}
INGRESS = {"namespaceSelector": {"matchLabels": {"name": "ingress"}}}


# Options of helm, where to look, what stands there.
@needs_helm
@pytest.mark.parametrize(("options", "path", "value"), [
    # An upgrade keeps a replica, and a volume of one node keeps its node.
    ("replicas=1", "Deployment.strategy", ROLLING),
    ("strategy=Recreate", "Deployment.strategy", {"type": "Recreate"}),
    ("store.accessMode=ReadWriteOncePod", "Deployment.strategy", {"type": "Recreate"}),
    ("store.accessMode=ReadWriteOnce", f"{NODES}.topologyKey", ["kubernetes.io/hostname"]),
    ("store.accessMode=ReadWriteOnce", f"{NODES}.labelSelector == [Deployment.selector]", True),
    ("store.accessMode=ReadWriteMany,affinity.nodeAffinity.some=thing", AFFINITY, {"nodeAffinity": {"some": "thing"}}),
    ("store.accessMode=ReadWriteOnce,affinity.nodeAffinity.some=thing", f"{AFFINITY}.nodeAffinity", {"some": "thing"}),
    # Who counts the replicas.
    ("replicas=1", "Deployment.replicas", 1), ("replicas=1", "HorizontalPodAutoscaler", None),
    (f"replicas=2,{SCALED}", "Deployment.replicas", None),
    (f"replicas=2,{SCALED}", "HorizontalPodAutoscaler.[minReplicas, maxReplicas]", [2, 5]),
    (SCALED, "HorizontalPodAutoscaler.scaleTargetRef.kind", "Deployment"),
    (SCALED, "HorizontalPodAutoscaler.metrics[].resource",
     [{"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}]),
    # Numbers reach the server as they were written.
    ("settings.max_body_bytes=16777216", VARIABLE.format("MAX_BODY_BYTES"), ["16777216"]),
    ("settings.deterministic=true", VARIABLE.format("DETERMINISTIC"), ["true"]),
    # Without keys the namespace alone reaches the pods; pods reach names, Redis and what is named.
    ("replicas=1", FROM, [{"podSelector": {}}]), ("keysSecret=keys", FROM, None),
    ("networkPolicy.from[0].namespaceSelector.matchLabels.name=ingress", FROM, [INGRESS, OWN]),
    ("replicas=1", "NetworkPolicy.egress[0]", {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53}]}),
    ("replicas=1", TO, []), ("redis.url=redis://redis/0", TO, [{"ports": [{"port": 6379}]}]),
    ("redis.url=redis://:word@10.0.0.5:6380/0", TO, [{"ports": [{"port": 6380}]}]),
    ("redis.secret=redis,networkPolicy.egress[0].ports[0].port=4318", TO,
     [{"ports": [{"port": 6379}]}, {"ports": [{"port": 4318}]}]),
])  # fmt: skip
def test_what_options_do(options: str, path: str, value: Any, tmp_path: Path) -> None:
    assert jmespath.search(path, _specs(tmp_path, "--set", options)) == value


@needs_helm
@pytest.mark.parametrize(("option", "told"), [
    ("replicas=2", "ReadWriteMany"), ("replicas=2,store.claim=mine", "ReadWriteMany"),
    ("autoscaling.maxReplicas=3", "ReadWriteMany"), ("strategy=Sudden", "strategy"),
    ("autoscaling.maxReplicas=2,replicas=2,store.accessMode=ReadWriteMany", "maxReplicas"),
    ("replica=2", "replica"), ("store.accessMode=Many", "accessMode"),
])  # fmt: skip
def test_values_that_cannot_work_are_refused_by_name(option: str, told: str, tmp_path: Path) -> None:
    rendered = _render(tmp_path, "--set", option)
    assert rendered.returncode != 0
    assert told in rendered.stderr
