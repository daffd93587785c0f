"""A server over the bundled sample, as a process in the project's own environment."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
POLYRANK = [
    str(Path(os.environ.get("POLYRANK_PYTHON", ROOT / ".venv/bin/python")).absolute()),
    "-m",
    "polyrank.service.cli",
]

QUERY = "hi, I ordered shoes last week and my parcel has not arrived"
TEXTS = ["We open at nine.", "Let me look up your parcel. What is the order number?", "The socks are made of wool."]


def pytest_configure() -> None:
    for name in [each for each in os.environ if each.startswith("POLYRANK_") and each != "POLYRANK_PYTHON"]:
        del os.environ[name]  # settings of somebody's own


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server with a Poly- and a Cross-encoder."""
    store = str(tmp_path_factory.mktemp("served") / "store")
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT / "src"), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    environment.pop("POLYRANK_PYTHON", None)
    build = [*POLYRANK, "build", "--model", "checkpoints/chat-poly", "--pool", "examples/support/pool.jsonl"]
    subprocess.run([*build, "--store", store], cwd=ROOT, env=environment, check=True, stdout=sys.stderr)
    serve = [*POLYRANK, "serve", "--store", store, "--reranker", "checkpoints/chat-uni", "--port", "0"]
    server = subprocess.Popen(serve, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        told = re.search(r"ready on (http\S+)", server.stdout.readline())
        assert told is not None, "the server did not start"
        yield told[1]
    finally:
        server.terminate()
        server.wait(60)


@pytest.fixture(scope="session")
def query() -> str:
    return QUERY


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """The second one answers the query."""
    return TEXTS
