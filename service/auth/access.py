"""Who calls, what they may do, and how often; changes of the keys file take effect while the server runs.

This knows nothing of HTTP: `http/plumbing/guards.py` takes the keys out of requests.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyrank.model.errors import shortage_in
from polyrank.service.auth import keys
from polyrank.service.auth.keys import Key, Scope
from polyrank.service.errors import Forbidden, RateLimited, SettingsError, Unauthenticated
from polyrank.service.observe.metrics import Metrics

log = logging.getLogger(__name__)

Clock = Callable[[], float]  # monotonic seconds


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sent a request: the name of the key, and its scopes."""

    name: str
    scopes: frozenset[Scope]


# Every caller, where the server has no keys file.
ANYBODY = Principal("", frozenset({"rank", "admin"}))


class TokenBucket:
    """Bounds how often somebody calls: it holds at most `burst` tokens and gains `rate_per_s`; a call takes one."""

    def __init__(self, rate_per_s: float, burst: int, clock: Clock = time.monotonic) -> None:
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock()

    def take(self) -> float:
        """Take a token; returns 0.0, or, where there is none, the seconds until there will be one."""
        now = self._clock()
        self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate_per_s)
        self._at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self.rate_per_s


@dataclass(frozen=True, slots=True)
class _InForce:
    """One state of the keys file. It is replaced as a whole, so that no request sees half of a change."""

    keys: tuple[Key, ...]
    principals: dict[str, Principal]
    buckets: dict[str, TokenBucket]


class Access:
    """Identifies callers by the keys that are in force, and bounds how often they call.

    Without a keys file everybody may do everything. `default_rate`, calls a second, is for keys that name no rate.

    Raises:
        SettingsError: the keys file is missing or broken at the start. (If it breaks later, the keys read before stay
            in force.)
    """

    def __init__(
        self, path: Path | None, default_rate: float | None, metrics: Metrics, clock: Clock = time.monotonic
    ) -> None:
        self._path = path
        self._default = default_rate
        self._metrics = metrics
        self._clock = clock
        self._stamp = path and _stamp(path)
        self._in_force = self._made_of(keys.read(path) if path else (), {})

    def look(self) -> None:
        """Read the keys file if it has changed; a broken one changes nothing and is logged once.

        Raises:
            SettingsError: the system lacks something for the moment, such as descriptors; the next look reads again.
        """
        if self._path is None or (stamp := _stamp(self._path)) == self._stamp:
            return  # the stamp is from before the file is read, so that the next look sees a change in between
        try:
            read = keys.read(self._path)
        except SettingsError as error:
            if shortage_in(error):
                raise  # the file is not to blame, and a key that it revokes must not stay in force
            self._stamp = stamp
            self._metrics.count_keys_reload("refused")
            log.error("the keys read before stay in force: %s", error)
            return
        self._stamp = stamp
        self._in_force = self._made_of(read, self._in_force.buckets)
        self._metrics.count_keys_reload("ok")
        log.info("keys read", extra={"fields": {"keys": len(read)}})

    def identify(self, given: Sequence[bytes]) -> Principal:
        """Return who sent these keys. If several are in force, the one with the widest scope applies.

        Raises:
            Unauthenticated: none of the keys is in force.
        """
        if self._path is None:
            return ANYBODY
        in_force = self._in_force
        found = [key for sent in given if (key := keys.find(in_force.keys, sent)) is not None]
        if found:
            return max((in_force.principals[key.name] for key in found), key=lambda principal: len(principal.scopes))
        raise Unauthenticated("the API key is not one of this server's" if given else "send an API key")

    def require(self, principal: Principal, scope: Scope) -> None:
        """Check that the caller has a scope.

        Raises:
            Forbidden: the caller's key has not.
        """
        if scope not in principal.scopes:
            raise Forbidden(scope)

    def spend(self, principal: Principal) -> None:
        """Count a call against the caller's rate.

        Raises:
            RateLimited: the rate is used up for now.
        """
        bucket = self._in_force.buckets.get(principal.name)
        if bucket is not None and (seconds := bucket.take()):
            raise RateLimited(max(1, math.ceil(seconds)))

    def _made_of(self, read: tuple[Key, ...], before: dict[str, TokenBucket]) -> _InForce:
        """Make a state of these keys; a bucket whose rate stays the same is kept, so that a reload refills none."""
        principals = {key.name: Principal(key.name, frozenset({"rank", *key.scopes})) for key in read}  # admin may rank
        rates = {key.name: (key.rate_per_s, key.burst) if key.rate_per_s else (self._default, None) for key in read}
        if self._path is None:
            rates = {ANYBODY.name: (self._default, None)}
        buckets = {}
        for name, (rate_per_s, given_burst) in rates.items():
            if rate_per_s is not None:
                old, burst = before.get(name), given_burst or math.ceil(rate_per_s)
                same = old is not None and (old.rate_per_s, old.burst) == (rate_per_s, burst)
                buckets[name] = old if old is not None and same else TokenBucket(rate_per_s, burst, self._clock)
        return _InForce(read, principals, buckets)


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes when the file is written, replaced or given other rights; None: it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
