"""The Ray cluster of docker/ray is what the code and the image need; `make lint` checks it by Kubernetes' schemas."""

import re
from pathlib import Path

import yaml

from polyrank.index_builder.scale import cluster as module

ROOT = Path(__file__).parents[2]
CLUSTER, POLICY = yaml.safe_load_all((ROOT / "docker/ray/cluster.yaml").read_text(encoding="utf-8"))
SPEC = CLUSTER["spec"]


def test_it_asks_for_a_token_has_the_pinned_version_and_only_its_pods_reach_each_other() -> None:
    assert SPEC["authOptions"] == {"mode": "token"}
    assert f"ray=={SPEC['rayVersion']}\n" in (ROOT / "constraints.txt").read_text(encoding="utf-8")
    own = {"matchLabels": {"ray.io/cluster": CLUSTER["metadata"]["name"]}}
    assert POLICY["spec"]["podSelector"] == own
    assert POLICY["spec"]["ingress"] == [{"from": [{"podSelector": own}]}]


def test_every_pod_is_as_the_builder_ray_and_the_image_need_it() -> None:
    user = re.findall(r"^USER (\d+):", (ROOT / "docker/Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)[-1]
    for group in (SPEC["headGroupSpec"], *SPEC["workerGroupSpecs"]):
        pod, start = group["template"]["spec"], group["rayStartParams"]
        [container] = pod["containers"]
        variables = {each["name"]: each["value"] for each in container["env"]}
        assert variables == {"HOME": "/tmp", "RAY_USAGE_STATS_ENABLED": "0", **module._SETTINGS}
        assert pod["securityContext"]["runAsUser"] == int(user)
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
        limits = container["resources"]["limits"]
        assert set(limits) == {"cpu", "memory"}
        assert container["resources"]["requests"] == limits
        assert start["num-cpus"] == ("0" if group is SPEC["headGroupSpec"] else limits["cpu"])
        [named] = container["ports"]
        assert named["containerPort"] == int(start.get("node-manager-port", 6379))
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["tcpSocket"]["port"] == named["name"]
