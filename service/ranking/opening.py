"""Serving a pool that is one part in this process."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from polyrank.index_builder.generation.generation import INDEX_FILE, Generation
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.index_builder.store.update_log import UpdateLog
from polyrank.model.search.scan import faster
from polyrank.service.live.models import LateScorer
from polyrank.service.live.serving import Opener
from polyrank.service.ranking.local_part import LocalPart
from polyrank.service.ranking.parts import Facts, PoolSnapshot, Serving


def serve(opener: Opener, generation: Generation, log: UpdateLog, previous: LateScorer | None = None) -> Serving:
    """Return what is served of an open generation, of whose log nothing has been read; arguments as `Opener.open`.

    Raises:
        GenerationCorrupt: the update log is damaged.
        FingerprintMismatch, ModelError, Shortage: see `Opener.open`.
    """
    opened, manifest = opener.open(generation, previous), generation.manifest
    part = LocalPart(Snapshot.of(generation), opened.vectors, opened.scan)
    serving = Serving(
        version=manifest,
        generation=Facts(manifest.id, manifest, generation.words),
        snapshot=PoolSnapshot(manifest.revision, 0, (part.counts,)),
        parts=(part,),
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

    def load(self, generation: str, like: Callable[[str], LateScorer | None]) -> Serving:
        """See `Holder.load`."""
        opened = self._store.open(generation)
        try:
            log = self._store.updates.of(opened.manifest)
            return serve(self._opener, opened, log, like(opened.manifest.model.fingerprint))
        except BaseException:
            opened.close()
            raise

    def let_go(self, generation: str) -> None:
        """Do nothing."""

    def replaced(self, before: Serving) -> None:
        """Do nothing."""

    def sped_up(self, serving: Serving) -> Callable[[Serving], Serving] | None:
        """Return what takes up a scan that a timing had refused, once another timing does not."""
        only = serving.parts[0]
        assert isinstance(only, LocalPart), "`serve` makes no others"
        scan = faster(only.scan, only.vectors.matrix())
        if scan is only.scan:
            return None
        return lambda now: replace(now, parts=(replace(cast(LocalPart, now.parts[0]), scan=scan),))

    def bytes_of(self, manifest: Manifest) -> int:
        """Return the size of the FAISS index, or of the copy of the vectors in bytes that a scan reads.

        Matrix, texts and words are mapped files, which the system may drop.
        """
        index = manifest.files.get(INDEX_FILE)
        return manifest.count * manifest.dim if index is None else index.bytes
