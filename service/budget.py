"""What a request may spend on caches: they are there to save time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from index_builder.redis_client import SERVING_TIMEOUT_SECONDS


class Budget:
    """How long one request may wait for Redis, with all that it reads there.

    Args:
        deadline: when the request's time is over, on the monotonic clock.
        seconds: what it may spend.
    """

    def __init__(self, deadline: float = float("inf"), seconds: float = SERVING_TIMEOUT_SECONDS) -> None:
        self.deadline = deadline
        self.left = seconds

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Take the block's time from what is left."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.left -= time.monotonic() - began
