"""Arrivals before the load, figures after it; knows no HTTP."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request.

    Attributes:
        phase: of the plan, from 0.
        scheduled: when it was due, in seconds since its phase began.
        late: how much later the generator sent it; large ones make a run worthless.
        seconds: from when it was due to the last byte of the answer, so that a stalled server is not spared.
        status: of HTTP; 0: none came.
        retry_after: seconds after which the answer says to come back, if it does.
        timings_ms: of the answer's body, where the plan asks for them.
    """

    phase: int
    scheduled: float
    late: float
    seconds: float
    status: int
    retry_after: int | None
    timings_ms: dict[str, float] | None = None


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """Draw when requests arrive that come independently of each other, in seconds from now.

    >>> [round(each, 2) for each in poisson(2.0, 2.0, seed=1)]
    [0.54, 0.69, 1.94]
    """
    draw = np.random.default_rng(seed)
    gaps = draw.exponential(1 / rate, size=int(rate * seconds * 1.5) + 50)
    at = np.cumsum(gaps)
    assert at[-1] > seconds, "half as many again are enough but once in a universe"
    return [float(each) for each in at[at < seconds]]


def percentile_ms(seconds: Sequence[float], percent: float) -> float | None:
    """The nearest-rank percentile in milliseconds: a value that occurred; None of none.

    >>> percentile_ms([0.001, 0.002, 0.003, 0.004], 50), percentile_ms([0.001, 0.002], 99), percentile_ms([], 50)
    (2.0, 2.0, None)
    """
    if not seconds:
        return None
    return round(float(np.percentile(seconds, percent, method="inverted_cdf")) * 1000, 2)


def summary(answers: Sequence[Answer], seconds: float, deadline: float) -> dict[str, Any]:
    """Figures of one phase.

    Args:
        answers: of the phase.
        seconds: how long it was.
        deadline: a good answer came within so many seconds.
    """
    good = [each.seconds for each in answers if each.status == 200]
    refused = [each.seconds for each in answers if each.status == 503]
    in_time = sum(each <= deadline for each in good)
    return {
        "sent_per_s": round(len(answers) / seconds, 1),
        "goodput_per_s": round(in_time / seconds, 1),
        "p50_ms": percentile_ms(good, 50),
        "p99_ms": percentile_ms(good, 99),
        "refused": len(refused),
        "refused_p99_ms": percentile_ms(refused, 99),
        "refused_with_retry_after": sum(each.retry_after is not None for each in answers if each.status == 503),
        "statuses": {str(status): count for status, count in sorted(Counter(each.status for each in answers).items())},
        "generator_late_p99_ms": percentile_ms([each.late for each in answers], 99),
    }


def seconds_until_normal(answers: Sequence[Answer], normal_p99: float, step: float = 0.25) -> float | None:
    """How long after a phase began all that came was answered, with a p99 as in normal times; None: never.

    Args:
        answers: of the phase, which came after an overload.
        normal_p99: in seconds, with some room for chance.
        step: what is told apart.
    """
    last = max((each.scheduled for each in answers), default=0.0)
    for start in np.arange(0.0, last, step):
        rest = [each for each in answers if each.scheduled >= start]
        p99 = percentile_ms([each.seconds for each in rest], 99)
        if p99 is not None and p99 <= normal_p99 * 1000 and all(each.status == 200 for each in rest):
            return float(start)
    return None
