"""What this process may take of the machine."""

import ctypes
import gc
import math
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from polyrank.service import machine
from polyrank.service.machine import Tidying, available_bytes

KEEP = """
import ctypes, os, pathlib
from polyrank.service.machine import give_back
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
blocks = [library.malloc(100_000) for _ in range(640)]
for each in blocks:
    ctypes.memset(each, 1, 100_000)
taken = resident()
for each in blocks[:-1]:
    library.free(each)
kept = resident()
give_back()
print(taken - kept, kept - resident())
"""
glibc_only = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="only glibc has arenas")


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


@glibc_only
def test_free_memory_before_a_block_in_use_is_given_back() -> None:
    printed = subprocess.run([sys.executable, "-c", KEEP], check=True, capture_output=True, text=True).stdout
    by_itself, given_back = map(int, printed.split())
    assert by_itself < 10
    assert given_back > 50


def test_what_a_new_module_holds_is_kept_from_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        gc.unfreeze()
        tidying = Tidying()
        tidying.tidy()
        assert not gc.get_freeze_count(), "nothing was imported"
        module = types.ModuleType("imported_since")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        tidying.tidy()
        assert not any(each is module for each in gc.get_objects())
        frozen = gc.get_freeze_count()
        tidying.tidy()
        assert 0 < gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()


@pytest.fixture(autouse=True)
def _eight_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)


@pytest.mark.parametrize(("told", "count"), [
    ("200000 100000", 2), ("150000 100000", 2), ("10000 100000", 1), ("3200000 100000", 8),
    ("max 100000", 8), ("nonsense", 8), ("a b", 8), ("100000 0", 8),
])  # fmt: skip
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


def test_a_gpu_is_looked_for_where_a_driver_shows_one(tmp_path: Path) -> None:
    assert not machine.may_have_gpu(tmp_path)
    (tmp_path / "nvidiactl").touch()
    assert machine.may_have_gpu(tmp_path)
