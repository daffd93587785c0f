"""Without the extra `train`, as in the image: everything works but `polyrank train`, which says what it needs."""

import sys
from pathlib import Path

from command_line import ended, pool_rows, start, write_rows

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(["accelerate", "peft", "tensorboard"]))  # as if they were not installed
from polyrank.service.cli import main
sys.exit(main(sys.argv[1:]))
"""
COMMAND = [sys.executable, "-c", WITHOUT]


def test_builds_and_ranks(checkpoints: Path, tmp_path: Path) -> None:
    pool = write_rows(tmp_path / "pool.jsonl", pool_rows(30))
    store = tmp_path / "store"
    built = ended(start("build", "--model", checkpoints / "poly", "--pool", pool, "--store", store, command=COMMAND))
    assert built.status == 0, built.err
    options = ("--store", store, "--reranker", checkpoints / "cross", "--rerank", "--json")
    assert len(ended(start("rank", "w1 w2", *options, command=COMMAND)).result["results"]) == 10


def test_training_says_what_to_install(tmp_path: Path) -> None:
    required = ("--architecture", "poly", "--base", "none", "--train", "none", "--output", tmp_path / "new")
    line = ended(start("train", *required, command=COMMAND)).failure(status=2)
    assert line == "training needs accelerate, peft, tensorboard: pip install '.[train]' in polyrank's source"
    assert not (tmp_path / "new").exists()
