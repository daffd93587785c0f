"""The Ray cluster of docker/ray is what the code and the image need; `make lint` checks it by Kubernetes' schemas."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from polyrank.index_builder.scale import cluster as module

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def documents() -> tuple[dict[str, Any], dict[str, Any]]:
    cluster, policy = yaml.safe_load_all((ROOT / "docker/ray/cluster.yaml").read_text(encoding="utf-8"))
    return cluster, policy


@pytest.fixture(scope="module")
def groups(documents: tuple[dict[str, Any], dict[str, Any]]) -> list[dict[str, Any]]:
    spec = documents[0]["spec"]
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def test_it_asks_for_a_token_and_has_the_pinned_version(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    spec = documents[0]["spec"]
    assert spec["authOptions"] == {"mode": "token"}
    assert f"ray=={spec['rayVersion']}\n" in (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_every_pod_has_the_settings_of_the_builder(groups: list[dict[str, Any]]) -> None:
    for group in groups:
        [container] = group["template"]["spec"]["containers"]
        variables = {each["name"]: each["value"] for each in container["env"]}
        assert variables == {"HOME": "/tmp", "RAY_USAGE_STATS_ENABLED": "0", **module._SETTINGS}


def test_pods_run_as_the_images_user_and_write_to_volumes_alone(groups: list[dict[str, Any]]) -> None:
    user = re.search(r"^USER (\d+):", (ROOT / "docker/Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert user is not None
    for group in groups:
        pod = group["template"]["spec"]
        [container] = pod["containers"]
        assert pod["securityContext"]["runAsUser"] == int(user[1])
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}


def test_memory_and_processors_are_limited(groups: list[dict[str, Any]]) -> None:
    for group in groups:
        [container] = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert set(container["resources"]["limits"]) == {"cpu", "memory"}


def test_probes_ask_ports_that_ray_listens_on(groups: list[dict[str, Any]]) -> None:
    ports = [6379, *(int(group["rayStartParams"]["node-manager-port"]) for group in groups[1:])]
    for group, port in zip(groups, ports, strict=True):
        [container] = group["template"]["spec"]["containers"]
        [named] = container["ports"]
        assert named["containerPort"] == port
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["tcpSocket"]["port"] == named["name"]


def test_each_encoder_has_the_processor_that_it_asks_for(groups: list[dict[str, Any]]) -> None:
    head, *others = groups
    assert head["rayStartParams"]["num-cpus"] == "0"
    for group in others:
        [container] = group["template"]["spec"]["containers"]
        assert container["resources"]["requests"]["cpu"] == group["rayStartParams"]["num-cpus"]


def test_only_pods_of_the_cluster_reach_each_other(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    cluster, policy = documents
    own = {"matchLabels": {"ray.io/cluster": cluster["metadata"]["name"]}}
    assert policy["spec"]["podSelector"] == own
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": own}]}]
