"""Which generation answers a ranking while one is on trial with a share of the conversations.

The live generation stands behind the other one: no request fails, or comes late, because it was asked of the trial.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol, TypeVar

from polyrank.model.errors import RankingError
from polyrank.service.feedback.records import Side
from polyrank.service.live.canary import Canary
from polyrank.service.observe.labels import Account
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking.parts import Serving
from polyrank.service.scheduling.stages import SHARE_OF_TIME, Journey

_SLOW: Final = "slow"
# Of less, half is little even for a good model: a caller in a hurry would end the canary.
LEAST_SECONDS: Final = 0.1


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
    fails as well, the request is at fault, or the server, and nothing is counted but lost time. A request that has less
    than LEAST_SECONDS left is on neither side. Errors as `answer`.
    """
    if journey.left < LEAST_SECONDS:
        return await answer(live, journey), NO_SIDE
    if place >= canary.share:
        metrics.count_canary("live")
        return await answer(live, journey), Sided("live")
    answered = await _asked(trial, journey, answer)
    if not isinstance(answered, str):
        _count(canary, metrics, None)
        return answered, Sided("trial")
    if answered == _SLOW:  # lost time alone may make the live generation late
        _count(canary, metrics, _SLOW)
    instead = await answer(live, journey)
    if answered != _SLOW:
        _count(canary, metrics, answered)
    return instead, Sided("trial", answered)


async def _asked(trial: Serving, journey: Journey, answer: Callable[[Serving, Journey], Awaitable[T]]) -> T | str:
    """Ask the trial; returns its answer, or why it has none."""
    try:
        # The engine sees the whole deadline, so that the trial does without no more than the live generation would.
        async with asyncio.timeout(SHARE_OF_TIME * journey.left):
            answered = await answer(trial, Journey(journey.deadline))
    except TimeoutError:
        return _SLOW
    except RankingError as error:
        return error.slug
    except Exception as error:
        log.error("the generation on trial failed", exc_info=error)
        return "unexpected"
    return "late_failed" if "late_failed" in answered.account.degraded else answered  # its second stage


def _count(canary: Canary, metrics: Metrics, replaced: str | None) -> None:
    canary.count(replaced)
    metrics.count_canary("trial", replaced)
