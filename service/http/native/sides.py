"""Which generation answers a ranking while one is on trial with a share of the conversations.

The live generation stands behind the other one: no request fails, or comes late, because it was asked of the trial.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from polyrank.model.errors import RankingError
from polyrank.service.feedback.records import Side
from polyrank.service.live.canary import Canary
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.stages import SHARE_OF_TIME, Journey

SLOW = "slow"

T = TypeVar("T")

log = logging.getLogger(__name__)


class Sided(NamedTuple):
    """The side that the share gave a ranking, and why the live generation answered in the trial's place."""

    side: Side | None = None
    replaced: str | None = None


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
    fails as well, the request is at fault, or the server, and nothing is counted but lost time. Errors as `answer`.
    """
    if place >= canary.share:
        metrics.count_canary("live")
        return await answer(live, journey), Sided("live")
    replaced = None
    try:
        # The engine sees the whole deadline, so that the trial does without no more than the live generation would.
        async with asyncio.timeout(SHARE_OF_TIME * journey.left):
            answered = await answer(trial, Journey(journey.deadline))
    except TimeoutError:
        replaced = SLOW
    except RankingError as error:
        replaced = error.slug
    except Exception as error:
        replaced = "unexpected"
        log.error("the generation on trial failed", exc_info=error)
    if replaced is None:
        _count(canary, metrics, None)
        return answered, Sided("trial")
    if replaced == SLOW:  # that alone may make the live generation late
        _count(canary, metrics, replaced)
        return await answer(live, journey), Sided("trial", replaced)
    answered = await answer(live, journey)
    _count(canary, metrics, replaced)
    return answered, Sided("trial", replaced)


def _count(canary: Canary, metrics: Metrics, replaced: str | None) -> None:
    canary.count(replaced)
    metrics.count_canary("trial", replaced)
