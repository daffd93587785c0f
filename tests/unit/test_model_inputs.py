"""What users bring as a file is opened only if it is one, and read within bounds."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool.rows import read_pool
from polyrank.model.checkpoint.files import read_object
from polyrank.model.errors import CheckpointInvalid, RankingError
from polyrank.model.text.dialogues import read_dialogues
from polyrank.service.auth import keys
from polyrank.service.errors import SettingsError
from polyrank.service.settings import Settings

pytestmark = pytest.mark.timeout(20)
TERABYTE = 1 << 40


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, TERABYTE)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


REFUSED = [(os.mkfifo, "no regular file"), (device, "no regular file"), (sparse, "larger")]


@pytest.mark.parametrize("make", [os.mkfifo, device])
@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst", "csv", "parquet"])
def test_a_pool_that_is_no_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None], suffix: str) -> None:
    pool = tmp_path / f"pool.{suffix}"
    make(pool)
    with pytest.raises(PoolInvalid, match="is no regular file"):
        read_pool([pool])


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_a_huge_sparse_pool_is_given_up(tmp_path: Path, suffix: str) -> None:
    pool = tmp_path / f"pool.{suffix}"
    sparse(pool)
    with pytest.raises(PoolInvalid, match=r"cannot be read|the header|no column"):
        list(read_pool([pool]))


@pytest.mark.parametrize(("make", "why"), REFUSED)
def test_a_keys_file_that_is_none(tmp_path: Path, make: Callable[[Path], None], why: str) -> None:
    make(tmp_path / "keys.json")
    with pytest.raises(SettingsError, match=f"keys_file: .* cannot be read: .*{why}"):
        keys.read(tmp_path / "keys.json")


@pytest.mark.parametrize(("make", "why"), REFUSED)
def test_a_file_of_settings_that_is_none(
    tmp_path: Path, make: Callable[[Path], None], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "settings.toml")
    monkeypatch.setenv("POLYRANK_CONFIG", str(tmp_path / "settings.toml"))
    with pytest.raises(SettingsError, match=why):
        Settings.load({"store": tmp_path})


@pytest.mark.parametrize("make", [os.mkfifo, device, sparse])
def test_dialogues_that_are_none(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "d.jsonl")
    with pytest.raises(RankingError, match=r"no such file|a line is longer"):
        list(read_dialogues(tmp_path / "d.jsonl"))


@pytest.mark.parametrize("make", [os.mkfifo, device, sparse])
def test_a_config_that_is_none(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "polyrank.json")
    with pytest.raises(CheckpointInvalid, match=r"no regular file|larger"):
        read_object(tmp_path / "polyrank.json")
