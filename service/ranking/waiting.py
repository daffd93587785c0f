"""Waiting for coroutines: until a deadline, and for two at a time."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from polyrank.service.errors import DeadlineExceeded

T = TypeVar("T")
U = TypeVar("U")


@asynccontextmanager
async def until(deadline: float) -> AsyncIterator[None]:
    """End the block with DeadlineExceeded when the time on the monotonic clock is over."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded("before it began")
    try:
        async with asyncio.timeout(None if math.isinf(left) else left):
            yield
    except TimeoutError:
        raise DeadlineExceeded("before there was an answer") from None


async def both(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """Results of two coroutines that run side by side; the first error ends both."""
    first, second = asyncio.ensure_future(one), asyncio.ensure_future(other)
    try:
        return await asyncio.gather(first, second)
    finally:
        first.cancel()
        second.cancel()
