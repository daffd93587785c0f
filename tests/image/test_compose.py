"""The services of docker-compose.yml, by its very commands, variables, files, mounts, users and health checks.

`api` and `builder` run in the image; Redis, Prometheus and Alertmanager in a Debian of their own, whose packages are of
other releases than the images that the file names. All share one loopback, on which their names are known. Left out:
Grafana, which Debian has not (tests/unit/test_docker_files.py reads its files); `api-gpu`; the two networks, published
ports, and limits of memory and processors, which only a container engine sets.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_file import ROOT, bytes_of, compose, conditions, in_order
from container import Container, Image, Mount, Network
from image_build import PATH, Workshop

pytestmark = pytest.mark.timeout(3600)

MIB = 1 << 20
LEFT_OUT = {"grafana", "api-gpu"}
PACKAGES = "redis-server,prometheus,prometheus-alertmanager"
NOBODY = "65534:65534"  # as whom the images of Prometheus run
ENTRYPOINTS = {"redis": (), "prometheus": ("prometheus",), "alertmanager": ("prometheus-alertmanager",)}
# What Debian's Prometheus 2 must be told, and the 3 of the compose file does unasked.
ADDED = {"prometheus": ["--enable-feature=expand-external-labels"]}
API, PROMETHEUS, ALERTMANAGER = "http://127.0.0.1:8000", "http://127.0.0.1:9090", "http://127.0.0.1:9093"


@pytest.fixture(scope="module")
def packages(workshop: Workshop) -> Image:
    """Debian with the servers that are not polyrank's."""
    root = workshop.folder / "servers"
    workshop.bootstrap(PACKAGES, root)
    for name in ("redis", "prometheus"):  # closed to others in Debian; the images have none, or open ones
        shutil.rmtree(root / "etc" / name)
    return Image(root, NOBODY, {"PATH": PATH})


class Composed:
    """What `docker compose up` starts, in its order."""

    def __init__(self, own: Image, packages: Image, network: Network, folder: Path) -> None:
        self.services: dict[str, Any] = {
            name: each for name, each in compose()["services"].items() if name not in LEFT_OUT
        }
        self._own, self._packages, self._network, self._folder = own, packages, network, folder
        self._hosts = folder / "hosts"
        self._hosts.write_text(f"127.0.0.1 localhost {' '.join(self.services)}\n", encoding="utf-8")
        self.running: dict[str, Container] = {}
        self.seconds: dict[str, float] = {}

    def up(self) -> None:
        """Start every service when what it waits for has come."""
        for name in in_order(self.services):
            for other, condition in conditions(self.services[name]).items():
                self._wait(other, condition)
            self.start(name)

    def start(self, name: str, **variables: str) -> Container:
        """Start a service; it may have further variables."""
        service, image = self.services[name], self._image(name)
        environment = {key: value or "" for key, value in service.get("environment", {}).items()}  # YAML reads a null
        self.running[name] = Container(
            image,
            self._network,
            self._folder / f"{name}.log",
            [Mount("/etc/hosts", self._hosts, read_only=True), *self._mounts(service, image)],
            [*service["command"], *ADDED.get(name, [])],
            service.get("entrypoint"),
            {**environment, **variables},
            service.get("user", ""),
        )
        return self.running[name]

    def close(self) -> None:
        """End all of them."""
        for each in self.running.values():
            each.close()

    def _image(self, name: str) -> Image:
        if self.services[name]["image"].startswith("polyrank:"):
            return self._own
        return Image(self._packages.root, NOBODY, self._packages.environment, ENTRYPOINTS[name])

    def _mounts(self, service: dict[str, Any], image: Image) -> list[Mount]:
        found = [Mount(target) for target in service.get("tmpfs", [])]
        for written in service.get("volumes", []):
            source, target, *mode = written.split(":")
            place = ROOT / source if source.startswith(".") else self._volume(source, image)
            found.append(Mount(target, place, mode == ["ro"]))
        return found

    def _volume(self, name: str, image: Image) -> Path:
        place = self._folder / "volumes" / name
        if not place.exists():
            place.mkdir(parents=True)
            os.chown(place, *map(int, image.user.split(":")))
        return place

    def _wait(self, name: str, condition: str) -> None:
        begun, service, container = time.monotonic(), self.services[name], self.running[name]
        if condition == "service_completed_successfully":
            assert container.finish(600) == 0, container.said()
        elif condition == "service_healthy":
            check = service["healthcheck"]
            container.until_healthy(check["test"][1:], check["retries"] * int(check["interval"].removesuffix("s")))
        self.seconds[name] = time.monotonic() - begun


@pytest.fixture(scope="module")
def composed(
    image: Image, packages: Image, network: Network, tmp_path_factory: pytest.TempPathFactory, measured: list[str]
) -> Iterator[Composed]:
    with closing(Composed(image, packages, network, tmp_path_factory.mktemp("compose"))) as composed:
        composed.up()
        measured.append(f"the builder of the compose file ended after {composed.seconds['builder']:.0f} s")
        took = composed.running["api"].until_healthy(image.probe, image.patience_s)
        measured.append(f"api was healthy {took:.1f} s after its start")
        yield composed


def eventually(ask: Callable[[], Any], seconds: float) -> Any:
    """What it returns as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (found := ask()):
        assert time.monotonic() < deadline
        time.sleep(1)
    return found


def test_the_service_ranks_with_the_vectors_that_the_builder_left_in_redis(
    composed: Composed, network: Network, measured: list[str]
) -> None:
    keys = int(composed.running["redis"].run("redis-cli", "dbsize").stdout)
    rows = (ROOT / "examples/support/pool.jsonl").read_text(encoding="utf-8").count("\n")
    assert keys > rows
    found = network.json(f"{API}/rank", {"context": "where is my parcel?", "top_k": 5})["results"]
    assert len(found) == 5
    for name, container in composed.running.items():
        limit = bytes_of(composed.services[name]["mem_limit"])
        if container.process.poll() is None:
            container.measure()
            measured.append(f"{name} held {container.peak / MIB:.0f} MiB; its limit is {limit / MIB:.0f} MiB")
        assert container.peak < limit, name


def test_a_store_that_holds_a_generation_is_left_alone_until_it_is_asked_for_another(
    composed: Composed, network: Network
) -> None:
    def generation() -> str:
        served: str = network.json(f"{API}/info")["generation"]
        return served

    before = generation()
    assert composed.start("builder").finish(60) == 0
    assert "holds a generation already" in composed.running["builder"].said()
    assert generation() == before
    assert composed.start("builder", REBUILD="1").finish(600) == 0
    eventually(lambda: generation() != before, 30)


def test_prometheus_scrapes_the_service_and_finds_alertmanager(composed: Composed, network: Network) -> None:
    def up() -> bool:
        targets = network.json(f"{PROMETHEUS}/api/v1/targets")["data"]["activeTargets"]
        return [(each["scrapeUrl"], each["health"]) for each in targets] == [("http://api:8000/metrics", "up")]

    eventually(up, 60)
    managers = network.json(f"{PROMETHEUS}/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
    assert [each["url"] for each in managers] == ["http://alertmanager:9093/api/v2/alerts"]


def test_every_rule_is_loaded_and_can_be_computed(composed: Composed, network: Network) -> None:
    written = yaml.safe_load((ROOT / "docker/alerts.yml").read_text(encoding="utf-8"))["groups"]
    expected = sorted(rule.get("alert") or rule["record"] for group in written for rule in group["rules"])

    def rules(slowest: int) -> list[dict[str, Any]]:
        groups = network.json(f"{PROMETHEUS}/api/v1/rules")["data"]["groups"]
        return [rule for group in groups if group["interval"] <= slowest for rule in group["rules"]]

    assert sorted(rule["name"] for rule in rules(300)) == expected
    # Those of days are computed every five minutes; nobody waits for them here.
    eventually(lambda: {rule["health"] for rule in rules(60)} == {"ok"}, 120)


def test_a_service_that_is_down_is_told_by_alertmanager(
    composed: Composed, network: Network, measured: list[str]
) -> None:
    assert composed.running["api"].stop(45) == 0, composed.running["api"].said()
    begun = time.monotonic()

    def told() -> list[dict[str, Any]]:
        alerts = network.json(f"{ALERTMANAGER}/api/v2/alerts")
        return [each for each in alerts if each["labels"]["alertname"] == "PolyrankDown"]

    [alert] = eventually(told, 180)
    measured.append(f"Alertmanager had PolyrankDown {time.monotonic() - begun:.0f} s after the service was stopped")
    assert alert["labels"]["instance"] == "api:8000"
    assert "runbook" not in alert["labels"]
    assert alert["receivers"] == [{"name": "page"}]
    assert alert["annotations"]["runbook_url"] == "docs/runbook.md#polyrankdown"
