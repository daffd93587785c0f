"""How many threads are worth having, in a container and out of one."""

import os
from pathlib import Path

import pytest

from polyrank.service import machine


@pytest.fixture(autouse=True)
def _eight_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)


@pytest.mark.parametrize(
    ("told", "count"),
    [
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("10000 100000", 1),
        ("3200000 100000", 8),
        ("max 100000", 8),
        ("nonsense", 8),
        ("a b", 8),
        ("100000 0", 8),
    ],
)
def test_a_quota_of_version_2(tmp_path: Path, told: str, count: int) -> None:
    (tmp_path / "cpu.max").write_text(told + "\n")
    assert machine.processors(tmp_path) == count


@pytest.mark.parametrize(("quota", "count"), [("300000", 3), ("-1", 8)])
def test_a_quota_of_version_1(tmp_path: Path, quota: str, count: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text(quota + "\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert machine.processors(tmp_path) == count


def test_no_quota(tmp_path: Path) -> None:
    assert machine.processors(tmp_path) == 8
