"""Which set is served: the first one at the start, and every switch after it, without a failed request.

A switch has two phases. Each replica prepares the new set beside the one that is served; if a part cannot be prepared
on any replica, everything is dropped and CURRENT stays. Then CURRENT is changed, and this process answers new requests
from the new set. Requests in progress end on the old one, which is dropped when no request can need it any more.

Shards hold nothing that is not in the store. One that was restarted is given what it is to hold (`look`).
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from polyrank.index_builder.errors import GenerationCorrupt, GenerationNotFound, StoreBusy
from polyrank.index_builder.generation.generation import MODEL_DIRECTORY
from polyrank.index_builder.generation.words import evidence_of, open_words
from polyrank.index_builder.scale.membership import Membership
from polyrank.index_builder.scale.sets import PartSet, SetStore
from polyrank.index_builder.vectors.encoder import encode_texts
from polyrank.model.errors import CheckpointInvalid, RankingError, Shortage, shortage_in
from polyrank.model.inference.names import Runner
from polyrank.service.errors import NotReady
from polyrank.service.live.serving import Opener, SearchStatus, runs_here
from polyrank.service.live.taking_over import TakingOver
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking.parts import SetFacts, SetServing, SetSnapshot
from polyrank.service.scale.calls import LOST, SHORT, Holding
from polyrank.service.scale.pool import Pool
from polyrank.service.scale.replicas import Replicas

# A request of another process, or one that has just begun, may need the old set for longer than the longest deadline.
SPARE_SECONDS = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Old:
    """A set that is served no more. The store may have removed it already."""

    made: PartSet
    drop_at: float


class SetLive(TakingOver[SetServing]):
    """Holds what is served, as `Live` does; the methods that load or look wait for shards: call them on a thread.

    Args:
        store: of the sets.
        opener: loads models.
        replicas: of all parts; ended by `close`.
        pool: asks them.
        metrics: shows what is served.
        longest_s: the longest deadline of a request.

    Attributes:
        current: what is served; None: no set could be loaded yet.
        refused, passing: see `TakingOver`.
    """

    def __init__(
        self,
        store: SetStore,
        opener: Opener,
        replicas: Replicas,
        pool: Pool,
        metrics: Metrics,
        longest_s: float,
    ) -> None:
        super().__init__("set", store.ids, metrics)
        self._store, self._opener, self._replicas = store, opener, replicas
        self._pool, self._longest_s = pool, longest_s
        self._old: list[_Old] = []
        self._preparing: PartSet | None = None  # the last one that was prepared; requests may need it in a moment
        self._switching = threading.Lock()
        self._seen: tuple[str, tuple[int, int] | None] | None = None

    def require(self) -> SetServing:
        """Return what is served; raises NotReady where nothing is."""
        current = self.current
        if current is None:
            raise NotReady(self.reason())
        return current

    def reason(self) -> str:
        """Return why nothing is served."""
        if self.refused:
            refused = "; ".join(f"{set_id}: {why}" for set_id, why in sorted(self.refused.items()))
            return f"no set can be served: {refused}"
        if self._store.ids():
            return "no set is active; run polyrank store activate, or POST /index/activate"
        return "the store holds no set; run polyrank build --shards"

    def start(self) -> None:
        """Serve the active set; if it is refused, one that was active before; else log why none is served."""
        with self._switching:
            self._seen = self._look_at_current()
            named = [] if self._seen is None else [self._seen[0]]
            for set_id in [*named, *reversed(self._store.history())]:
                try:
                    self._serve(self._loaded(set_id))
                    return
                except RankingError as error:
                    self._refuse(set_id, error)
                    if isinstance(error, Shortage):  # shards come and go
                        self._seen = None  # so that `follow` tries again
            log.warning("not ready", extra={"fields": {"why": self.reason()}})

    def follow(self) -> None:
        """Switch to what CURRENT names, if another process wrote it; if that is refused, the old one stays served.

        Raises:
            Shortage, OSError: it could not be tried now; the next call tries again.
        """
        with self._switching:
            seen = self._look_at_current()
            if seen is not None and seen != self._seen:
                named, _ = seen
                if self.current is None or self.current.made.id != named:
                    try:
                        self._serve(self._loaded(named))
                    except RankingError as error:
                        self._metrics.count_switch("refused")
                        self._refuse(named, error)
                        if isinstance(error, Shortage):
                            raise
                self._seen = seen  # only now: after an error that is no refusal it is tried again

    def activate(self, set_id: str) -> SetServing:
        """Switch to a set. Every part is prepared first, so one that cannot be served never becomes the active one.

        Raises:
            GenerationNotFound, GenerationCorrupt, FingerprintMismatch, ModelError, Shortage, StoreBusy: nothing has
                changed.
        """
        with self._switching, self._switch_counted(set_id):
            loaded = self._loaded(set_id)
            with self._dropped_on_failure(set_id):
                self._store.make_active(loaded.made, partial(encode_texts, loaded.ranker))
            return self._serve_active(loaded)

    def rollback(self) -> SetServing:
        """Switch back to the set that was active before; errors as `activate`."""
        with self._switching:
            while True:  # until no other process is faster
                history = self._store.history()
                if not history:
                    raise GenerationNotFound("no set was active before this one")
                with self._switch_counted(history[-1]):
                    loaded = self._loaded(history[-1])
                    with self._dropped_on_failure(history[-1]):
                        if self._store.go_back(loaded.made):
                            return self._serve_active(loaded)
                self._drop_unneeded(history[-1])

    def look(self) -> None:
        """Give shards what they are to hold, and drop what no request needs; call it about once a second.

        While a switch prepares, shards get what they lost as at other times, and nothing is dropped that it prepares.
        """
        if not self._switching.acquire(blocking=False):
            self._look_at_replicas()
            return
        try:
            self._preparing = None
            self._drop_old()
            self._look_at_replicas()
        finally:
            self._switching.release()

    def _look_at_replicas(self) -> None:
        current = self.current
        if current is not None:
            wanted = [Holding(current.made.id, part.name) for part in current.made.parts]
            self._replicas.look(wanted, lambda: self._needed().keys())

    def close(self) -> None:
        """End all shards."""
        with self._replacing:
            self.current = None
        self._replicas.close()

    # The way of a switch.

    def _loaded(self, set_id: str) -> SetServing:
        """Prepare a set on its shards, and load its model; nothing is held of it if that fails."""
        made = self._preparing = self._store.read(set_id)
        self._store.check_updates(made)
        with self._dropped_on_failure(set_id):
            status = self._prepared(made)
            return self._opened(made, status)

    def _prepared(self, made: PartSet) -> SearchStatus:
        """Have the replicas of every part prepare it; one of each is enough. Returns how they search."""
        replies = self._replicas.prepare(made)
        found: SearchStatus | None = None
        for part in made.parts:
            own = replies[part.name]
            good = [reply.value for reply in own if isinstance(reply.value, SearchStatus)]
            if not good:
                passing = [reply.error for reply in own if reply.kind in (LOST, SHORT)]
                if passing:
                    raise Shortage(f"part {part.name}: {passing[0]}")
                raise GenerationCorrupt(made.id, f"part {part.name}: {own[0].error}")
            self._metrics.show_set_ready(part.name, len(good))
            found = found or good[0]
        assert found is not None, "a set has parts"
        return found._replace(why=f"{len(made.parts)} parts are searched by shards; of each, {found.why}")

    def _opened(self, made: PartSet, status: SearchStatus) -> SetServing:
        first = made.parts[0]
        directory = self._store.part(first.slots).path(first.generation)
        manifest = self._store.described(made)
        before = None if self.current is None else self.current.ranker
        try:
            ranker = self._opener.ranker(manifest, directory / MODEL_DIRECTORY, before)
            with runs_here(manifest):
                self._opener.warm_up(ranker, before)
            evidence = evidence_of(directory / MODEL_DIRECTORY)
            words = open_words(directory, evidence, first.count) if evidence else None
        except (OSError, ValueError, CheckpointInvalid) as error:
            raise shortage_in(error) or GenerationCorrupt(made.id, f"part {first.name}: {error}") from error
        members = Membership(self._store, made)
        serving = SetServing(
            made=made,
            generation=SetFacts(made.id, manifest, words),
            snapshot=SetSnapshot(made.revision, 0, members.counts()),
            log=self._store.updates.of(made),
            members=members,
            ranker=ranker,
            parts=self._pool,
            texts=self._opener.texts(manifest, ranker),
            search_status=status,
            loaded_at=time.time(),
        )
        return serving.caught_up()

    def _serve(self, loaded: SetServing) -> SetServing:
        before = self.current
        if before is not None and before.made.id != loaded.made.id:  # first, because `look` may look meanwhile
            self._old.append(_Old(before.made, time.monotonic() + self._longest_s + SPARE_SECONDS))
        with self._replacing:
            self.current = loaded = loaded.caught_up()  # with the updates written when it became the active one
        self._old = [each for each in self._old if each.made.id != loaded.made.id]
        manifest, ranker = loaded.generation.manifest, loaded.ranker
        self._accept(loaded.made.id)
        self._metrics.show_generation(manifest.id, ranker.fingerprint, manifest.format_version, loaded.loaded_at)
        self._show_snapshot(loaded)
        self._metrics.show_scan(loaded.search_status.kind, loaded.search_status.fallback)
        runner = Runner(ranker.backend, ranker.precision)
        self._metrics.show_model("ranker", manifest.model.name, ranker.architecture, ranker.fingerprint, runner)
        if before is not None:
            self._metrics.count_switch("ok")
        fields = {"set": manifest.id, "candidates": loaded.snapshot.count, "parts": len(loaded.made.parts)}
        log.info("serving", extra={"fields": {**fields, "scan": loaded.search_status.kind}})
        return loaded

    def _show_snapshot(self, serving: SetServing) -> None:
        self._metrics.show_snapshot(serving.snapshot.revision, serving.snapshot.count, serving.snapshot.changes)

    def _serve_active(self, loaded: SetServing) -> SetServing:
        seen = loaded.made.id, self._store.stamp()
        self._serve(loaded)
        self._seen = seen
        return loaded

    @contextmanager
    def _dropped_on_failure(self, set_id: str) -> Iterator[None]:
        """Drop a set from all shards if the block fails, unless requests may need it."""
        try:
            yield
        except BaseException:
            self._drop_unneeded(set_id)
            raise

    def _drop_unneeded(self, set_id: str) -> None:
        self._preparing = None
        if set_id not in self._needed():
            self._drop(set_id)

    def _needed(self) -> dict[str, PartSet]:
        """The sets that requests may need, by id: the one that is served, those that were lately, and the next one."""
        current, preparing = self.current, self._preparing
        served = [] if current is None else [current.made]
        next_ = [] if preparing is None else [preparing]
        return {made.id: made for made in (*served, *(each.made for each in self._old), *next_)}

    def _drop_old(self) -> None:
        due = [each for each in self._old if time.monotonic() >= each.drop_at]
        self._old = [each for each in self._old if each not in due]
        for each in due:
            self._drop(each.made.id)

    def _drop(self, set_id: str) -> None:
        """Have all shards let go of a set, and end those that hold no part any more."""
        self._pool.forget(set_id)
        self._replicas.drop(set_id, {part.name for made in self._needed().values() for part in made.parts})

    # The pointer, and what is refused.

    def _look_at_current(self) -> tuple[str, tuple[int, int] | None] | None:
        """Read CURRENT; a damaged one is logged and counts as none."""
        stamp = self._store.stamp()  # first, so that a change after it is seen the next time
        try:
            named = self._store.current()
        except GenerationCorrupt as error:
            if self.refused.get("CURRENT") != str(error):
                self._refuse("CURRENT", error)
            return None
        self._accept("CURRENT")
        return None if named is None else (named, stamp)

    @contextmanager
    def _switch_counted(self, set_id: str) -> Iterator[None]:
        try:
            yield
        except (GenerationNotFound, StoreBusy):  # neither is the set's fault
            raise
        except RankingError as error:
            self._metrics.count_switch("refused")
            if not isinstance(error, Shortage):
                self._refuse(set_id, error)
            raise
