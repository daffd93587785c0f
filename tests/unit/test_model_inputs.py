"""What users bring as a file is opened only if it is one, and read within bounds."""

import gzip
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from polyrank.index_builder.building.job_records import JobStore
from polyrank.index_builder.errors import GenerationCorrupt, GenerationError, JobNotFound, PoolInvalid
from polyrank.index_builder.generation.generation import read_manifest
from polyrank.index_builder.pool.rows import read_pool
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.leftovers import read_journal
from polyrank.index_builder.store.locks import holder_of, is_locked
from polyrank.index_builder.store.pointer import Pointer
from polyrank.index_builder.store.update_log import UpdateLog
from polyrank.model.checkpoint.files import file_sha256, read_object
from polyrank.model.durable import remove_leftovers
from polyrank.model.errors import CheckpointInvalid, InvalidInput, RankingError
from polyrank.model.evaluation.beir import read_judgements
from polyrank.model.inputs import open_unfolded, read_input
from polyrank.model.text.dialogues import read_dialogues
from polyrank.model.text.tokenizer import Tokenizer
from polyrank.service.auth import keys
from polyrank.service.changes.jobs import IdempotencyKeys
from polyrank.service.errors import SettingsError
from polyrank.service.settings import Settings

pytestmark = pytest.mark.timeout(20)
TERABYTE = 1 << 40


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, TERABYTE)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)  # an address is short
        made.bind(path.name)


def folder(path: Path) -> None:
    path.mkdir()


def memory(path: Path) -> None:
    path.symlink_to("/proc/self/mem")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


NO_FILES = [os.mkfifo, device, sparse, unix_socket, folder, memory, loop]
REFUSED = [(os.mkfifo, "no regular file"), (device, "no regular file"), (sparse, "larger")]


@pytest.mark.parametrize("make", [os.mkfifo, device])
@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst", "csv", "parquet"])
def test_a_pool_that_is_no_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None], suffix: str) -> None:
    pool = tmp_path / f"pool.{suffix}"
    make(pool)
    with pytest.raises(PoolInvalid, match="is no regular file"):
        read_pool([pool])


@pytest.mark.slow
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
def test_a_file_of_settings_that_is_none(tmp_path: Path, make: Callable[[Path], None], why: str, monkeypatch) -> None:
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


ID = "20260101T000000000000-0badcafe"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("make", NO_FILES)
@pytest.mark.parametrize(("name", "read", "refused"), [
    ("tokenizer.json", lambda at: Tokenizer(at), CheckpointInvalid),
    ("model.safetensors", lambda at: file_sha256(at), CheckpointInvalid),
    (f"{ID}/manifest.json", lambda at: read_manifest(at.parent), GenerationCorrupt),
    (f"generations/{ID}/manifest.json", lambda at: GenerationStore(at.parents[2]).manifest(ID), GenerationCorrupt),
    ("CURRENT", lambda at: Pointer(at.parent).current(), GenerationCorrupt),
    (f"jobs/{ID}.json", lambda at: JobStore(at.parents[1]).get(ID), JobNotFound),
    (f"{ID}.log", lambda at: UpdateLog.of_file(at), (OSError, GenerationError)),
    ("qrels.tsv", lambda at: read_judgements(at), InvalidInput),
])  # fmt: skip
def test_what_is_no_file_or_has_no_end_is_refused_at_once(
    tmp_path: Path, name: str, make: Callable[[Path], None], read: Callable[[Path], Any], refused: Any
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    with pytest.raises(refused) as caught:
        read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [os.mkfifo, device, folder, unix_socket])
@pytest.mark.parametrize(("name", "read", "told"), [
    ("HISTORY", lambda at: Pointer(at.parent).history([ID]), []),
    ("TRIAL", lambda at: Pointer(at.parent).trial(), None),
    ("journal", lambda at: read_journal(at), (0, [])),
    ("build.lock", lambda at: holder_of(at), "another process"),
    ("jobs/idempotency.json", lambda at: IdempotencyKeys(at.parents[1]).job_of("key", ""), None),
    (f".CURRENT.{'0' * 16}.tmp", lambda at: remove_leftovers(at.parent), None),
])  # fmt: skip
def test_what_is_no_file_counts_as_nothing(
    tmp_path: Path, name: str, make: Callable[[Path], None], read: Callable[[Path], Any], told: Any
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    make(path)
    assert read(path) == told


def test_a_pipe_in_the_place_of_a_lock_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    assert not is_locked(tmp_path / "lock")


def test_a_file_of_the_kernel_that_gives_nothing_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("polyrank.model.inputs.open_input", lambda _: _Silent())
    with pytest.raises(OSError, match="it gives no content"):
        read_input(tmp_path / "file")


class _Silent:
    def __enter__(self) -> "_Silent":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, _: int) -> None:
        """What a descriptor that does not block gives where nothing is there."""


def zstd(content: bytes) -> bytes:
    return bytes(pa.compress(content, codec="zstd", asbytes=True))


def rows_of_a_pool(at: Path) -> list[Any]:
    return list(read_pool([at]))


def examples(at: Path) -> list[Any]:
    return list(read_dialogues(at))


BLANK = b"\n" * 40_000_000


@pytest.mark.parametrize(("name", "read"), [
    ("pool.jsonl.gz", rows_of_a_pool), ("pool.jsonl.zst", rows_of_a_pool),
    ("d.jsonl.gz", examples), ("d.jsonl.zst", examples),
])  # fmt: skip
def test_a_small_file_of_very_many_blank_lines_is_given_up(tmp_path, name: str, read: Callable[[Path], Any]) -> None:
    (tmp_path / name).write_bytes(zstd(BLANK) if name.endswith("zst") else gzip.compress(BLANK))
    with pytest.raises(RankingError, match="more than 1048576 of its lines are blank"):
        read(tmp_path / name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "read"),
    [("pool.csv", rows_of_a_pool), ("pool.jsonl", rows_of_a_pool), ("qrels.tsv", lambda at: read_judgements(at))],
)
@pytest.mark.parametrize("before", [b"", b"id,text\na,b\n"])
def test_blank_lines_of_a_file_that_is_not_compressed(
    tmp_path: Path, name: str, read: Callable[[Path], Any], before: bytes
) -> None:
    (tmp_path / name).write_bytes((before if name.endswith("csv") else b"") + BLANK[: 2**20 + 1])
    with pytest.raises(RankingError, match="more than 1048576 of its lines are blank"):
        read(tmp_path / name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lines"), [("pool.jsonl", [b'{"text": "a"}\n', b"\n"]), ("pool.csv", [b"id,text\n1,a\n", b",\n"])]
)
def test_a_sheet_may_be_blank_to_its_last_row(tmp_path: Path, name: str, lines: list[bytes]) -> None:
    (tmp_path / name).write_bytes(lines[0] + lines[1] * (2**20 - 2))
    assert len(list(read_pool([tmp_path / name]))) == 1


@pytest.mark.parametrize(("suffix", "packed"), [("gz", gzip.compress), ("zst", zstd)])
@pytest.mark.parametrize("read", [rows_of_a_pool, examples])
def test_a_small_file_that_unfolds_to_a_large_one_is_given_up(
    tmp_path: Path, suffix: str, packed: Callable[[bytes], bytes], read: Callable[[Path], Any]
) -> None:
    path = tmp_path / f"many.jsonl.{suffix}"
    path.write_bytes(packed((b" " * 3_000_000 + b"\n") * 23))
    with pytest.raises(RankingError, match=r"it unfolds to more than 67108864 bytes"):
        read(path)


def test_what_is_compressed_as_text_is_reads_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrank.model.inputs._MUCH_BYTES", 1000)
    content = os.urandom(2000).hex().encode()
    (tmp_path / "file").write_bytes(gzip.compress(content))
    with open_unfolded(tmp_path / "file", "gzip") as stream:
        assert stream.read() == content
