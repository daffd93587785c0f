"""Time callables so that two of them can be compared on a noisy machine."""

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch


def alternate(calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Time several callables in turns, so that a slow moment of the machine hits all of them.

    Args:
        calls: what to time, by name.
        seconds: how long to go on in all; at least three rounds are made.

    Returns:
        Median milliseconds of each.
    """
    for call in calls.values():
        call()
    took: dict[str, list[float]] = {name: [] for name in calls}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or min(map(len, took.values())) < 3:
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            took[name].append(time.perf_counter() - began)
    return {name: float(np.median(each)) * 1000 for name, each in took.items()}


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50 and p99 in milliseconds."""
    p50, p99 = np.percentile(np.array(seconds) * 1000, [50, 99])
    return {"p50_ms": round(float(p50), 2), "p99_ms": round(float(p99), 2)}


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="ascii") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
