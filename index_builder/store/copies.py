"""The copies of a store's generations in Redis, and what becomes of them.

STORE/copies/<id> is an empty file that tells of a copy until that is removed: several stores may share a Redis, so
keys alone do not say whose they are.
"""

from contextlib import suppress
from datetime import datetime
from pathlib import Path

from polyrank.index_builder.errors import BuildBusy
from polyrank.index_builder.store.generation import TEMPORARY_PREFIX
from polyrank.index_builder.store.generations import GenerationStore
from polyrank.index_builder.store.pointer import is_generation_id
from polyrank.index_builder.vectors.redis import drop_generation
from polyrank.model.durable import make_directory, sync_directory


class Copies:
    """The copies in one Redis; without a URL there are none to make or remove."""

    def __init__(self, root: Path, url: str | None) -> None:
        self._directory, self._generations = root / "copies", root / "generations"
        self._url = url

    def note(self, generation: str) -> None:
        """Note that a copy will be made."""
        make_directory(self._directory)
        (self._directory / generation).touch()
        sync_directory(self._directory)

    def forget(self, generation: str) -> None:
        """Remove a generation's copy.

        Raises:
            StoreUnavailable: Redis failed; the copy stays noted.
        """
        if self._url is not None:
            drop_generation(self._url, generation)
            (self._directory / generation).unlink(missing_ok=True)

    def orphans(self) -> list[str]:
        """Generations with a copy that are neither published nor being built; the caller is the builder."""
        if not self._directory.is_dir():
            return []
        noted = sorted(path.name for path in self._directory.iterdir() if is_generation_id(path.name))
        return [each for each in noted if not any((self._generations / name).exists() for name in _names(each))]


def _names(generation: str) -> tuple[str, str]:
    """Where it may lie, in the order in which it moves."""
    return f"{TEMPORARY_PREFIX}{generation}", generation


def discard_killed(store: GenerationStore, since: datetime, redis_url: str | None) -> None:
    """Remove what a build has left that was killed, and its copy.

    Args:
        store: built into.
        since: before the build began; what older builds have left is not touched.
        redis_url: the build's.

    Raises:
        BuildBusy: the next build has begun, which removes it.
        LeaseLost, StoreUnavailable: see `GenerationStore.building`; likewise.
    """
    with store.building(redis_url):
        store.discard_begun(since, Copies(store.root, redis_url).forget)


def collect(store: GenerationStore, keep: int, redis_url: str | None) -> list[str]:
    """Remove old generations with their copies, and copies that were left behind when there was no Redis to ask.

    Returns:
        the generations removed: see `GenerationStore.gc`.

    Raises:
        StoreUnavailable: Redis failed; the next collection goes on.
    """
    copies = Copies(store.root, redis_url)
    removed = store.gc(keep, copies.forget, redis_url)
    if redis_url is not None:
        # While somebody builds: the next time.
        with suppress(BuildBusy), store.building(redis_url):
            for each in copies.orphans():
                copies.forget(each)
    return removed
