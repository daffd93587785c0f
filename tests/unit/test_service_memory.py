"""How much memory is left: the machine's, or less where a container has a limit."""

import math
from pathlib import Path

import pytest

from polyrank.service.memory import available_bytes


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "cgroup"
    meminfo.write_text("MemTotal:  2000 kB\nMemAvailable:  1000 kB\n")
    cgroup.mkdir()
    return meminfo, cgroup


def limit(cgroup: Path, most: str) -> None:
    (cgroup / "memory.max").write_text(f"{most}\n")
    (cgroup / "memory.current").write_text("300000\n")
    (cgroup / "memory.stat").write_text("anon 100000\ninactive_file 50000\n")


def test_the_machine_has_what_it_tells(files: tuple[Path, Path]) -> None:
    assert available_bytes(*files) == 1_024_000
    limit(files[1], "max")
    assert available_bytes(*files) == 1_024_000


def test_a_container_may_have_less_and_files_in_memory_count_as_free(files: tuple[Path, Path]) -> None:
    limit(files[1], "500000")
    assert available_bytes(*files) == 250_000
    limit(files[1], "200000")
    assert available_bytes(*files) == 0


def test_where_nothing_is_told_there_is_no_bound(tmp_path: Path) -> None:
    assert available_bytes(tmp_path / "none", tmp_path / "none") == math.inf
