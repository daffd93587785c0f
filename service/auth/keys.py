"""The keys file: who may call a server.

    {"keys": [{"name": "shop", "sha256": "<of the key, in hex>", "scopes": ["rank"], "rate_per_s": 50, "burst": 100}]}

`rate_per_s` and `burst` may be left out. The file holds a hash instead of the key; a key has 256 random bits, so a
plain SHA-256 gives nothing away. This knows nothing of HTTP.
"""

import hmac
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_urlsafe
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from polyrank.index_builder.store.locks import WAIT_SECONDS, take_lock
from polyrank.model.durable import replacing
from polyrank.model.inputs import read_input
from polyrank.service.auth import AT_ONCE, PER_S
from polyrank.service.errors import SettingsError

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


def find(keys: Iterable[Key], given: bytes) -> Key | None:
    """Return the key that was given, if any; the time this takes does not depend on how near a wrong one is."""
    digest, found = hashed(given), None
    for key in keys:
        if hmac.compare_digest(digest, key.sha256):
            found = key  # no break: every key is compared
    return found


def read(path: Path) -> tuple[Key, ...]:
    """Read a keys file.

    Raises:
        SettingsError: it is missing or broken; the message is one line and shows nothing of the content.
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

    Raises:
        SettingsError: the file exists and is no keys file, or another process is changing it for too long.
        OSError: it cannot be written.
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
