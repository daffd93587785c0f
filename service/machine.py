"""What this process may take of the machine, and what glibc and Python's collector of circles do with its memory."""

import ctypes
import gc
import math
import os
import sys
from contextlib import suppress
from pathlib import Path

_LIBRARY = ctypes.CDLL(None)


def available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the bytes that the machine has left, within the container's limit; infinity where neither is told.

    What files are kept in memory counts as free, because the system drops them where memory is wanted.
    """
    return min(_of_machine(meminfo), _of_container(cgroup))


def _of_machine(meminfo: Path) -> float:
    with suppress(OSError, ValueError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return math.inf


def _of_container(cgroup: Path) -> float:
    with suppress(OSError, ValueError):  # no control groups of version 2, or "max"
        limit, used = (int((cgroup / f"memory.{name}").read_text()) for name in ("max", "current"))
        fields = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return max(0, limit - used + int(fields.get("inactive_file", 0)))
    return math.inf


def give_back() -> None:
    """Give the free memory in glibc's heaps back to the system; with other C libraries nothing is done.

    By itself glibc gives back only what is free at a heap's end, so that one small block keeps all that large requests
    took before it (docs/measurements/load.md). Other threads that allocate wait meanwhile: 13 ms after 150 MiB were
    freed.
    """
    if hasattr(_LIBRARY, "malloc_trim"):
        _LIBRARY.malloc_trim(0)


class Tidying:
    """What is done every few seconds for little memory and short pauses."""

    def __init__(self) -> None:
        self._modules = len(sys.modules)

    def tidy(self) -> None:
        """Give free memory back, and keep modules that were imported since from Python's collector of circles.

        Large requests make it look through all that is not frozen, while every other thread waits. The modules that a
        first explanation imports hold 200,000 objects, which take it 0.2 s.
        """
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            gc.freeze()
        give_back()


# Of drivers: NVIDIA's, Windows' for Linux within it, and AMD's, whose GPUs torch calls by the same name.
_GPUS = ("nvidia*", "dxg", "kfd")


def may_have_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether the system knows a GPU on which torch might run, by its device files; True where it has none to look at.

    torch knows better, and takes a second to be imported.
    """
    return sys.platform != "linux" or any(True for name in _GPUS for _ in devices.glob(name))


# Files with the quota and the period of a container: one with cgroup v2, two with v1.
_QUOTAS = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))


def processors(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many processors this process may use, within its container's quota.

    More threads than that make it slower: they wait for each other by spinning, which uses up the quota. The control
    groups are mounted at `cgroup`.
    """
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(here, _quota(cgroup))))


def _quota(cgroup: Path) -> float:
    """Return the quota in processors; infinity where there is none."""
    for files in _QUOTAS:
        with suppress(OSError, ValueError):  # not this version, or "max"
            quota, period = map(int, " ".join((cgroup / file).read_text() for file in files).split())
            if quota > 0 and period > 0:
                return quota / period
    return math.inf
