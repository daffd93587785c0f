"""A build that was killed goes on where it was, and makes what it would have made."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import HashEncoder, assert_whole, pool
from resumed_builder import CHUNK, ENCODER

from polyrank.index_builder.building.encoding import ChunkTexts, EncodedChunk, encoded_by
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions, BuildResult
from polyrank.index_builder.errors import DiskFull
from polyrank.index_builder.generation import candidates
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.vectors.local import EmbeddingsWriter
from polyrank.index_builder.vectors.redis import RedisEmbeddings

REPOSITORY = Path(__file__).parents[2]
ROWS = 10 * CHUNK + 5
CHUNKS = 11


class Nursery:
    """Starts builders that are killed, or kill themselves."""

    def __init__(self) -> None:
        environment = {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(REPOSITORY / "tests" / "resumed_builder.py")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def start(self, root: Path, salt: str = "", kill: tuple[str, int] | None = None, seconds: float = 0) -> int:
        order = {"root": str(root), "pool": ROWS, "salt": salt, "kill": kill, "seconds": seconds}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._line()[1]

    def wait(self) -> tuple[list[int], int | None, int]:
        """First rows of the chunks it encoded, how many it took over if it came to its end, and its exit status."""
        encoded, resumed = [], None
        while (line := self._line())[0] != "dead":
            if line[0] == "encode":
                encoded.append(line[1])
            else:
                resumed = line[1]
        return encoded, resumed, line[1]

    def _line(self) -> tuple[str, int]:
        word, number = self._process.stdout.readline().split()
        return word, int(number)

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "BATCH_ROWS", CHUNK)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(candidates, "BATCH_ROWS", CHUNK)
        root = tmp_path_factory.mktemp("uninterrupted")
        return GenerationStore(root).manifest(build(ENCODER, pool(ROWS), root, BuildOptions(index="hnsw")).generation)


@pytest.fixture
def killed(nursery: Nursery, tmp_path: Path) -> Path:
    """A store whose only build was killed when seven of its chunks were complete."""
    root = tmp_path / "store"
    nursery.start(root, kill=("encode", 8))
    assert nursery.wait() == ([i * CHUNK for i in range(7)], None, -signal.SIGKILL)
    return root


class Counting:
    """A source of vectors that counts the chunks it was asked for."""

    def __init__(self, encoder: HashEncoder = ENCODER) -> None:
        self.chunks: list[int] = []
        self._encode = encoded_by(encoder)

    def __call__(self, chunks: Iterator[ChunkTexts], _on_done: Callable[[int], None]) -> Iterator[EncodedChunk]:
        for chunk in chunks:
            self.chunks.append(chunk.start // CHUNK)
            yield from self._encode(iter([chunk]), lambda _done: None)


def built(
    root: Path, rows: Sequence[Candidate] | None = None, encoder: HashEncoder = ENCODER, **options: Any
) -> tuple[BuildResult, list[int]]:
    """Build here; returns which chunks were encoded."""
    counting, chosen = Counting(encoder), BuildOptions(index="hnsw", **options)
    result = build(encoder, pool(ROWS) if rows is None else rows, root, chosen, vectors=counting)
    assert GenerationStore(root).verify(result.generation).dtype == chosen.dtype
    return result, counting.chunks


def leftover(root: Path) -> Path:
    (found,) = (root / "generations").glob(".tmp-*")
    return found


def assert_alike(root: Path, expected: Manifest, attempts: int | None = None) -> None:
    """The only generation is byte for byte that of an uninterrupted build, and nothing lies beside it."""
    store = GenerationStore(root)
    (only,) = store.ids()
    manifest = store.verify(only)
    assert manifest.files == expected.files
    assert manifest.recall["recall@10"] == expected.recall["recall@10"]
    assert manifest.build.truncated == expected.build.truncated > 0
    assert attempts in (None, manifest.build.attempts)
    assert [path.name for path in (root / "generations").iterdir()] == [only]


def test_killed_again_and_again_a_build_loses_a_chunk_each_time_at_most(
    nursery: Nursery, tmp_path: Path, uninterrupted: Manifest
) -> None:
    chance, encoded, kills, status = random.Random(20261121), list[int](), 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        pid = nursery.start(tmp_path, seconds=0.02)
        if kills < 6:
            time.sleep(chance.uniform(0.01, 0.06))
            with suppress(ProcessLookupError):  # it may just have ended
                os.kill(pid, signal.SIGKILL)
        more, resumed, status = nursery.wait()
        assert more == sorted(more), "a chunk is encoded once"
        kills += status == -signal.SIGKILL
        encoded += more
    assert status == 0
    assert kills >= 3
    assert len(encoded) <= CHUNKS + kills
    assert set(encoded) == {i * CHUNK for i in range(CHUNKS)}
    assert resumed == (more[0] if more else ROWS)
    assert_alike(tmp_path, uninterrupted)


@pytest.mark.parametrize(
    ("stage", "occurrence", "lost"),
    [("append", 3, 1), ("encode", 9, 0), ("index", 1, 0), ("manifest", 1, 0), ("rename", 1, 0)],
)
def test_wherever_it_was_killed_a_build_makes_what_it_would_have_made(
    nursery: Nursery, tmp_path: Path, uninterrupted: Manifest, stage: str, occurrence: int, lost: int
) -> None:
    nursery.start(tmp_path, kill=(stage, occurrence))
    before, _, _ = nursery.wait()
    nursery.start(tmp_path)
    after, resumed, status = nursery.wait()
    assert status == 0
    assert len(before) + len(after) == CHUNKS + lost
    assert resumed == min(ROWS, (len(before) - lost) * CHUNK)
    assert_alike(tmp_path, uninterrupted, attempts=2)


def test_killed_while_it_counts_words_a_build_begins_anew(nursery: Nursery, tmp_path, uninterrupted: Manifest) -> None:
    nursery.start(tmp_path, kill=("words", 14))
    assert nursery.wait() == ([], None, -signal.SIGKILL)
    assert [path.name for path in (tmp_path / "generations").glob(".tmp-*/words")] == ["words"]
    nursery.start(tmp_path)
    assert nursery.wait() == ([i * CHUNK for i in range(CHUNKS)], 0, 0)
    assert_alike(tmp_path, uninterrupted)


def test_killed_while_it_takes_over_a_build_can_be_resumed_still(
    nursery: Nursery, killed: Path, uninterrupted: Manifest
) -> None:
    for stage in ("read", "words", "resume", "encode"):
        nursery.start(killed, kill=(stage, 1))
        assert nursery.wait() == ([], None, -signal.SIGKILL)
    assert built(killed)[1] == [7, 8, 9, 10]
    assert_alike(killed, uninterrupted, attempts=3)


def test_a_full_disk_costs_a_killed_build_nothing(killed: Path, uninterrupted: Manifest, monkeypatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(EmbeddingsWriter, "sync", _no_room)
        with pytest.raises(DiskFull):
            build(ENCODER, pool(ROWS), killed)
    assert built(killed)[1] == [7, 8, 9, 10]
    assert_alike(killed, uninterrupted, attempts=2)


def _no_room(_store: EmbeddingsWriter) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_builder_that_was_only_taken_for_dead_cannot_write_into_what_was_taken_over(
    killed: Path, uninterrupted: Manifest
) -> None:
    with (leftover(killed) / "embeddings.bin").open("r+b") as still_open:
        generation = built(killed)[0].generation
        still_open.write(b"\xff" * 100_000)
    GenerationStore(killed).verify(generation)
    assert_alike(killed, uninterrupted, attempts=2)


def test_progress_begins_behind_what_was_taken_over(killed: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    build(ENCODER, pool(ROWS), killed, progress=lambda *each: told.append(each))
    resumed = [each for each in told if each[0] == "resume"]
    assert resumed == [("resume", i * CHUNK, ROWS) for i in range(7)]
    assert next(each for each in told if each[0] == "encode") == ("encode", 7 * CHUNK, ROWS)


@pytest.mark.parametrize("byte", [0, 2 * CHUNK * 32 * 2, 7 * CHUNK * 32 * 2 - 1])
def test_a_flipped_bit_is_encoded_again(killed: Path, uninterrupted: Manifest, byte: int) -> None:
    matrix = leftover(killed) / "embeddings.bin"
    content = bytearray(matrix.read_bytes())
    content[byte] ^= 1
    matrix.write_bytes(content)
    assert built(killed)[1] == list(range(byte // (CHUNK * 32 * 2), CHUNKS))
    assert_alike(killed, uninterrupted, attempts=2 if byte >= CHUNK * 32 * 2 else 1)


@pytest.mark.parametrize(
    ("file", "byte", "kept"), [("late.bin", 0, 0), ("late.bin", -1, 6), ("late.offsets", 8, 0), ("late.offsets", -1, 6)]
)
def test_a_flipped_bit_in_the_second_block_is_encoded_again(
    killed: Path, uninterrupted: Manifest, file: str, byte: int, kept: int
) -> None:
    path = leftover(killed) / file
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)
    assert built(killed)[1] == list(range(kept, CHUNKS))
    assert_alike(killed, uninterrupted, attempts=2 if kept else 1)


def test_a_second_block_that_is_gone_is_encoded_again(killed: Path, uninterrupted: Manifest) -> None:
    (leftover(killed) / "late.bin").unlink()
    assert built(killed)[1] == list(range(CHUNKS))
    assert_alike(killed, uninterrupted, attempts=1)


@pytest.mark.parametrize("left", [0, 5 * CHUNK * 32 * 2 + 7])
def test_a_matrix_that_is_too_short_is_encoded_from_there(killed: Path, uninterrupted: Manifest, left: int) -> None:
    os.truncate(leftover(killed) / "embeddings.bin", left)
    assert built(killed)[1] == list(range(left // (CHUNK * 32 * 2), CHUNKS))
    assert_alike(killed, uninterrupted, attempts=2 if left else 1)


def test_another_pool_keeps_the_chunks_before_the_first_difference(killed: Path) -> None:
    rows = pool(ROWS)
    rows[3 * CHUNK + 1] = Candidate("c49", "another text")
    result, encoded = built(killed, rows)
    assert encoded == list(range(3, CHUNKS))
    assert result.resumed == 3 * CHUNK
    assert result.truncated == sum(len(row.text) > ENCODER.longest for row in rows)
    generation = GenerationStore(killed).open(result.generation)
    assert generation.candidates.rows([49])[0].text == "another text"
    assert (generation.embeddings.matrix[49] == ENCODER.vector("another")).all()


def test_a_shorter_pool_keeps_what_it_has(killed: Path) -> None:
    result, encoded = built(killed, pool(3 * CHUNK + 2))
    assert encoded == [3]
    assert_whole(GenerationStore(killed).open(result.generation), ENCODER, pool(3 * CHUNK + 2))


def quantised_again() -> HashEncoder:
    encoder = HashEncoder(dim=32)
    encoder.rounding = "int8-ab"
    return encoder


@pytest.mark.parametrize("options", [
    {"encoder": HashEncoder(dim=32, fingerprint="ab" * 32)},
    {"encoder": quantised_again()},
    {"dtype": "float32"},
    {"rows": pool(ROWS, "other ")},
], ids=["model", "calibration", "dtype", "rows"])  # fmt: skip
def test_nothing_is_taken_over_from_a_build_of_something_else(killed: Path, options: dict[str, Any]) -> None:
    result, encoded = built(killed, **options)
    assert encoded == list(range(CHUNKS))
    assert result.resumed == 0
    assert GenerationStore(killed).manifest(result.generation).build.attempts == 1
    assert [path.name for path in (killed / "generations").iterdir()] == [result.generation]


def test_a_resumed_build_that_fails_leaves_nothing(killed: Path) -> None:
    def fail(stage: str, _done: int, _total: int | None) -> None:
        if stage == "append":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(ENCODER, pool(ROWS), killed, progress=fail)
    assert list((killed / "generations").iterdir()) == []


def test_a_pool_that_cannot_be_used_costs_a_killed_build_nothing(killed: Path, uninterrupted: Manifest) -> None:
    with pytest.raises(Exception, match="no candidate"):
        build(ENCODER, [], killed)
    assert built(killed)[1] == [7, 8, 9, 10]
    assert_alike(killed, uninterrupted, attempts=2)


def test_collecting_garbage_keeps_it_for_the_next_build(killed: Path, uninterrupted: Manifest) -> None:
    GenerationStore(killed).gc()
    assert built(killed)[1] == [7, 8, 9, 10]
    assert_alike(killed, uninterrupted, attempts=2)


def test_redis_forgets_the_killed_builds_keys(killed: Path, redis_url: str) -> None:
    old = leftover(killed).name.removeprefix(".tmp-")
    stale = RedisEmbeddings(redis_url, old, 32, "float16", 5)
    stale.put_many(["c0", "gone"], np.ones((2, 32)))
    stale.commit()
    result, _ = built(killed, redis_url=redis_url)
    copy = RedisEmbeddings(redis_url, result.generation, 32, "float16", 5, ENCODER.late_rows)
    assert (stale.count(), copy.count()) == (0, ROWS)
    assert copy._client.keys(f"*{old}*") == []
    fetched = copy.get_many([row.id for row in pool(ROWS)]).rows
    assert (fetched == GenerationStore(killed).open(result.generation).embeddings.matrix).all()
    stale.close()
    copy.close()


def test_a_resumed_generation_is_newer_than_what_was_published_meanwhile(killed: Path, tmp_path: Path) -> None:
    other = build(ENCODER, pool(3), tmp_path / "other").generation
    os.rename(tmp_path / "other" / "generations" / other, killed / "generations" / other)
    result, encoded = built(killed)
    assert len(encoded) == 4
    assert GenerationStore(killed).ids() == [other, result.generation]
