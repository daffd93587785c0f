"""Time several things in turns, so that they can be compared on a noisy machine; describe that machine."""

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

Name = TypeVar("Name")
Call = Callable[[], Any]


def wall_seconds(call: Call) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def processor_seconds(call: Call) -> float:
    """Return how much processor time a call takes in this process; other processes do not lengthen it."""
    began = time.process_time()
    call()
    return time.process_time() - began


def in_turns(
    calls: Mapping[Name, Call],
    rounds: int,
    seconds: float = 0.0,
    measure: Callable[[Call], float] = wall_seconds,
    back_and_forth: bool = False,
) -> dict[Name, list[float]]:
    """Time calls in turns, so that a slow moment of the machine hits all of them; returns each call's seconds by round.

    A first round does not count. At least so many `rounds` are made, and for at least so many `seconds`;
    `back_and_forth` reverses the order of the calls in every other round.
    """
    for call in calls.values():
        measure(call)
    took: dict[Name, list[float]] = {name: [] for name in calls}
    until, done = time.perf_counter() + seconds, 0
    while done < rounds or time.perf_counter() < until:
        done += 1
        for name in list(calls)[:: -1 if back_and_forth and done % 2 else 1]:
            took[name].append(measure(calls[name]))
    return took


def medians_ms(calls: Mapping[str, Call], seconds: float) -> dict[str, float]:
    """Time calls in turns, for so long in all and in three rounds at least; returns the median milliseconds of each."""
    return {name: float(np.median(took)) * 1000 for name, took in in_turns(calls, 3, seconds).items()}


def quartiles_ms(
    calls: Mapping[Any, Callable[[], Any]],
    seconds: float,
    rounds: int = 5,
    measure: Callable[[Callable[[], Any]], float] = wall_seconds,
) -> dict[Any, list[float]]:
    """Time calls in turns; returns median, first and third quartile of each in milliseconds."""
    took = in_turns(calls, rounds, seconds, measure)
    return {name: [round(float(q) * 1000, 4) for q in np.percentile(each, [50, 25, 75])] for name, each in took.items()}


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return p50 and p99 in milliseconds."""
    p50, p99 = np.percentile(np.array(seconds) * 1000, [50, 99])
    return {"p50_ms": round(float(p50), 2), "p99_ms": round(float(p99), 2)}


def machine() -> dict[str, Any]:
    """Describe the machine that figures are taken on."""
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
