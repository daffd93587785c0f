"""Times of callables as a noisy machine allows: in turns, several rounds, the median and the middle half."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def in_turns(
    calls: Mapping[Any, Callable[[], Any]],
    seconds: float,
    least: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Any, list[float]]:
    """Time callables that return when their work is done, in turns, after a call of each that does not count.

    Args:
        calls: by name.
        seconds: how long to go on in all.
        least: rounds at the least.
        clock: in seconds.

    Returns:
        Milliseconds of each: the median, and the first and third quartile.
    """
    for call in calls.values():
        call()
    took: dict[Any, list[float]] = {name: [] for name in calls}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or min(map(len, took.values())) < least:
        for name, call in calls.items():
            began = clock()
            call()
            took[name].append((clock() - began) * 1000)
    return {name: [round(float(q), 4) for q in np.percentile(each, [50, 25, 75])] for name, each in took.items()}
