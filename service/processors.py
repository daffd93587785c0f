"""How many processors this process may use."""

import math
import os
from contextlib import suppress
from pathlib import Path

# Files with the quota and the period of a container: one with cgroup v2, two with v1.
_QUOTAS = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))


def available(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
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
