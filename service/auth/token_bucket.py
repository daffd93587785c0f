"""How often somebody may call: a token bucket."""

import time
from collections.abc import Callable


class TokenBucket:
    """Holds `burst` tokens at most, and gains `rate_per_s` of them a second; a call takes one."""

    def __init__(self, rate_per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock()

    def take(self) -> float:
        """Take a token. Returns 0.0, or, where there is none, the seconds until there will be one."""
        now = self._clock()
        self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate_per_s)
        self._at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self.rate_per_s
