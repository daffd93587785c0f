"""Who may call a server, as its keys file says, and how often.

    {"keys": [{"name": "shop", "sha256": "<of the key, in hex>", "scopes": ["rank"], "rate_per_s": 50, "burst": 100}]}

`rate_per_s` and `burst` may be left out. `"pools": ["shop"]` makes it a key for these pools alone. The file holds a
hash instead of the key; a key has 256 random bits, so a plain SHA-256 gives nothing away. This knows nothing of HTTP:
`http/plumbing/access.py` takes the keys out of requests.
"""

import hmac
import json
import logging
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from polyrank.index_builder.store.locks import WAIT_SECONDS, take_lock
from polyrank.model.durable import replacing
from polyrank.model.errors import shortage_in
from polyrank.model.inputs import read_input
from polyrank.service import POOL_NAME
from polyrank.service.auth import AT_ONCE, PER_S
from polyrank.service.auth.buckets import Clock, SharedBuckets, TokenBucket
from polyrank.service.errors import Forbidden, HeaderInvalid, OtherPools, RateLimited, SettingsError, Unauthenticated

if TYPE_CHECKING:  # settings import this, and a start need not wait for prometheus_client
    from polyrank.service.observe.metrics import Metrics

KEY_BYTES = 32
KEY_PREFIX = "prk_"  # scanners for leaked secrets recognise it
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

MOST_FILE_BYTES = 16 << 20

Scope = Literal["rank", "admin"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Key(_Strict):
    """One key. The log shows its name, nothing shows its hash."""

    name: str = Field(pattern=f"^{NAME.pattern}$")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", repr=False)
    scopes: tuple[Scope, ...] = Field(min_length=1)
    pools: Annotated[tuple[Annotated[str, Field(pattern=f"^{POOL_NAME}$")], ...], Field(min_length=1)] | None = None
    rate_per_s: Annotated[float, Field(ge=PER_S.least, le=PER_S.most)] | None = None
    burst: Annotated[int, Field(ge=AT_ONCE.least, le=AT_ONCE.most)] | None = None

    @model_validator(mode="after")
    def _burst_of_a_rate(self) -> Self:
        if self.burst is not None and self.rate_per_s is None:
            raise ValueError("burst goes with rate_per_s")
        return self


class _File(_Strict):
    keys: tuple[Key, ...]

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for what in ("name", "sha256"):
            if len({getattr(key, what) for key in self.keys}) < len(self.keys):
                raise ValueError(f"two keys have the same {what}")
        return self


def hashed(key: bytes) -> str:
    """Return the SHA-256 of a key, in hex."""
    return sha256(key).hexdigest()


def new_key() -> str:
    """Draw a random key."""
    return KEY_PREFIX + token_urlsafe(KEY_BYTES)


def find(keys: Iterable[Key], secret: bytes) -> Key | None:
    """Return the key that was given, if any; the time this takes does not depend on how near a wrong one is."""
    digest, match = hashed(secret), None
    for key in keys:
        if hmac.compare_digest(digest, key.sha256):
            match = key  # no break: every key is compared
    return match


def read(path: Path) -> tuple[Key, ...]:
    """Read a keys file.

    Raises SettingsError if it is missing or broken; the message is one line and shows nothing of the content.
    """
    try:
        return _File.model_validate_json(read_input(path, MOST_FILE_BYTES)).keys
    except OSError as error:
        raise SettingsError(f"keys_file: {path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        [first, *_] = error.errors(include_input=False, include_url=False, include_context=False)
        where = ".".join(str(part) for part in first["loc"])
        what = str(first["msg"]).removeprefix("Value error, ")
        raise SettingsError(f"keys_file: {path} is no keys file: {where + ': ' if where else ''}{what}") from None


@contextmanager
def changing(path: Path) -> Iterator[list[Key]]:
    """Yield the keys of a file as a list to change, and write the list at the end of the block.

    There is one writer at a time, and a server sees the old file or the new one. The file need not exist. Only its
    owner may read a new file; an existing one keeps its owner and its mode. An error in the block changes nothing.
    Raises SettingsError if the file exists and is no keys file, or another process is changing it for too long.
    """
    path = path.resolve()  # a link stays a link
    directory = os.open(path.parent, os.O_RDONLY)  # the file is replaced, so the lock is on its directory
    try:
        if not take_lock(directory, WAIT_SECONDS):
            raise SettingsError(f"another process is changing {path}; try again")
        old = path.stat() if path.exists() else None
        keys = list(read(path)) if old else []
        yield keys
        rows = [key.model_dump(mode="json", exclude_none=True) for key in keys]
        with replacing(path) as temporary:
            temporary.chmod(old.st_mode & 0o777 if old else 0o600)
            temporary.write_text(json.dumps({"keys": rows}, indent=2) + "\n", encoding="utf-8")
            if old:
                with suppress(PermissionError):  # the file is another user's; only root may
                    os.chown(temporary, old.st_uid, old.st_gid)
    finally:
        os.close(directory)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sent a request: the name of the key, its scopes, and the pools that it is for; None: all, and the server."""

    name: str
    scopes: frozenset[Scope]
    pools: tuple[str, ...] | None = None


# Every caller, where the server has no keys file.
ANYBODY = Principal("", frozenset({"rank", "admin"}))


@dataclass(frozen=True, slots=True)
class _InForce:
    """One state of the keys file. It is replaced as a whole, so that no request sees half of a change."""

    keys: tuple[Key, ...]
    principals: dict[str, Principal]
    buckets: dict[str, TokenBucket]


class Access:
    """Identifies callers by the keys that are in force, and bounds how often they call.

    Without a keys file everybody may do everything. `default_rate`, calls a second, is for keys that name no rate.
    `shared` holds the buckets if other processes count the same calls. Raises SettingsError if the keys file is missing
    or broken at the start. (If it breaks later, the keys read before stay in force.)
    """

    def __init__(
        self,
        path: Path | None,
        default_rate: float | None,
        metrics: "Metrics",
        clock: Clock = time.monotonic,
        shared: SharedBuckets | None = None,
    ) -> None:
        self._path, self._default, self._metrics = path, default_rate, metrics
        self._clock, self._shared = clock, shared
        self._stamp = path and _stamp(path)
        self._in_force = self._state_of(read(path) if path else (), {})

    def look(self) -> None:
        """Read the keys file if it has changed; a broken one changes nothing and is logged once.

        Raises:
            SettingsError: the system lacks something for the moment, such as descriptors; the next look reads again.
        """
        if self._path is None or (stamp := _stamp(self._path)) == self._stamp:
            return  # the stamp is from before the file is read, so that the next look sees a change in between
        try:
            keys = read(self._path)
        except SettingsError as error:
            if shortage_in(error):
                raise  # the file is not to blame, and a key that it revokes must not stay in force
            self._stamp = stamp
            self._metrics.keys_reloads.labels("refused").inc()
            log.error("the keys read before stay in force: %s", error)
            return
        self._stamp = stamp
        self._in_force = self._state_of(keys, self._in_force.buckets)
        self._metrics.keys_reloads.labels("ok").inc()
        log.info("keys read", extra={"fields": {"keys": len(keys)}})

    def identify(self, secrets: Sequence[bytes]) -> Principal:
        """Return who sent these keys, of which one is in force.

        Raises:
            Unauthenticated: none is.
            HeaderInvalid: several are: each may do something else.
        """
        if self._path is None:
            return ANYBODY
        in_force = self._in_force
        names = {key.name for each in secrets if (key := find(in_force.keys, each)) is not None}
        if not names:
            raise Unauthenticated("the API key is not one of this server's" if secrets else "send an API key")
        if len(names) > 1:
            raise HeaderInvalid("the request carries several valid API keys; send one of them")
        return in_force.principals[names.pop()]

    def require(self, principal: Principal, scope: Scope, pool: str | None = None) -> None:
        """Check that the caller has a scope, in the pool of a name; None: in any. Raises Forbidden."""
        if principal.pools is not None and pool is not None and pool not in principal.pools:
            raise OtherPools(principal.pools)
        if scope not in principal.scopes:
            raise Forbidden(scope)

    def spend(self, principal: Principal) -> None:
        """Count a call against the caller's rate. Raises RateLimited if the rate is used up for now."""
        bucket = self._in_force.buckets.get(principal.name)
        if bucket is not None and (seconds := bucket.take()):
            raise RateLimited(max(1, math.ceil(seconds)))

    def _state_of(self, keys: tuple[Key, ...], before: dict[str, TokenBucket]) -> _InForce:
        """Make a state of these keys; a bucket whose rate stays the same is kept, so that a reload refills none."""
        principals = {
            key.name: Principal(key.name, frozenset({"rank", *key.scopes}), key.pools) for key in keys
        }  # admin may rank
        rates = {key.name: (key.rate_per_s, key.burst) if key.rate_per_s else (self._default, None) for key in keys}
        if self._path is None:
            rates = {ANYBODY.name: (self._default, None)}
        buckets = {}
        for name, (rate_per_s, own_burst) in rates.items():
            if rate_per_s is not None:
                old, burst = before.get(name), own_burst or math.ceil(rate_per_s)
                same = old is not None and (old.rate_per_s, old.burst) == (rate_per_s, burst)
                buckets[name] = old if old is not None and same else self._bucket(name, rate_per_s, burst)
        return _InForce(keys, principals, buckets)

    def _bucket(self, name: str, rate_per_s: float, burst: int) -> TokenBucket:
        if self._shared is None:
            return TokenBucket(rate_per_s, burst, self._clock)
        return self._shared.bucket(name, rate_per_s, burst, self._clock)


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes when the file is written, replaced or given other rights; None: it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
