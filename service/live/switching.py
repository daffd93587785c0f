"""Which generation is served: the first one at the start, and every switch after it, without a failed request."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from polyrank.index_builder.errors import GenerationCorrupt, GenerationNotFound, StoreBusy
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.vectors.encoder import encode_texts
from polyrank.model.errors import RankingError, Shortage, shortage_in
from polyrank.model.inference.names import Runner
from polyrank.model.search.scan import faster
from polyrank.service.errors import NotReady
from polyrank.service.live.serving import Opener, Serving
from polyrank.service.live.taking_over import TakingOver
from polyrank.service.observe.metrics import Metrics

# What CURRENT named, and its stamp, which changes when the same id is activated again.
_Seen = tuple[str, tuple[int, int] | None]

log = logging.getLogger(__name__)


class Live(TakingOver[Serving]):
    """Holds what is served, and replaces it as a whole.

    `current` may be read from any thread; a request uses what it read until its end. The methods that load or take over
    read files and load models: call them beside the event loop. They wait for each other.

    Attributes:
        current: what is served; None: no generation could be loaded yet.
        beside: what is loaded beside it (trial.py); None: nothing.
        refused, passing: see `TakingOver`.
    """

    def __init__(
        self,
        store: GenerationStore,
        opener: Opener,
        metrics: Metrics,
        reranks_by_words: bool = False,
        has_pool: bool = True,
    ) -> None:
        """Hold nothing yet.

        `reranks_by_words` says that a reranker counts words as the generations hold them. Without `has_pool` there
        will never be a generation.
        """
        super().__init__("generation", store.ids, metrics)
        self._has_pool = has_pool
        self.beside: Serving | None = None
        self._reranks_by_words = reranks_by_words
        self._store, self._opener = store, opener
        self._switching = threading.Lock()
        self._seen: _Seen | None = None  # CURRENT when it was last followed

    def require(self) -> Serving:
        """Return what is served.

        Raises:
            NotReady: nothing is; the message says why.
        """
        current = self.current
        if current is None:
            raise NotReady(self.reason())
        return current

    def reason(self) -> str:
        """Return why nothing is served."""
        if not self._has_pool:
            return "this server has no store; start it with --store to rank a pool"
        if self.refused:
            refused = "; ".join(f"{generation}: {why}" for generation, why in sorted(self.refused.items()))
            return f"no generation can be served: {refused}"
        if self._store.ids():
            return "no generation is active; run polyrank store activate, or POST /index/activate"
        return "the store holds no generation; run polyrank build, or POST /index"

    def with_model(self, fingerprint: str) -> Serving | None:
        """Return what is loaded and has the model; None: nothing has."""
        loaded = (each for each in (self.current, self.beside) if each is not None)
        return next((each for each in loaded if each.ranker.fingerprint == fingerprint), None)

    def start(self) -> None:
        """Serve the active generation; if it is refused, one that may stand in for it; else log why none is served."""
        with self._switching:
            self._seen = self._look()
            for generation in self._store.serving_order():
                try:
                    self._serve(self.load(generation))
                    return
                except RankingError as error:
                    self._refuse(generation, error)
                    if isinstance(error, Shortage):
                        self._seen = None  # so that `follow` tries again
            if self._has_pool:
                log.warning("not ready", extra={"fields": {"why": self.reason()}})

    def follow(self) -> None:
        """Switch to what CURRENT names, if another process wrote it; if that is refused, the old one stays served.

        Raises:
            Shortage, OSError: it could not be tried now; the next call tries again.
        """
        with self._switching:
            seen = self._look()
            if seen is not None and seen != self._seen:
                named, _ = seen
                if self.current is None or self.current.generation.id != named:
                    try:
                        self._serve(self.load(named))
                    except RankingError as error:
                        self._metrics.count_switch("refused")
                        self._refuse(named, error)
                        if isinstance(error, Shortage):
                            raise
                self._seen = seen  # only now: after an error that is no refusal it is tried again
            self._scan_faster()

    def _scan_faster(self) -> None:
        """Take up a scan that a timing had refused, once another timing does not."""
        if (serving := self.current) is None:
            return
        scan = faster(serving.scan, serving.vectors.matrix())
        if scan is not serving.scan:
            with self._replacing:  # another thread may have taken over updates meanwhile
                self.current = replace(self.current or serving, scan=scan)
                self._show_snapshot(self.current)

    def activate(self, generation: str) -> Serving:
        """Switch to a generation. It is loaded first, so one that cannot be served never becomes the active one.

        Raises:
            GenerationNotFound, GenerationCorrupt, FingerprintMismatch, ModelError, Shortage: nothing changed. Only if
                its updates could not be read once it was active, it stays active, and `follow` tries again.
        """
        with self._switching, self._switch_counted(generation):
            loaded = self.load(generation)
            self._store.make_active(loaded.generation.manifest, partial(encode_texts, loaded.ranker))
            return self._serve_active(loaded)

    def rollback(self) -> Serving:
        """Switch back to the generation that was active before.

        Raises:
            GenerationNotFound: there is none.
            GenerationCorrupt, FingerprintMismatch, ModelError, Shortage: it cannot be served; likewise.
        """
        with self._switching:
            while True:  # until no other process is faster
                history = self._store.history()
                if not history:
                    raise GenerationNotFound("no generation was active before this one")
                with self._switch_counted(history[-1]):
                    loaded = self.load(history[-1])
                    if self._store.go_back(loaded.generation.manifest):
                        return self._serve_active(loaded)

    def _serve_active(self, loaded: Serving) -> Serving:
        """Serve what this process has just made the active generation."""
        seen = loaded.generation.id, self._store.stamp()
        serving = self._serve(loaded)
        self._seen = seen  # only now: what is active and not served is tried again
        return serving

    @contextmanager
    def _switch_counted(self, generation: str) -> Iterator[None]:
        try:
            yield
        except (GenerationNotFound, StoreBusy):  # neither is the generation's fault
            raise
        except RankingError as error:
            self._metrics.count_switch("refused")
            if not isinstance(error, Shortage):  # the caller may try again
                self._refuse(generation, error)
            raise

    def _look(self) -> _Seen | None:
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

    def load(self, generation: str) -> Serving:
        """Open a generation and its model, beside what is served; what the system lacks at the moment is a Shortage.

        Raises:
            GenerationNotFound, GenerationCorrupt, FingerprintMismatch, ModelError, Shortage: it cannot be served.
        """
        try:
            opened = self._store.open(generation)
            try:
                previous = self.with_model(opened.manifest.model.fingerprint) or self.current
                return self._opener.serve(opened, self._store.updates.of(opened.manifest), previous)
            except BaseException:
                opened.close()
                raise
        except Exception as error:
            if shortage := shortage_in(error):
                raise shortage from error
            raise

    def _serve(self, loaded: Serving) -> Serving:
        with self._replacing:
            first = self.current is None
            self.current = serving = loaded.caught_up()  # with the updates written when it became the active one
        manifest, ranker = serving.generation.manifest, serving.ranker
        self._accept(manifest.id)
        fingerprint = ranker.fingerprint
        self._metrics.show_generation(manifest.id, fingerprint, manifest.format_version, serving.loaded_at)
        self._show_snapshot(serving)
        runner = Runner(ranker.backend, ranker.precision)
        self._metrics.show_model("ranker", manifest.model.name, ranker.architecture, fingerprint, runner)
        if not first:
            self._metrics.count_switch("ok")
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

    def _show_snapshot(self, serving: Serving) -> None:
        self._metrics.show_snapshot(serving.snapshot.revision, serving.snapshot.count, serving.snapshot.changes)
        status = serving.search_status
        self._metrics.show_scan(status.kind, status.fallback)
