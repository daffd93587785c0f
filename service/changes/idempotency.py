"""Remembers, across restarts, which job an Idempotency-Key started."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from polyrank.model.durable import write_atomically
from polyrank.model.errors import shortage_in
from polyrank.model.inputs import read_input
from polyrank.service.errors import HeaderInvalid, IdempotencyMismatch

PATTERN = r"^[\x21-\x7e]{1,255}$"
KEY = re.compile(PATTERN)
KEPT = timedelta(hours=24)


def checked(key: str | None) -> str | None:
    """Return the value of the header if it is a key.

    Raises:
        HeaderInvalid: it is empty, too long or has other than visible ASCII characters.
    """
    if key is not None and not KEY.fullmatch(key):
        raise HeaderInvalid("Idempotency-Key must be 1 to 255 visible ASCII characters")
    return key


class IdempotencyKeys:
    """The keys of the last 24 hours, in `STORE/jobs/idempotency.json`; to be used by one caller at a time."""

    def __init__(self, store: Path) -> None:
        self._path = store / "jobs" / "idempotency.json"

    def job_of(self, key: str, body_sha256: str) -> str | None:
        """Return the id of the job that this key started, if any.

        Raises:
            IdempotencyMismatch: it started one with another body.
        """
        entry = self._read().get(key)
        if entry is None:
            return None
        if entry["body_sha256"] != body_sha256:
            raise IdempotencyMismatch(entry["job"])
        return str(entry["job"])

    def remember(self, key: str, body_sha256: str, job_id: str) -> None:
        """Bind the key to a job, and forget keys older than 24 hours."""
        now = datetime.now(UTC)
        entries = {
            old: entry for old, entry in self._read().items() if now - datetime.fromisoformat(entry["at"]) < KEPT
        }
        entries[key] = {"job": job_id, "body_sha256": body_sha256, "at": now.isoformat()}
        write_atomically(self._path, orjson.dumps(entries))

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            entries: dict[str, dict[str, Any]] = orjson.loads(read_input(self._path))
        except (OSError, orjson.JSONDecodeError) as error:
            if shortage := shortage_in(error):
                raise shortage from error
            return {}
        return entries
