"""Times of calls on a noisy machine, as the median and the middle half."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polyrank.service.cli.measuring.timing import in_turns, wall_seconds


def quartiles_ms(
    calls: Mapping[Any, Callable[[], Any]],
    seconds: float,
    rounds: int = 5,
    measure: Callable[[Callable[[], Any]], float] = wall_seconds,
) -> dict[Any, list[float]]:
    """Time calls in turns (`in_turns`); returns median, first and third quartile of each in milliseconds."""
    took = in_turns(calls, rounds, seconds, measure)
    return {name: [round(float(q) * 1000, 4) for q in np.percentile(each, [50, 25, 75])] for name, each in took.items()}
