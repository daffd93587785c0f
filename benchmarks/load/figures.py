"""Times of arrival before a load test, figures after it. Knows no HTTP."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one request.

    Attributes:
        phase: number of the phase in the plan, from 0.
        scheduled: when it was due, in seconds since its phase began.
        late: how much later the generator sent it, in seconds; large values make a run worthless.
        seconds: from when it was due to the last byte of the answer, so that a stalled server is not spared.
        status: HTTP status; 0: no answer came.
        retry_after: seconds of the header Retry-After, if there is one.
        timings_ms, request_id: of the body, if the plan asks for them.
    """

    phase: int
    scheduled: float
    late: float
    seconds: float
    status: int
    retry_after: int | None
    timings_ms: dict[str, float] | None = None
    request_id: str = ""


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """Draw the arrivals of independent requests (a Poisson process), in seconds from now.

    >>> [round(each, 2) for each in poisson(2.0, 2.0, seed=1)]
    [0.54, 0.69, 1.94]
    """
    draw = np.random.default_rng(seed)
    gaps = draw.exponential(1 / rate, size=int(rate * seconds * 1.5) + 50)
    at = np.cumsum(gaps)
    assert at[-1] > seconds, "half as many again are enough in practice"
    return [float(each) for each in at[at < seconds]]


def percentile_ms(seconds: Sequence[float], percent: float) -> float | None:
    """Return the nearest-rank percentile in milliseconds, which is a value that occurred; None of no values.

    >>> percentile_ms([0.001, 0.002, 0.003, 0.004], 50), percentile_ms([0.001, 0.002], 99), percentile_ms([], 50)
    (2.0, 2.0, None)
    """
    if not seconds:
        return None
    return round(float(np.percentile(seconds, percent, method="inverted_cdf")) * 1000, 2)


def summary(answers: Sequence[Answer], seconds: float, deadline: float) -> dict[str, Any]:
    """Compute the figures of one phase.

    Args:
        answers: the answers of the phase.
        seconds: length of the phase.
        deadline: seconds within which a good answer must come.
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
    """Find the time after which every request of a phase was answered, with a normal p99; None: never.

    Args:
        answers: the answers of the phase after an overload.
        normal_p99: in seconds, with some room for chance.
        step: resolution of the result, in seconds.
    """
    last = max((each.scheduled for each in answers), default=0.0)
    for start in np.arange(0.0, last, step):
        rest = [each for each in answers if each.scheduled >= start]
        p99 = percentile_ms([each.seconds for each in rest], 99)
        if p99 is not None and p99 <= normal_p99 * 1000 and all(each.status == 200 for each in rest):
            return float(start)
    return None
