"""What a build keeps while it runs, and what it leaves behind when it is killed, here and in Redis.

    generations/.tmp-<id>/      the files of the generation being built
    generations/.journal-<id>   which chunks of its matrix are finished, and what they were made of

A build that fails or is cancelled removes both itself. If the process dies, both stay, and the next builder decides:

* A directory with a matrix and a journal can be resumed, and of several that with the most finished rows: while one
  build takes over what another has left, the later one may know less. The next build copies the chunks up to the first
  that is not its own, then removes all that was left. A chunk enters the journal only after its vectors are on the
  disk, so each chunk in it is complete.
* Anything else is removed. The journal goes first: a removal that dies halfway cannot be taken for a build to resume.
* A journal without a directory belongs to a generation that was published just before the process died.

The journal holds one JSON object a line: first the number of builds that have worked on these chunks, then one line for
each chunk. A line that is damaged or cut short ends it.

The caller of every function that removes something is the builder (`GenerationStore.building`).
"""

import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from polyrank.index_builder.errors import StoreUnavailable
from polyrank.index_builder.generation.manifest import PARTS
from polyrank.index_builder.layout import JOURNAL_PREFIX, TEMPORARY_PREFIX, entries, is_time_id, why_not_plain
from polyrank.index_builder.vectors.local import MATRIX_FILE
from polyrank.index_builder.vectors.redis import drop_generation
from polyrank.model.durable import make_directory, sync_directory
from polyrank.model.inputs import open_input
from polyrank.model.representations import Representations

# Time to notice that a build was killed, and to start it again, before a collection removes its chunks.
RESUMABLE_FOR = timedelta(hours=24)

# Called with a generation's id; removes what other systems hold of it.
Forget = Callable[[str], None]


def forget_nothing(_generation: str) -> None:
    """No other system holds a copy."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A finished chunk."""

    part: str  # where its part lies within the generation; "" for the only one
    rows: int
    truncated: int
    source: str  # `source_digest` of what it was made of
    content: str  # `content_digest` of what was made


def source_digest(model: str, runner: tuple[str, str], dtype: str, ids: Sequence[str], texts: Sequence[str]) -> str:
    """Digest what the vectors of rows depend on.

    `model` is its fingerprint, `runner` the back-end that runs it and how it rounds, `dtype` that of the matrix.
    """
    return sha256(orjson.dumps([model, runner, dtype, ids, texts])).hexdigest()


def content_digest(representations: Representations, truncated: int) -> str:
    """Digest what was made of a chunk's rows, as the files hold it, and its number of truncated texts."""
    digest = sha256(representations.first.data)
    if representations.late is not None and representations.counts is not None:
        digest.update(representations.late.data)
        digest.update(representations.counts.data)
    digest.update(str(truncated).encode())
    return digest.hexdigest()


def journal_of(temporary: Path) -> Path:
    """The path of the journal that belongs to a temporary directory."""
    return temporary.with_name(JOURNAL_PREFIX + temporary.name.removeprefix(TEMPORARY_PREFIX))


def read_journal(path: Path) -> tuple[int, list[Chunk]]:
    """Read the number of builds so far, and the chunks up to the first line that is damaged or cut short."""
    attempts, chunks = 0, []
    try:
        with open_input(path) as file:
            attempts = int(orjson.loads(file.readline())["attempts"])
            for line in file:
                chunks.append(_chunk(**orjson.loads(line)))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return attempts, chunks


def _chunk(*, part: str, rows: int, truncated: int, source: str, content: str) -> Chunk:
    return Chunk(str(part), int(rows), int(truncated), str(source), str(content))


class Journal:
    """The journal of a build that runs.

    `attempts`: the number of builds that have worked on the chunks, this one included.
    """

    def __init__(self, path: Path, attempts: int = 1, chunks: Iterable[Chunk] = ()) -> None:
        self._path = path
        self._write("xb", _line({"attempts": attempts}) + b"".join(_line(asdict(chunk)) for chunk in chunks))
        sync_directory(path.parent)

    def append(self, *chunks: Chunk) -> None:
        """Note finished chunks; the lines are on the disk when this returns."""
        self._write("ab", b"".join(_line(asdict(chunk)) for chunk in chunks))

    def _write(self, mode: str, content: bytes) -> None:
        with self._path.open(mode) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def _line(record: dict[str, Any]) -> bytes:
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


@dataclass(frozen=True, slots=True)
class Leftover:
    """A killed build that can be resumed. If it ran on another host, it may only seem dead."""

    temporary: Path
    forget: Forget

    def matrix(self, part: str) -> Path:
        """The file of a part's vectors. Copy it, never move it: a builder that only seemed dead may still write to it.

        The block of a second stage, if there is one, lies beside it.
        """
        return self.temporary / part / MATRIX_FILE

    def journal(self) -> tuple[int, list[Chunk]]:
        return read_journal(journal_of(self.temporary))

    def discard(self) -> None:
        discard(self.temporary, self.forget)


def resumable(generations: Path, forget: Forget, *, recent: bool = False) -> Leftover | None:
    """Find the killed build that has finished most rows, of equals the newest; it has a matrix and a journal.

    `recent`: only of those whose journal was last written less than `RESUMABLE_FOR` ago.
    """
    directories = [each for each in entries(generations).temporary if _has_chunks(each)]
    if recent:
        oldest = time.time() - RESUMABLE_FOR.total_seconds()
        directories = [each for each in directories if journal_of(each).stat().st_mtime > oldest]
    return Leftover(max(directories, key=_finished), forget) if directories else None


def _has_chunks(temporary: Path) -> bool:
    matrices = [temporary / MATRIX_FILE, *temporary.glob(f"{PARTS}/*/{MATRIX_FILE}")]
    return _is_file(journal_of(temporary)) and any(map(_is_file, matrices))


def _is_file(path: Path) -> bool:
    return path.exists() and why_not_plain(path, is_directory=False) is None


def _finished(temporary: Path) -> tuple[int, Path]:
    return sum(chunk.rows for chunk in read_journal(journal_of(temporary))[1]), temporary


def discard(temporary: Path, forget: Forget) -> None:
    """Remove a temporary directory and its journal, and forget the generation. Links in it are not followed.

    What lies in the journal's place and is no plain file is left alone: no build has made it.
    If `forget` raises StoreUnavailable, the empty directory stays, and the next collection tries again.
    """
    journal = journal_of(temporary)
    if why_not_plain(journal, is_directory=False) is None:
        journal.unlink(missing_ok=True)
    for entry in temporary.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    try:
        forget(temporary.name.removeprefix(TEMPORARY_PREFIX))
    except StoreUnavailable:
        return
    temporary.rmdir()


def discard_all(generations: Path, forget: Forget, spare: Leftover | None) -> None:
    """Remove every temporary directory and journal but one."""
    spare_directory = spare.temporary if spare else None
    for temporary in entries(generations).temporary:
        if temporary != spare_directory:
            discard(temporary, forget)
    for journal in entries(generations).journals:
        if spare_directory is None or journal != journal_of(spare_directory):
            journal.unlink()


class Copies:
    """The copies of a store's generations in one Redis; without a URL nothing is removed.

    STORE/copies/<id> is an empty file. It is made before the copy and removed after it, so no copy is ever forgotten.
    Keys alone do not say whose they are, because several stores may share a Redis.
    """

    def __init__(self, root: Path, url: str | None) -> None:
        self._directory, self._generations = root / "copies", root / "generations"
        self._url = url

    def note(self, generation: str) -> None:
        make_directory(self._directory)
        (self._directory / generation).touch()
        sync_directory(self._directory)

    def forget(self, generation: str) -> None:
        """Remove a generation's copy. Raises StoreUnavailable if Redis failed; the copy stays noted."""
        if self._url is not None:
            drop_generation(self._url, generation)
            (self._directory / generation).unlink(missing_ok=True)

    def forget_orphans(self) -> None:
        """Remove the copies of generations that are neither published nor being built, for the builder."""
        if self._url is None or not self._directory.is_dir():
            return
        for generation in sorted(path.name for path in self._directory.iterdir() if is_time_id(path.name)):
            # In the order in which a generation is renamed, so that it is not missed if that happens in between.
            places = f"{TEMPORARY_PREFIX}{generation}", generation
            if not any((self._generations / place).exists() for place in places):
                self.forget(generation)
