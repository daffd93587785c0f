"""Threads beside the event loop, for work that takes longer than a moment."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from polyrank.service.ranking.values import Stages

T = TypeVar("T")


class Threads:
    """Runs functions off the event loop, in the order they came.

    Args:
        name: of the threads.
        count: how many there are.
    """

    def __init__(self, name: str, count: int) -> None:
        self._executor = ThreadPoolExecutor(max_workers=count, thread_name_prefix=name)

    async def run(self, work: Callable[[], T], stages: Stages | None = None) -> T:
        """Run the work when its turn comes; cancelling this before means that it is not done at all.

        Args:
            work: what to do.
            stages: told as "queue" how long it waited for its turn.
        """
        queued = time.perf_counter()

        def turn() -> T:
            if stages is not None:
                stages.add("queue", time.perf_counter() - queued)
            return work()

        return await asyncio.wrap_future(self._executor.submit(turn))

    def close(self) -> None:
        """Finish what has begun, drop what waits."""
        self._executor.shutdown(wait=True, cancel_futures=True)
