"""What a request may spend on caches: they are there to save time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

# With what it takes to notice, 50 ms.
MOST_SECONDS = 0.045


class Budget:
    """How long one request may wait for Redis, with all that it reads there.

    Attributes:
        left: seconds; less than none where it has overspent.
    """

    def __init__(self, seconds: float = MOST_SECONDS) -> None:
        self.left = seconds

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Take the block's time from what is left."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.left -= time.monotonic() - began
