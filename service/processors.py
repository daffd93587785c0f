"""How many processors this process may use."""

import math
import os
from pathlib import Path

# Files with the quota of a container: one with cgroup v2, two with v1.
_V2 = "cpu.max"
_V1 = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")


def available(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many processors this process may use, within its container's quota.

    More threads than that make it slower: they wait for each other by spinning, which uses up the quota.

    Args:
        cgroup: where the control groups are mounted.
    """
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(here, math.ceil(_quota(cgroup))))


def _quota(cgroup: Path) -> float:
    """Return the quota in processors; that of the whole machine where there is none."""
    try:
        quota, period = (cgroup / _V2).read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((cgroup / name).read_text().strip() for name in _V1)
        except OSError:
            return float(os.cpu_count() or 1)
    try:
        return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else float(os.cpu_count() or 1)
    except ValueError:  # "max"
        return float(os.cpu_count() or 1)
