"""What builds leave that did not end: found, removed, or taken over by the next one.

A build that fails or is cancelled removes its temporary directory and its journal itself. One that is killed cannot:
where its journal tells of finished shards it can be resumed. The caller of every function is the builder (`building`).
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from polyrank.index_builder.errors import StoreUnavailable
from polyrank.index_builder.store.generation import TEMPORARY_PREFIX
from polyrank.index_builder.store.journal import Shard, journal_of, journals, read_journal
from polyrank.index_builder.vectors.local import MATRIX_FILE

# Time to notice that a build was killed, and to start it again, before its shards are collected.
RESUMABLE_FOR = timedelta(hours=24)

Forget = Callable[[str], None]


def forget_nothing(_generation: str) -> None:
    """No other system holds a copy."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a killed build has left that can be resumed; on another host it may only have been taken for dead.

    Attributes:
        temporary: its directory.
        forget: see `discard`.
    """

    temporary: Path
    forget: Forget

    @property
    def matrix(self) -> Path:
        """The file of its vectors, which another writer may still add to: to be copied, never moved."""
        return self.temporary / MATRIX_FILE

    @property
    def is_recent(self) -> bool:
        """Whether it has written to its journal so lately that it may well be started again."""
        return time.time() - journal_of(self.temporary).stat().st_mtime < RESUMABLE_FOR.total_seconds()

    def journal(self) -> tuple[int, list[Shard]]:
        """See `read_journal`."""
        return read_journal(journal_of(self.temporary))

    def discard(self) -> None:
        """Remove it."""
        discard(self.temporary, self.forget)


def resumable(generations: Path, forget: Forget = forget_nothing) -> Leftover | None:
    """The newest temporary directory of a killed build that has finished shards."""
    found = [each for each in journals(generations) if (each / MATRIX_FILE).exists()]
    return Leftover(max(found), forget) if found else None


def discard(temporary: Path, forget: Forget = forget_nothing) -> None:
    """Remove what a build has left.

    Args:
        temporary: its directory.
        forget: removes what other systems hold of the generation. While it cannot, an empty directory stays as a
            reminder for the next collection.
    """
    journal_of(temporary).unlink(missing_ok=True)  # first: from here on nobody can take it over
    for each in temporary.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    try:
        forget(temporary.name.removeprefix(TEMPORARY_PREFIX))
    except StoreUnavailable:
        return
    temporary.rmdir()


def discard_all(generations: Path, forget: Forget = forget_nothing, spare: Leftover | None = None) -> None:
    """Remove what every killed build has left but one."""
    kept = spare.temporary if spare else None
    for each in generations.glob(f"{TEMPORARY_PREFIX}*"):
        if each != kept:
            discard(each, forget)
    for temporary, journal in journals(generations).items():
        if temporary != kept:  # published, and killed before it could remove its journal
            journal.unlink()
