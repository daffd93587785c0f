"""What a server holds of a store that is updated, without HTTP; and updates of what is served, without a disk."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from service_fakes import load, only_part

from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.update_log import Update
from polyrank.index_builder.vectors.encoder import encode_texts
from polyrank.index_builder.vectors.local import rounded_all
from polyrank.service.caching.vectors import Caches
from polyrank.service.changes.updating import Acknowledged, Updating
from polyrank.service.live.searchable import Opener
from polyrank.service.live.switching import Live
from polyrank.service.live.trial import Trials
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking.here import Here
from polyrank.service.ranking.parts import PoolSnapshot, Serving
from polyrank.service.ranking.runtime import Runtime, RuntimeSettings
from polyrank.service.settings import Settings


def updated(serving: Serving, *upserts: Candidate, deletes: Sequence[str] = ()) -> Serving:
    """After an update that was written nowhere."""
    stored = rounded_all(
        encode_texts(serving.ranker, [each.text for each in upserts]), serving.generation.manifest.dtype
    )
    update = Update(serving.snapshot.revision + 1, upserts, stored, deletes)
    part = serving.parts[0].updated([update])
    changes = serving.snapshot.changes + len(upserts) + len(deletes)
    return replace(serving, snapshot=PoolSnapshot(update.revision, changes, (part.counts,)), parts=(part,))


class LiveStore:
    """A store, what is served of it, and the way to update it."""

    def __init__(self, root: Path, load: Callable[[str], Any] = load, redis_url: str | None = None) -> None:
        """Start; with a Redis all vectors come from it, and the matrix may be missing."""
        self.metrics = Metrics()
        self.store = GenerationStore(root, needs_matrix=redis_url is None)
        self._caches = None if redis_url is None else _vectors_in_redis(root, redis_url, self.metrics)
        opener = Opener(self.metrics.count_cache, self._caches, load)
        self.live = Live(self.store, Here(self.store, opener), self.metrics)
        self.live.start()
        self.trials = Trials(self.store, self.live, self.metrics)
        self.runtime = Runtime(RuntimeSettings(), self.metrics)
        self.updating = Updating(self.store, self.live, self.runtime, self.metrics)

    @property
    def serving(self) -> Serving:
        return self.live.require()

    def upsert(self, *candidates: Candidate) -> Acknowledged:
        return asyncio.run(self.updating.upsert(candidates))

    def delete(self, *ids: str) -> Acknowledged:
        return asyncio.run(self.updating.delete(ids))

    def texts(self) -> dict[str, str]:
        """What is served, by id, in order."""
        snapshot = only_part(self.serving).snapshot
        return {each.id: each.text for each in snapshot.candidates(snapshot.matching({}))}

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"polyrank_{name}", labels)

    def close(self) -> None:
        self.updating.close()
        self.runtime.close()
        self.live.current = self.live.beside = None
        if self._caches is not None:
            self._caches.close()


def _vectors_in_redis(root: Path, redis_url: str, metrics: Metrics) -> Caches:
    return Caches(Settings(store=root, redis_url=redis_url, vectors="redis", vector_cache_mb=0), metrics)
