"""Which generations of a store have a copy in Redis.

STORE/copies/<id> is an empty file. It is made before the copy and removed after it, so no copy is ever forgotten.
Keys alone do not say whose they are, because several stores may share a Redis.
"""

from pathlib import Path

from polyrank.index_builder.layout import TEMPORARY_PREFIX, is_time_id
from polyrank.index_builder.vectors.redis import drop_generation
from polyrank.model.durable import make_directory, sync_directory


class Copies:
    """The copies of a store's generations in one Redis; without a URL nothing is removed."""

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
