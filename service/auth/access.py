"""Who calls, what they may, and how often; the keys file is followed while the server runs.

Knows nothing of HTTP: guards.py takes the keys out of requests.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyrank.service.auth import keys
from polyrank.service.auth.keys import Key, Scope
from polyrank.service.auth.token_bucket import TokenBucket
from polyrank.service.errors import Forbidden, RateLimited, SettingsError, Unauthenticated
from polyrank.service.observe.metrics import Metrics

log = logging.getLogger(__name__)

Stamp = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sent a request: the name of the key, and what it may."""

    name: str
    scopes: frozenset[Scope]


# Everybody, where the server has no keys file.
ANYBODY = Principal("", frozenset({"rank", "admin"}))


@dataclass(frozen=True, slots=True)
class _InForce:
    """One state of the keys file: replaced as a whole, so that no request sees half of another."""

    keys: tuple[Key, ...]
    principals: dict[str, Principal]
    buckets: dict[str, TokenBucket]


class Access:
    """Finds out who sent a request, from the keys that are in force.

    Args:
        path: the keys file; None: everybody may do everything.
        default_rate: requests a second, and how many at once, of a key that names no rate; None: no limit.
        metrics: counts reloads of the keys file.
        clock: monotonic seconds.

    Raises:
        SettingsError: the keys file is missing or broken. (Later it is not: the keys read before stay in force.)
    """

    def __init__(
        self,
        path: Path | None,
        default_rate: tuple[float | None, int | None],
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._default = default_rate
        self._metrics = metrics
        self._clock = clock
        self._stamp: Stamp = None
        self._in_force = self._made_of((), {})
        if self._path is not None:
            self._stamp = _stamp(self._path)
            self._in_force = self._made_of(keys.read(self._path), {})

    def look(self) -> None:
        """Take over the keys file if it has changed; one that is broken changes nothing and is told once."""
        if self._path is None or (stamp := _stamp(self._path)) == self._stamp:
            return
        self._stamp = stamp  # taken before the file is read: a change in between is seen by the next look
        try:
            read = keys.read(self._path)
        except SettingsError as error:
            self._metrics.count_keys_reload("refused")
            log.error("the keys read before stay in force: %s", error)
            return
        self._in_force = self._made_of(read, self._in_force.buckets)
        self._metrics.count_keys_reload("ok")
        log.info("keys read", extra={"fields": {"keys": len(read)}})

    def identify(self, given: Sequence[bytes]) -> Principal:
        """Return who sent these keys, of which one must be in force; of several the one that may do most.

        Raises:
            Unauthenticated: none is.
        """
        if self._path is None:
            return ANYBODY
        in_force = self._in_force
        found = [key for each in given if (key := keys.find(in_force.keys, each)) is not None]
        if found:
            return max((in_force.principals[key.name] for key in found), key=lambda each: len(each.scopes))
        raise Unauthenticated("the API key is not one of this server's" if given else "send an API key")

    def require(self, principal: Principal, scope: Scope) -> None:
        """Check that the caller may do this.

        Raises:
            Forbidden: not with this key.
        """
        if scope not in principal.scopes:
            raise Forbidden(scope)

    def spend(self, principal: Principal) -> None:
        """Count a call against the caller's rate.

        Raises:
            RateLimited: it is used up for now.
        """
        bucket = self._in_force.buckets.get(principal.name)
        if bucket is not None and (seconds := bucket.take()):
            raise RateLimited(max(1, math.ceil(seconds)))

    def _made_of(self, read: tuple[Key, ...], before: dict[str, TokenBucket]) -> _InForce:
        principals = {key.name: _principal(key) for key in read}
        rates = {key.name: (key.rate_per_s, key.burst) if key.rate_per_s else self._default for key in read}
        if self._path is None:
            rates = {ANYBODY.name: self._default}
        buckets = {}
        for name, (rate_per_s, burst) in rates.items():
            if rate_per_s is not None:
                new = TokenBucket(rate_per_s, burst or math.ceil(rate_per_s), self._clock)
                old = before.get(name)
                same = old is not None and (old.rate_per_s, old.burst) == (new.rate_per_s, new.burst)
                buckets[name] = old if old is not None and same else new  # a reload fills nobody's bucket
        return _InForce(read, principals, buckets)


def _principal(key: Key) -> Principal:
    return Principal(key.name, frozenset({"rank", *key.scopes}))  # admin implies rank


def _stamp(path: Path) -> Stamp:
    """Differs whenever the file was written, replaced, or given other rights; None: it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
