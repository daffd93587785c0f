"""A client's path stays below the root."""

from pathlib import Path

import pytest

from polyrank.model.errors import InvalidInput
from polyrank.service.changes.jobs import confined
from polyrank.service.errors import NotConfigured


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "pool.jsonl").touch()
    (tmp_path / "secret").touch()
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "in").symlink_to(root / "deep" / "pool.jsonl")
    (root / "loop").symlink_to(root / "loop")
    return root


@pytest.mark.parametrize("given", ["deep/pool.jsonl", "deep/../deep/pool.jsonl", "./deep/pool.jsonl", "in"])
def test_inside(root: Path, given: str) -> None:
    assert confined(root, given, "pool") == root / "deep" / "pool.jsonl"


@pytest.mark.parametrize(
    "given",
    ["../secret", "/etc/passwd", "out", "deep/../../secret", "nothing", "loop", ".", "", "a\0b", "x" * 5000, "~/x"],
)
def test_outside_or_nothing(root: Path, given: str) -> None:
    with pytest.raises(InvalidInput, match="pool root"):
        confined(root, given, "pool")


def test_without_a_root_the_setting_is_named() -> None:
    with pytest.raises(NotConfigured, match="model_root"):
        confined(None, "x", "model")
