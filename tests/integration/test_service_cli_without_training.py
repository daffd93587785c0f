"""Without the extra `train`, as in the image: everything works but `polyrank train`, which says what it needs."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from command_line import Outcome, ended, pool_rows, start, write_rows

WITHOUT = """
import json, sys
sys.modules.update(dict.fromkeys(["accelerate", "tensorboard"]))  # as if they were not installed
from polyrank.service.cli import main
for command in json.loads(sys.argv[1]):
    if status := main(command):
        sys.exit(status)
"""


def run(*commands: Sequence[object]) -> Outcome:
    """Run commands in a process of their own, up to the first one that fails."""
    given = json.dumps([[str(word) for word in each] for each in commands])
    return ended(start(given, command=[sys.executable, "-c", WITHOUT]))


def test_builds_and_ranks(checkpoints: Path, tmp_path: Path) -> None:
    pool = write_rows(tmp_path / "pool.jsonl", pool_rows(30))
    store = tmp_path / "store"
    build = ("build", "--model", checkpoints / "poly", "--pool", pool, "--store", store)
    rank = ("rank", "w1 w2", "--store", store, "--reranker", checkpoints / "cross", "--rerank", "--json")
    done = run(build, rank)
    assert done.status == 0, done.err
    assert len(json.loads(done.out.splitlines()[-1])["results"]) == 10


def test_training_says_what_to_install(tmp_path: Path) -> None:
    required = ("--architecture", "poly", "--base", "none", "--train", "none", "--output", tmp_path / "new")
    line = run(("train", *required)).failure(status=2)
    assert line == "training needs accelerate, tensorboard: pip install 'polyrank[train]'"
    assert not (tmp_path / "new").exists()
