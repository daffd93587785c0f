"""Holds generations on shards: prepares each part on its replicas, and drops what no request needs.

A switch has two phases (live/switching.py). Each replica prepares the next generation beside the one that is served; if
a part cannot be prepared on any replica, everything is dropped and CURRENT stays. Then CURRENT is changed, and this
process answers new requests from the new parts. Requests in progress end on the old ones, which are dropped when no
request can need them any more.

Shards hold nothing that is not in the store. One that was restarted is given what it is to hold (`look`).
"""

import threading
import time
from collections.abc import Callable

from polyrank.index_builder.errors import GenerationCorrupt
from polyrank.index_builder.generation.generation import check_beside_parts
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.generation.words import evidence_of, open_words
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.membership import Membership
from polyrank.model.errors import CheckpointInvalid, Shortage, shortage_in
from polyrank.service.live.searchable import Opener, SearchStatus
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking.parts import Facts, PoolSnapshot, Serving
from polyrank.service.scale.calls import LOST, SHORT, Holding
from polyrank.service.scale.remote_part import Calls, RemotePart
from polyrank.service.scale.replica_choice import ReplicaChoice
from polyrank.service.scale.replicas import Replicas

# A request of another process, or one that has just begun, may need the old parts for longer than the longest deadline.
SPARE_SECONDS = 5.0


class OnShards:
    """See `Holder`; the methods that load or look wait for shards.

    Args:
        replicas: of all parts; ended by `close`.
        longest_s: the longest deadline of a request.
    """

    in_use: Callable[[], list[Serving]]

    def __init__(
        self,
        store: GenerationStore,
        opener: Opener,
        replicas: Replicas,
        choice: ReplicaChoice,
        metrics: Metrics,
        longest_s: float,
    ) -> None:
        self._store, self._opener, self._replicas, self._choice = store, opener, replicas, choice
        self._metrics, self._longest_s = metrics, longest_s
        self._old: list[tuple[Manifest, float]] = []  # what is served no more, even removed, and when to drop it
        self._telling = threading.RLock()  # one thread at a time has replicas prepare and drop
        self._preparing: Manifest | None = None  # the last one that was prepared; requests may need it in a moment

    def load(self, generation: str) -> Serving:
        """Prepare a generation on its shards, and load its model; see `Holder.load`."""
        manifest = self._store.manifest(generation)
        self._store.check_updates(manifest)
        with self._telling:
            self._preparing = manifest
            try:
                return self._opened(manifest, self._prepared(manifest))
            except BaseException:
                self.let_go(generation)
                raise

    def _prepared(self, manifest: Manifest) -> dict[str, SearchStatus]:
        """Have the replicas of every part prepare it; one of each is enough. Returns how they search, by part."""
        replies = self._replicas.prepare(manifest)
        status = {}
        for part in manifest.parts:
            own = replies[part.name]
            good = [reply.value for reply in own if isinstance(reply.value, SearchStatus)]
            if not good:
                passing = [reply.error for reply in own if reply.kind in (LOST, SHORT)]
                if passing:
                    raise Shortage(f"part {part.name}: {passing[0]}")
                raise GenerationCorrupt(manifest.id, f"part {part.name}: {own[0].error}")
            self._metrics.show_ready(part.name, len(good))
            status[part.name] = good[0]
        return status

    def _opened(self, manifest: Manifest, status: dict[str, SearchStatus]) -> Serving:
        path, model, first = self._store.path(manifest.id), self._store.model_directory(manifest.id), manifest.parts[0]
        check_beside_parts(path, manifest)
        try:
            ranker = self._opener.ranker(manifest, model)
            evidence = evidence_of(model)
            words = open_words(path / manifest.directory(0), evidence, first.count) if evidence else None
        except (OSError, ValueError, CheckpointInvalid) as error:
            raise shortage_in(error) or GenerationCorrupt(manifest.id, f"part {first.name}: {error}") from error
        calls = [Calls(self._choice, Holding(manifest.id, part.name)) for part in manifest.parts]
        parts = tuple(
            RemotePart(part.slots, status[part.name], of_part, own, own.counts(), manifest.revision)
            for part, of_part, own in zip(manifest.parts, calls, self._members(manifest), strict=True)
        )
        serving = Serving(
            generation=Facts(manifest.id, manifest, words),
            snapshot=PoolSnapshot(manifest.revision, 0, tuple(part.counts for part in parts)),
            parts=parts,
            ranker=ranker,
            log=self._store.updates.of(manifest),
            texts=self._opener.texts(manifest, ranker),
            loaded_at=time.time(),
        )
        return serving.caught_up()

    def _members(self, manifest: Manifest) -> list[Membership]:
        path = self._store.path(manifest.id)
        try:
            return [
                Membership(path / manifest.directory(at), part.slots, part.count)
                for at, part in enumerate(manifest.parts)
            ]
        except (OSError, ValueError) as error:
            raise shortage_in(error) or GenerationCorrupt(manifest.id, f"the ids of its parts: {error}") from error

    def let_go(self, generation: str) -> None:
        """Drop a generation from all shards, unless requests may need it."""
        with self._telling:
            self._preparing = None
            self._drop_unneeded(generation)

    def replaced(self, before: Serving) -> None:
        drop_at = time.monotonic() + self._longest_s + SPARE_SECONDS
        self._old = [*self._old, (before.generation.manifest, drop_at)]

    def sped_up(self, serving: Serving) -> None:
        """Do nothing: shards see to it."""

    def has_model(self, fingerprint: str) -> bool:
        return self._opener.has_model(fingerprint)

    def bytes_of(self, manifest: Manifest) -> int:
        """Return 0: shards hold the parts."""
        return 0

    def look(self) -> None:
        """Give shards what they are to hold, and drop what no request needs; call it about once a second.

        While a generation is prepared, shards get what they lost as at other times, and nothing is dropped.
        """
        if self._telling.acquire(blocking=False):
            try:
                self._drop_old()
            finally:
                self._telling.release()
        holdings = [
            Holding(serving.generation.id, part.slots.name)
            for serving in reversed(self.in_use())
            for part in serving.parts
        ]
        self._replicas.look(holdings, lambda: self._needed().keys())

    def close(self) -> None:
        self._replicas.close()

    def _needed(self) -> dict[str, set[str]]:
        """The parts of what requests may need, by generation: what is served or was lately, and what is next."""
        preparing = self._preparing
        manifests = [*(old for old, _ in self._old), *([] if preparing is None else [preparing])]
        parts = {each.id: {part.name for part in each.parts} for each in manifests}
        return parts | {each.generation.id: {part.slots.name for part in each.parts} for each in self.in_use()}

    def _drop_old(self) -> None:
        if self._preparing is not None and self._preparing.id in {each.generation.id for each in self.in_use()}:
            self._preparing = None
        due = [each for each in self._old if time.monotonic() >= each[1]]
        self._old = [each for each in self._old if each not in due]
        for manifest, _ in due:
            self._drop_unneeded(manifest.id)

    def _drop_unneeded(self, generation: str) -> None:
        """Have all shards let go of a generation, and end those that hold no part any more."""
        needed = self._needed()
        if generation not in needed:
            self._replicas.drop(generation, set().union(*needed.values()))
