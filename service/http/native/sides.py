"""Which generation answers a ranking while one is on trial with a share of the conversations.

The live generation stands behind the other one: no request fails, or comes late, because it was asked of the trial.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol, TypeVar

from polyrank.model.errors import RankingError
from polyrank.service.errors import DeadlineExceeded, TimeTooShort
from polyrank.service.feedback.records import Side
from polyrank.service.live.canary import Canary
from polyrank.service.observe.labels import Account
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking.parts import Serving
from polyrank.service.scheduling.stages import SHARE_OF_TIME, Journey

_SLOW: Final = "slow"
# Of less, half is little even for a good model: a caller in a hurry would end the canary.
LEAST_SECONDS: Final = 0.1
# A trial is slow that has worked for so much of its time, and so many times as long as the live generation; less may be
# chance, or a caller's choice.
LEAST_AT_WORK: Final = 0.5
TIMES_AS_LONG: Final = 2


class _Accounted(Protocol):
    @property
    def account(self) -> Account:
        """What it was made of."""


T = TypeVar("T", bound=_Accounted)

log = logging.getLogger(__name__)


class Sided(NamedTuple):
    """The side that a share gave a ranking, and why the live generation answered in the trial's place."""

    side: Side | None
    replaced: str | None = None


NO_SIDE: Final = Sided(None)


async def by_share(
    canary: Canary,
    trial: Serving,
    live: Serving,
    place: float,
    journey: Journey,
    answer: Callable[[Serving, Journey], Awaitable[T]],
    metrics: Metrics,
) -> tuple[T, Sided]:
    """Answer from the side on which a conversation is, by its place in [0, 1).

    If the trial fails or has used half of the time, the live generation answers in the time that is left. If that
    fails as well, the request is at fault, or the server, and nothing is counted. A request that has less than
    LEAST_SECONDS left is on neither side. Errors as `answer`.
    """
    if journey.left < LEAST_SECONDS:
        return await answer(live, journey), NO_SIDE
    if place >= canary.share:
        metrics.count_canary("live")
        return await answer(live, journey), Sided("live")
    # The engine sees the whole deadline, so that the trial does without no more than the live generation would.
    seconds, on_trial, began = SHARE_OF_TIME * journey.left, Journey(journey.deadline), time.monotonic()
    at_work: float | None = None  # of one that was late
    try:
        async with asyncio.timeout(seconds) as limit:
            answered = await answer(trial, on_trial)
        if "late_failed" not in answered.account.degraded:
            canary.count(None)
            metrics.count_canary("trial")
            return answered, Sided("trial")
        why = "late_failed"  # its second stage
    except TimeoutError:
        why = _SLOW
        if limit.expired():  # what waits for others is not at work: who sends much to the trial makes it no slower
            at_work = time.monotonic() - began - on_trial.seconds["queue"]
    except (DeadlineExceeded, TimeTooShort) as error:  # it expects to take longer than all of the time
        why, at_work = error.slug, seconds
    except RankingError as error:
        why = error.slug
    except Exception as error:
        log.error("the generation on trial failed", exc_info=error)
        why = "unexpected"
    began = time.monotonic()
    instead = await answer(live, journey)
    needed = time.monotonic() - began
    is_slow = at_work is not None and at_work >= max(LEAST_AT_WORK * seconds, TIMES_AS_LONG * needed)
    # Both must have had the same to do: caches know other texts of each, or even the answer.
    mine, others = on_trial.ticket, journey.ticket
    is_alike = others is not None and (mine is None or mine.new <= others.new)
    canary.count(why, at_work is None or (is_slow and is_alike))
    metrics.count_canary("trial", why)
    return instead, Sided("trial", why)
