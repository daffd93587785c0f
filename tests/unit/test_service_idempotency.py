"""A key means one job, for a day, across restarts."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from polyrank.service.changes import idempotency
from polyrank.service.changes.idempotency import IdempotencyKeys, checked
from polyrank.service.errors import HeaderInvalid, IdempotencyMismatch


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "jobs").mkdir()
    return tmp_path


def test_a_key_is_remembered_by_the_store(store: Path) -> None:
    IdempotencyKeys(store).remember("k", "body", "job")
    assert IdempotencyKeys(store).job_of("k", "body") == "job"
    assert IdempotencyKeys(store).job_of("other", "body") is None
    with pytest.raises(IdempotencyMismatch, match="job"):
        IdempotencyKeys(store).job_of("k", "another body")


def test_old_keys_are_forgotten(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = IdempotencyKeys(store)
    keys.remember("old", "body", "job")

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(UTC) + idempotency.KEPT

    monkeypatch.setattr(idempotency, "datetime", Tomorrow)
    keys.remember("new", "body", "job2")
    assert keys.job_of("old", "body") is None
    assert keys.job_of("new", "body") == "job2"


def test_a_damaged_file_counts_as_empty(store: Path) -> None:
    (store / "jobs" / "idempotency.json").write_bytes(b"{")
    assert IdempotencyKeys(store).job_of("k", "body") is None


@pytest.mark.parametrize("key", ["", "a b", "ä", "x" * 256, "a\tb"])
def test_a_bad_key_is_refused(key: str) -> None:
    with pytest.raises(HeaderInvalid):
        checked(key)


@pytest.mark.parametrize("key", [None, "8e03978e-40d5-43e8-bc93-6894a57f9324", '"quoted"', "x" * 255])
def test_a_good_key_is_taken(key: str | None) -> None:
    assert checked(key) == key
