"""The service against its own description: schemathesis finds no answer that is not in docs/openapi.json, and no 500.

What is checked, and what is left out for which reason, is in tests/schemathesis.toml. The tool is a process of its own,
so that what it sends goes through a real socket; routes are those of the running server, so that new ones take part.
"""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from served import serve
from service_fakes import build_store, load

from polyrank.service.app import create_app
from polyrank.service.auth.keys import hashed
from polyrank.service.settings import Settings

CONFIG = Path(__file__).resolve().parents[1] / "schemathesis.toml"
EXAMPLES = 5
KEY = "prk_fuzz"
SOAK_EXAMPLES = int(os.environ.get("SOAK_EXAMPLES", "1000"))


def fuzz(url: str, cwd: Path, seed: int, examples: int, *more: str) -> str:
    """Let schemathesis loose on a server; returns what it says."""
    cwd.mkdir()
    options = ["--seed", str(seed), "--max-examples", str(examples), "--no-color", *more]
    options += ["--max-redirects", "0"]  # an answer is what the service says, not where it leads
    if examples == EXAMPLES:
        options.append("--no-shrink")  # nor the smallest example that fails, but soon
    run = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "--config-file", CONFIG, "run", f"{url}/openapi.json", *options],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "FUZZ_KEY": KEY},
    )
    assert run.returncode == 0, run.stdout[-20_000:]
    return run.stdout


def fuzz_served(tmp_path: Path, seed: int, examples: int) -> str:
    """Two generations, a cross-encoder, keys: everything configured."""
    store, files = tmp_path / "store", tmp_path / "files"
    files.mkdir()
    for _ in range(2):
        build_store(store)
    keys = files / "keys.json"
    keys.write_text(
        json.dumps({"keys": [{"name": "fuzz", "sha256": hashed(KEY.encode()), "scopes": ["rank", "admin"]}]})
    )
    roots = {"pool_root": files, "model_root": files}
    kept = {"result_cache_ttl_s": 60, "feedback": "texts"}
    settings = Settings(store=store, reranker="cross", keys_file=keys, **kept, **roots)
    with serve(create_app(settings, load, load)) as server:
        said = fuzz(server.url, tmp_path / "run", seed, examples)
        asked = server.client.post("/rank", json={"context": "w1"}, headers={"Authorization": f"Bearer {KEY}"})
        assert asked.status_code == 200, "it stands"
    return said


def fuzz_unserved(tmp_path: Path, seed: int, examples: int) -> str:
    """An empty store, and no keys: most routes have nothing to answer from."""
    with serve(create_app(Settings(store=tmp_path / "store"), load)) as server:
        return fuzz(server.url, tmp_path / "run", seed, examples, "--exclude-checks", "ignored_auth")


WAYS: dict[str, Any] = {"served": fuzz_served, "nothing to serve": fuzz_unserved}


def requests_sent(said: str) -> int:
    """How many requests were sent."""
    found = re.search(r"(\d+) generated, \1 passed", said)
    assert found, said[-5000:]
    return int(found[1])


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_answer_is_as_described(tmp_path: Path, way: Callable[[Path, int, int], str]) -> None:
    assert requests_sent(way(tmp_path, 1, EXAMPLES)) > 1000


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_answer_is_as_described_for_long(tmp_path: Path, way: Callable[[Path, int, int], str]) -> None:
    said = way(tmp_path, random.SystemRandom().randrange(2**32), SOAK_EXAMPLES)
    assert requests_sent(said) > SOAK_EXAMPLES
