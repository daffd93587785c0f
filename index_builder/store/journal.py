"""The journal of a build: which shards of the matrix are on the disk, and what they were made of.

It lies beside the build's temporary directory, as `.journal-<id>`, until the generation is published: a build that is
killed leaves both, and the next one takes over the shards that still fit. One JSON object a line: first the number of
builds that have worked on these shards, then a shard each. A shard is written down once its vectors are on the disk.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from polyrank.index_builder.store.generation import TEMPORARY_PREFIX
from polyrank.model.durable import sync_directory

_PREFIX = ".journal-"


@dataclass(frozen=True, slots=True)
class Shard:
    """A finished shard.

    Attributes:
        rows: how many.
        truncated: texts among them that were cut to the model's length.
        source: `source_digest` of what it was made of.
        content: `content_digest` of what was made.
    """

    rows: int
    truncated: int
    source: str
    content: str


def source_digest(model: str, backend: str, dtype: str, ids: Sequence[str], texts: Sequence[str]) -> str:
    """What the vectors of these rows depend on: the model's fingerprint and back-end, the store's dtype, ids, texts."""
    return sha256(orjson.dumps([model, backend, dtype, ids, texts])).hexdigest()


def content_digest(vectors: bytes | memoryview, truncated: int) -> str:
    """Of the vectors' bytes as the matrix holds them, and of what the manifest will tell."""
    digest = sha256(vectors)
    digest.update(str(truncated).encode())
    return digest.hexdigest()


def journal_of(temporary: Path) -> Path:
    """Where the journal is of the build in this temporary directory."""
    return temporary.with_name(_PREFIX + temporary.name.removeprefix(TEMPORARY_PREFIX))


def journals(generations: Path) -> dict[Path, Path]:
    """All journals, each by the temporary directory that it is of, which may be gone."""
    found = generations.glob(f"{_PREFIX}*")
    return {each.with_name(TEMPORARY_PREFIX + each.name.removeprefix(_PREFIX)): each for each in found}


def read_journal(path: Path) -> tuple[int, list[Shard]]:
    """The number of builds so far, and their shards up to the first line that is damaged or half-written."""
    attempts, shards = 0, []
    try:
        with path.open("rb") as file:
            attempts = int(orjson.loads(file.readline())["attempts"])
            for line in file:
                shards.append(_shard(**orjson.loads(line)))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return attempts, shards


def _shard(*, rows: int, truncated: int, source: str, content: str) -> Shard:
    return Shard(int(rows), int(truncated), str(source), str(content))


class Journal:
    """A journal to write to.

    Args:
        path: its file, made anew.
        attempts: the number of builds, this one too.
        shards: those taken over.
    """

    def __init__(self, path: Path, attempts: int = 1, shards: Iterable[Shard] = ()) -> None:
        self.attempts = attempts
        self._path = path
        self._write("xb", _line({"attempts": attempts}) + b"".join(_line(asdict(each)) for each in shards))
        sync_directory(path.parent)

    def append(self, shard: Shard) -> None:
        """Write a shard down, on the disk when this returns."""
        self._write("ab", _line(asdict(shard)))

    def _write(self, mode: str, content: bytes) -> None:
        with self._path.open(mode) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def _line(record: dict[str, Any]) -> bytes:
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
