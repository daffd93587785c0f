"""Which generation is served: the first one at the start, every switch after it, and the updates, without a failed
request."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeVar

from polyrank.index_builder.errors import FingerprintMismatch, GenerationCorrupt, GenerationNotFound, StoreBusy
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.vectors.encoder import encode_texts
from polyrank.model.errors import ModelError, RankingError, Shortage, shortage_in
from polyrank.model.inference.runners import Runner
from polyrank.service.errors import NotReady
from polyrank.service.live.models import VectorScorer
from polyrank.service.live.searchable import SearchStatus
from polyrank.service.observe.metrics import Metrics

# What CURRENT named, and its stamp, which changes when the same id is activated again.
_Pointer = tuple[str, tuple[int, int] | None]

# Under which what is refused is counted.
_KINDS = {GenerationCorrupt: "corrupt", FingerprintMismatch: "fingerprint", ModelError: "model", Shortage: "shortage"}

log = logging.getLogger(__name__)


class ServedPool(Protocol):
    """What is served: a pool with its model, as requests hold it (service/ranking/parts.py)."""

    @property
    def generation(self) -> Any:
        """What it says of itself: its id, manifest and words."""

    @property
    def snapshot(self) -> Any:
        """At which revision it is, and how many candidates it has."""

    @property
    def ranker(self) -> VectorScorer:
        """The model."""

    @property
    def search_status(self) -> SearchStatus:
        """How candidates are found."""

    @property
    def loaded_at(self) -> float:
        """Seconds since the epoch."""

    def caught_up(self) -> Self:
        """Return it with the updates written since; raises GenerationCorrupt where the log is damaged."""


S = TypeVar("S", bound=ServedPool)


class Holder(Protocol[S]):
    """Holds generations ready to be searched: here (ranking/here.py), or on shards (scale/shard_holder.py)."""

    in_use: Callable[[], list[S]]  # what requests may begin with; set by `Live`

    def load(self, generation: str) -> S:
        """Open a generation and its model beside what is served; nothing is held of it after an error.

        Raises GenerationNotFound, GenerationCorrupt, FingerprintMismatch, ModelError or Shortage where it cannot serve.
        """

    def let_go(self, generation: str) -> None:
        """Drop what was loaded and is not going to be served."""

    def replaced(self, before: S) -> None:
        """Drop what is served no more once no request can need it."""

    def sped_up(self, serving: S) -> Callable[[S], S] | None:
        """Return what takes up a faster search in a later state of what is served; None: there is none."""

    def has_model(self, fingerprint: str) -> bool:
        """Whether the model is in memory."""

    def bytes_of(self, manifest: Manifest) -> int:
        """Return about how much memory of this machine a generation takes without its model."""


class Live(Generic[S]):
    """Holds what is served, and replaces it as a whole.

    `current` may be read from any thread; a request uses what it read until its end. The methods that load or take over
    read files and load models: call them beside the event loop. They wait for each other.
    """

    def __init__(
        self,
        store: GenerationStore,
        holder: Holder[S],
        metrics: Metrics,
        reranks_by_words: bool = False,
        absent: Callable[[], RankingError] | None = None,
    ) -> None:
        """Hold nothing yet; `reranks_by_words` says that a reranker counts words as the generations hold them.

        `absent`: what is raised where there will never be a generation, because there is no pool; None: there is one.
        """
        self.current: S | None = None  # what is served; None: no generation could be loaded yet
        self.beside: S | None = None  # what is loaded beside it (trial.py)
        self.refused: dict[str, str] = {}  # why something is not served, by id; "CURRENT" is the pointer itself
        self.passing: frozenset[str] = frozenset()  # of these, for what something was lacking: it is tried again
        self.holder = holder
        holder.in_use = lambda: [each for each in (self.current, self.beside) if each is not None]
        self._store, self._metrics = store, metrics
        self._reranks_by_words, self.absent = reranks_by_words, absent
        self._switching, self._replacing, self._refusing = threading.Lock(), threading.Lock(), threading.Lock()
        self._followed: _Pointer | None = None  # CURRENT when it was last followed
        self._unreadable: str | None = None  # whose log `take_over` could not read

    def require(self) -> S:
        """Return what is served. Raises NotReady if nothing is; the message says why."""
        current = self.current
        if current is None:
            raise NotReady(self.reason()) if self.absent is None else self.absent()
        return current

    def reason(self) -> str:
        """Return why nothing is served."""
        if self.refused:
            refused = "; ".join(f"{generation}: {why}" for generation, why in sorted(self.refused.items()))
            return f"no generation can be served: {refused}"
        if self._store.ids():
            return "no generation is active; run polyrank store activate, or POST /index/activate"
        return "the store holds no generation; run polyrank build, or POST /index"

    def start(self) -> None:
        """Serve the active generation; if it is refused, one that may stand in for it; else log why none is served."""
        with self._switching:
            self._followed = self._look()
            for generation in self._store.serving_order():
                try:
                    self._serve(self.load(generation))
                    return
                except (RankingError, OSError) as error:
                    refusal = error if isinstance(error, RankingError) else GenerationCorrupt(generation, str(error))
                    self._refuse(generation, refusal)
                    if isinstance(error, Shortage | OSError):
                        self._followed = None  # so that `follow_current` tries again
            if self.absent is None:
                log.warning("not ready", extra={"fields": {"why": self.reason()}})

    def follow_current(self) -> None:
        """Switch to what CURRENT names, if another process wrote it; if that is refused, the old one stays served.

        Raises Shortage or OSError if it could not be tried now; the next call tries again.
        """
        with self._switching:
            pointer = self._look()
            if pointer is not None and pointer != self._followed:
                generation, _ = pointer
                if self.current is None or self.current.generation.id != generation:
                    try:
                        self._serve(self.load(generation))
                    except RankingError as error:
                        self._metrics.series(self._metrics.switches, "refused").inc()
                        self._refuse(generation, error)
                        if isinstance(error, Shortage):
                            raise
                self._followed = pointer  # only now: after an error that is no refusal it is tried again
            serving = self.current
            if serving is not None and (take_up := self.holder.sped_up(serving)) is not None:
                with self._replacing:  # another thread may have taken over updates meanwhile
                    self.current = take_up(self.current or serving)
                    self._show_snapshot(self.current)

    def activate(self, generation: str) -> S:
        """Switch to a generation. It is loaded first, so one that cannot be served never becomes the active one.

        Raises:
            GenerationNotFound, GenerationCorrupt, FingerprintMismatch, ModelError, Shortage: nothing changed. Only if
                its updates could not be read once it was active, it stays active, and `follow_current` tries again.
        """
        with self._switching, self._switch_counted(generation):
            loaded = self.load(generation)
            with self._let_go_on_failure(generation):
                self._store.make_active(loaded.generation.manifest, partial(encode_texts, loaded.ranker))
            return self._serve_active(loaded)

    def rollback(self) -> S:
        """Switch back to the generation that was active before. Raises GenerationNotFound if there is none."""
        with self._switching:
            while True:  # until no other process is faster
                history = self._store.history()
                if not history:
                    raise GenerationNotFound("no generation was active before this one")
                with self._switch_counted(history[-1]):
                    loaded = self.load(history[-1])
                    with self._let_go_on_failure(history[-1]):
                        encode = partial(encode_texts, loaded.ranker)
                        if self._store.go_back(loaded.generation.manifest, encode):
                            return self._serve_active(loaded)
                self.holder.let_go(history[-1])

    def _serve_active(self, loaded: S) -> S:
        pointer = loaded.generation.id, self._store.stamp()
        serving = self._serve(loaded)
        self._followed = pointer  # only now: what is active and not served is tried again
        return serving

    @contextmanager
    def _let_go_on_failure(self, generation: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.holder.let_go(generation)
            raise

    @contextmanager
    def _switch_counted(self, generation: str) -> Iterator[None]:
        try:
            yield
        except (GenerationNotFound, StoreBusy):  # neither is the generation's fault
            raise
        except RankingError as error:
            self._metrics.series(self._metrics.switches, "refused").inc()
            if not isinstance(error, Shortage):  # the caller may try again
                self._refuse(generation, error)
            raise

    def _look(self) -> _Pointer | None:
        """Read CURRENT; a damaged one is logged and counts as none."""
        try:
            stamp = self._store.stamp()  # first, so that a change after it is seen the next time
            generation = self._store.current()
        except GenerationCorrupt as error:
            if self.refused.get("CURRENT") != str(error):
                self._refuse("CURRENT", error)
            return None
        self._accept("CURRENT")
        return None if generation is None else (generation, stamp)

    def load(self, generation: str) -> S:
        """Do what `Holder.load` does; what the system lacks at the moment is a Shortage."""
        try:
            return self.holder.load(generation)
        except Exception as error:
            if shortage := shortage_in(error):
                raise shortage from error
            raise

    def _serve(self, loaded: S) -> S:
        before = self.current
        if before is not None and before.generation.id != loaded.generation.id:
            self.holder.replaced(before)  # first: those who look at what is held may look meanwhile
        with self._replacing:
            self.current = serving = loaded.caught_up()  # with the updates written when it became the active one
        manifest, ranker = serving.generation.manifest, serving.ranker
        self._accept(manifest.id)
        fingerprint = ranker.fingerprint
        self._metrics.show_generation(manifest.id, fingerprint, manifest.format_version, serving.loaded_at)
        self._show_snapshot(serving)
        runner = Runner(ranker.backend, ranker.precision)
        self._metrics.show_model("ranker", manifest.model.name, ranker.architecture, fingerprint, runner)
        if before is not None:
            self._metrics.series(self._metrics.switches, "ok").inc()
        fields = {"generation": manifest.id, "candidates": serving.snapshot.count, "index": manifest.index.kind}
        fields |= {"scan": serving.search_status.kind, "scan_because": serving.search_status.why}
        log.info("serving", extra={"fields": fields})
        if self._reranks_by_words and serving.generation.words is None:
            why = {"generation": manifest.id, "why": "its model counts no words, so it holds none"}
            log.warning("the reranker's words do not count", extra={"fields": why})
        if ranker.precision != manifest.precision:
            both = {"generation": manifest.id, "serves": ranker.precision, "encoded_the_pool": manifest.precision}
            log.info("the model serves in another precision than encoded the pool", extra={"fields": both})
        return serving

    # Updates.

    def take_over(self) -> None:
        """Take over the updates that others wrote, without waiting for a switch. Logs damage once."""
        try:
            serving = self.refresh()
        except GenerationCorrupt as error:
            if error.generation not in self.refused:
                self._refuse(error.generation, error)
                self._unreadable = error.generation
            return
        if serving is not None and serving.generation.id == self._unreadable:
            self._accept(serving.generation.id)
            self._unreadable = None

    def refresh(self) -> S | None:
        """Take over the updates written since; returns what is served now.

        Raises GenerationCorrupt if the update log is damaged; what was served stays served.
        """
        with self._replacing:
            if self.current is not None:
                try:
                    self.current = self.current.caught_up()
                except GenerationCorrupt:
                    # After a switch elsewhere it may have been removed: the switch here comes next.
                    if self.current.generation.id in self._store.ids():
                        raise
                self._show_snapshot(self.current)
            return self.current

    def _show_snapshot(self, serving: S) -> None:
        self._metrics.show_snapshot(serving.snapshot.revision, serving.snapshot.count, serving.snapshot.changes)
        status = serving.search_status
        self._metrics.show_scan(status.kind, status.fallback)

    # What is refused.

    def why_not(self, generation: str | None) -> tuple[str | None, bool]:
        """Return why something is not served, None if it is not refused, and whether it is tried again."""
        with self._refusing:  # both of the same moment
            return self.refused.get(generation or ""), generation in self.passing

    def _accept(self, generation: str) -> None:
        with self._refusing:
            self.refused = {each: why for each, why in self.refused.items() if each != generation}
            self.passing -= {generation}

    def _refuse(self, generation: str, error: RankingError) -> None:
        """Note, count and, unless that was just said, log why something is not served, or not yet."""
        passes, fields = isinstance(error, Shortage), {"generation": generation, "why": str(error)}
        if self.refused.get(generation) != str(error):
            level, what = (logging.WARNING, "is not served yet") if passes else (logging.ERROR, "refused")
            log.log(level, f"generation {what}", extra={"fields": fields})
        with self._refusing:
            self.refused = {**self.refused, generation: str(error)}
            self.passing = self.passing | {generation} if passes else self.passing - {generation}
        kind = next((kind for type_, kind in _KINDS.items() if isinstance(error, type_)), "other")
        self._metrics.series(self._metrics.verify_failures, kind).inc()
