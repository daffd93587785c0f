"""How much memory this process may still take."""

import math
from contextlib import suppress
from pathlib import Path


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
        told = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return max(0, limit - used + int(told.get("inactive_file", 0)))
    return math.inf
