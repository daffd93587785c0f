"""The image of docker/Dockerfile: what is in it, and that it builds a pool and serves it as nobody's user."""

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from compose_file import bytes_of, compose
from container import Container, Image, Mount, Network
from image_build import Layer, Workshop

pytestmark = pytest.mark.timeout(3600)

MIB = 1 << 20
MOST = 1850 * MIB  # all layers but the base's, not compressed
USER = 10001
OWN = {"store", "models", "cache"}  # the folders that belong to it
POOL, MODEL = "/app/examples/support/pool.jsonl", "/app/checkpoints/chat-poly"
API = compose()["services"]["api"]
LIMIT = bytes_of(API["mem_limit"])


@pytest.fixture(scope="module")
def layers(image: Image, workshop: Workshop, measured: list[str]) -> list[Layer]:
    """Those that the Dockerfile adds to its base."""
    base, *added = workshop.layers()
    measured.append(f"the base: {base.size / MIB:.1f} MiB")
    for layer in added:
        measured.append(f"layer of {layer.size / MIB:6.1f} MiB: {layer.made_by[:90]}")
    measured.append(f"the image without its base: {sum(each.size for each in added) / MIB:.1f} MiB, not compressed")
    return added


@pytest.fixture(scope="module")
def volumes(image: Image, tmp_path_factory: pytest.TempPathFactory) -> list[Mount]:
    """New ones: each belongs to the owner of the folder that it is mounted on."""
    made = [Mount("/tmp")]
    for target in ("/store", "/cache"):
        source = tmp_path_factory.mktemp("volume")
        owner = (image.root / target.lstrip("/")).stat()
        os.chown(source, owner.st_uid, owner.st_gid)
        made.append(Mount(target, source))
    return made


@pytest.fixture(scope="module")
def server(
    image: Image, network: Network, volumes: list[Mount], tmp_path_factory: pytest.TempPathFactory, measured: list[str]
) -> Iterator[Container]:
    """It serves the sample that it has built."""
    logs = tmp_path_factory.mktemp("logs")
    build = ["build", "--model", MODEL, "--pool", POOL, "--store", "/store"]
    with closing(Container(image, network, logs / "builder", volumes, build)) as builder:
        assert builder.finish(600) == 0, builder.said()
    measured.append(f"the builder held {builder.peak / MIB:.0f} MiB at most; its limit is {LIMIT / MIB:.0f} MiB")
    assert builder.peak < LIMIT
    with closing(Container(image, network, logs / "server", volumes)) as serving:
        took = serving.until_healthy(image.probe, image.patience_s)
        measured.append(f"healthy {took:.1f} s after its first start")
        yield serving


def test_what_it_adds_to_its_base_is_no_larger_than_was_meant(layers: list[Layer]) -> None:
    assert sum(each.size for each in layers) <= MOST


@pytest.mark.parametrize("unwanted", [
    r"(usr/|opt/venv/)?s?bin/(gcc|g\+\+|cc|c\+\+|cpp|ld|as|make|cmake|git|pip\d*)",
    r"opt/venv/lib/python[\d.]+/site-packages/(pip|wheel|hatchling|build)/.*",
    r"opt/venv/lib/python[\d.]+/site-packages/(pytest|mypy|ruff|hypothesis|accelerate|nncf|nvidia|triton)/.*",
    r"opt/venv/.*/torch/(test|include)/.*",
    r"(root|home|nonexistent|src|tmp|var/tmp|var/cache|var/lib/apt/lists)/.*",
    r"(.*/)?(\.git|\.cache|\.pytest_cache|\.mypy_cache|\.ruff_cache)(/.*)?",
    r".*\.(whl|deb|tar\.gz)",
    r"app/.*\.py[co]",
])  # fmt: skip
def test_no_layer_holds_tools_that_built_it_nor_what_they_kept(unwanted: str, layers: list[Layer]) -> None:
    found = [name for layer in layers for name in layer.files() if re.fullmatch(unwanted, name)]
    assert found == []


def test_its_user_could_write_to_its_volumes_alone_even_on_a_root_that_is_not_read_only(image: Image) -> None:
    writable = set()
    for folder, _, files in os.walk(image.root):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            found = path.lstat()
            its_own = found.st_uid == USER or (found.st_gid == USER and found.st_mode & stat.S_IWGRP)
            shared = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
            if (its_own or shared) and (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                writable.add(str(path.relative_to(image.root)))
    assert writable == OWN


def test_it_runs_as_a_user_without_any_power_on_a_root_that_is_read_only(server: Container) -> None:
    told = Path(f"/proc/{server.first().pid}/status").read_text(encoding="utf-8")
    status = dict(line.split(":\t", 1) for line in told.splitlines())
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(USER)}
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"
    found = server.run("find", "/", "-xdev", "-writable", "-not", "-type", "l").stdout.split()
    assert set(found) == {"/store", "/cache", "/tmp"}  # where the volumes and a tmpfs are mounted


def test_it_ranks_what_it_has_built(server: Container, network: Network) -> None:
    pool = (server.image.root / POOL.lstrip("/")).read_text(encoding="utf-8").splitlines()
    texts = {json.loads(line)["text"] for line in pool}
    answer = network.json("http://127.0.0.1:8000/rank", {"context": "where is my parcel?", "top_k": 3})
    assert len(answer["results"]) == 3
    assert {each["text"] for each in answer["results"]} <= texts


def test_its_memory_stays_below_the_limit_of_the_compose_file(
    server: Container, network: Network, measured: list[str]
) -> None:
    for at in range(50):
        network.json("http://127.0.0.1:8000/rank", {"context": f"where is parcel {at}?"})
    server.measure()
    measured.append(f"the server held {server.peak / MIB:.0f} MiB at most; its limit is {LIMIT / MIB:.0f} MiB")
    assert server.peak < LIMIT


def test_it_stops_in_time_and_starts_again_from_what_it_kept(
    server: Container, image: Image, network: Network, volumes: list[Mount], measured: list[str]
) -> None:
    assert server.stop(int(API["stop_grace_period"].removesuffix("s"))) == 0, server.said()
    with closing(Container(image, network, server.log, volumes)) as again:
        took = again.until_healthy(image.probe, image.patience_s)
        measured.append(f"healthy {took:.1f} s after its second start")
        assert network.json("http://127.0.0.1:8000/rank", {"context": "hello", "top_k": 1})["results"]
