"""The one thread that owns the model: work waits for it in a bounded queue, and is dropped when nobody waits for it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from service.errors import ClientGone, DeadlineExceeded, Overloaded

T = TypeVar("T")


class ModelThread:
    """Runs functions one after the other, off the event loop.

    Args:
        max_queue: how many may wait, besides the one that runs.
    """

    def __init__(self, max_queue: int) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._max_queue = max_queue
        self._taken = 0  # the work that runs, and what waits behind it

    async def run(self, work: Callable[[], T], deadline: float, gone: Callable[[], Awaitable[None]]) -> tuple[T, float]:
        """Run the work when its turn comes.

        Args:
            work: what to do.
            deadline: on the monotonic clock; the caller waits no longer for the work to begin.
            gone: returns when the caller hung up.

        Returns:
            the work's result, and the seconds it waited.

        Raises:
            Overloaded: too many wait already.
            DeadlineExceeded: its turn did not come in time.
            ClientGone: the caller hung up first.
        """
        if self._taken > self._max_queue:
            raise Overloaded(self._max_queue)
        queued = time.monotonic()
        began = queued

        def turn() -> T:
            nonlocal began
            began = time.monotonic()
            return work()

        future = self._executor.submit(turn)
        self._taken += 1
        result = asyncio.wrap_future(future)
        hangup = asyncio.ensure_future(gone())
        watched: set[asyncio.Future[Any]] = {result, hangup}
        try:
            timeout = max(0.0, deadline - queued)
            await asyncio.wait(watched, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            # Work that is cancelled before its turn costs the thread nothing; work that runs is waited for.
            if not result.done() and future.cancel():
                if hangup.done():
                    raise ClientGone("hung up while waiting")
                raise DeadlineExceeded("waiting for the model")
            return await result, began - queued
        finally:
            self._taken -= 1
            hangup.cancel()
            future.cancel()

    def close(self) -> None:
        """Finish what has begun, drop what waits."""
        self._executor.shutdown(wait=True, cancel_futures=True)
