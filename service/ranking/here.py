"""A pool of parts in this process."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from polyrank.index_builder.generation.generation import INDEX_FILE, Generation
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.update_log import UpdateLog
from polyrank.model.search.scan import faster
from polyrank.service.live.searchable import Opener
from polyrank.service.ranking.parts import Facts, PoolSnapshot, Serving
from polyrank.service.ranking.retrieval import LocalPart


def serve(opener: Opener, parts: Sequence[Generation], log: UpdateLog) -> Serving:
    """Return what is served of the open parts of a generation, of whose log nothing has been read."""
    opened, first = opener.open(parts), parts[0]
    local = tuple(LocalPart(each.snapshot, each.vectors, each.scan) for each in opened.parts)
    manifest = first.whole
    serving = Serving(
        generation=Facts(manifest.id, manifest, first.words),
        snapshot=PoolSnapshot(manifest.revision, 0, tuple(part.counts for part in local)),
        parts=local,
        ranker=opened.ranker,
        log=log,
        texts=opened.texts,
        loaded_at=time.time(),
    )
    return serving.caught_up()


class Here:
    """Holds generations in this process; see `Holder`. What nobody holds any more goes by itself."""

    in_use: Callable[[], list[Serving]]

    def __init__(self, store: GenerationStore, opener: Opener) -> None:
        self._store, self._opener = store, opener

    def load(self, generation: str) -> Serving:
        parts = self._store.open_parts(generation)
        manifest = parts[0].manifest
        try:
            return serve(self._opener, parts, self._store.updates.of(manifest))
        except BaseException:
            for each in parts:
                each.close()
            raise

    def let_go(self, generation: str) -> None:
        """Do nothing."""

    def replaced(self, before: Serving) -> None:
        """Do nothing."""

    def sped_up(self, serving: Serving) -> Callable[[Serving], Serving] | None:
        """Return what takes up scans that a timing had refused, once another timing does not."""
        local = [cast(LocalPart, part) for part in serving.parts]  # `serve` makes no others
        scans = [faster(part.scan, part.vectors.matrix()) for part in local]
        if all(scan is part.scan for scan, part in zip(scans, local, strict=True)):
            return None

        def taken_up(now: Serving) -> Serving:
            pairs = zip(now.parts, scans, strict=True)
            return replace(now, parts=tuple(replace(cast(LocalPart, part), scan=scan) for part, scan in pairs))

        return taken_up

    def has_model(self, fingerprint: str) -> bool:
        return self._opener.has_model(fingerprint)

    def bytes_of(self, manifest: Manifest) -> int:
        """Return the size of the FAISS indexes, and of the copies of the vectors in bytes that scans read.

        Matrix, texts and words are mapped files, which the system may drop.
        """
        indexes = sum(entry.bytes for name, entry in manifest.files.items() if name.endswith(INDEX_FILE))
        scanned = sum(part.count for part in manifest.parts if part.index.factory is None)
        return indexes + scanned * manifest.dim
