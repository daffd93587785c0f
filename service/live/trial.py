"""A second generation beside the one that is served, on trial: requests may ask for it by name, to compare both, and a
share of the conversations may be answered by it (canary.py).

The store names it (TRIAL), so every process that serves the store loads it, also after a restart. What the live
generation is given as updates, it is given, too, about a second later: one of the processes writes them to its log, all
read them from there. Nothing else changes: CURRENT and history stay. When the trial becomes the live generation, it
ends. Servers end it when nobody renews its lease, or when too many of its answers had to be replaced.
"""

import errno
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Generic

from polyrank.index_builder.errors import GenerationNotFound, StoreBusy
from polyrank.index_builder.generation.generation import MODEL_DIRECTORY
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.store import pointer
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.pointer import Trial
from polyrank.index_builder.store.switch import MissedUpdates
from polyrank.index_builder.vectors.encoder import encode_texts
from polyrank.model.checkpoint.files import CONFIG_FILE, read_config
from polyrank.model.checkpoint.lookup import find_base_files
from polyrank.model.errors import CheckpointInvalid, InvalidInput, RankingError, Shortage, shortage_in
from polyrank.service import machine
from polyrank.service.errors import NoTrial
from polyrank.service.live.canary import Canary
from polyrank.service.live.switching import Live, S
from polyrank.service.observe.metrics import Metrics

log = logging.getLogger(__name__)

_MIB = 2**20
# Updates are encoded for so long before they are written: a look takes about that long, and what is left comes next.
_ENCODE_SECONDS = 1.0


class Trials(Generic[S]):
    """Holds the generation on trial. Its methods that load are for the thread that loads the live one, too."""

    def __init__(self, store: GenerationStore, live: Live[S], metrics: Metrics, records: bool = False) -> None:
        """Hold nothing yet; `records` says that rankings are recorded: without that, no share is taken."""
        self.bytes = 0  # about how much memory it takes
        self.refused: dict[str, str] = {}  # why the generation that the store names is not loaded, by its id
        self._store, self._live, self._metrics, self._records = store, live, metrics, records
        self._given_up: str | None = None  # refused for more than a shortage, or withdrawn: not tried again
        self._canary: Canary | None = None  # of what is held
        self._seen: Trial | None = None  # as the store said last
        self._seen_at = 0.0  # for the first time so, on the monotonic clock
        self._missed: MissedUpdates | None = None  # by what is held
        self._replacing = threading.Lock()
        self._said: str | None = None  # of whose share the log has said that it is not taken

    @property
    def current(self) -> S | None:
        """What is on trial; None: nothing."""
        return self._live.beside

    @property
    def sharing(self) -> tuple[Canary, S] | None:
        """What answers a share of the conversations; None: nothing does now."""
        canary, current = self._canary, self.current
        if canary is None or current is None or not self._records or not canary.share:
            return None
        return canary, current

    @property
    def trial(self) -> Trial | None:
        """What is on trial, as the store said last; None: nothing."""
        return None if self._canary is None else self._canary.trial

    def require(self) -> S:
        """Return what is on trial; raises NoTrial."""
        current = self.current
        if current is None:
            why = "".join(f"; {generation} was refused: {reason}" for generation, reason in self.refused.items())
            raise NoTrial(f"begin a trial with POST /index/trial, or on the page with Try under Index{why}")
        return current

    def begin(self, generation: str) -> S:
        """Load a generation beside the live one, and let the others that serve the store do so, too.

        Raises:
            NotReady: nothing is served that it could be compared with.
            InvalidInput: it is the live one.
            Shortage: there is not enough memory.
            GenerationNotFound, GenerationCorrupt, FingerprintMismatch, ModelError: it cannot be served. After this and
                all other errors nothing has changed.
        """
        live = self._live.require()
        if generation == live.generation.id:
            raise InvalidInput(f"generation: {generation} is served; put another one on trial")
        loaded, price = self._loaded(generation)
        try:
            self._store.begin_trial(generation)
        except BaseException:
            self._live.holder.let_go(generation)
            raise
        self._hold(loaded, price, Trial(generation))
        return loaded

    def end(self) -> None:
        """End the trial, here and for all who serve the store; nothing happens where there is none."""
        self._store.end_trial()
        self._hold(None, 0)

    def follow_trial(self) -> None:
        """Load what the store names, or drop what it names no more, or what is over.

        Raises Shortage, StoreBusy or OSError if it could not be tried now; the next call tries again.
        """
        canary = self._canary
        try:
            trial = self._named()
            if trial is None:
                self._hold(None, 0)
            elif self._is_overdue(trial):
                self._hold(None, 0)  # first: it may be that the store cannot be written now
                with _may_be_read_only():
                    self._store.end_overdue_trial(trial)
            elif trial.generation == self._given_up:
                return
            elif canary is None or canary.trial.generation != trial.generation:
                self._take_on(trial)
            elif (why := canary.withdrawn) is not None:
                with _may_be_read_only():
                    self._store.withdraw_trial(trial.generation, why)
                log.error("the canary is withdrawn", extra={"fields": {"generation": trial.generation, "why": why}})
                self._give_up(trial.generation, why)
            else:
                canary.trial = trial
        finally:
            self._show_share()

    def _take_on(self, trial: Trial) -> None:
        try:
            self._hold(*self._loaded(trial.generation), trial)
        except GenerationNotFound:
            self._hold(None, 0)
        except RankingError as error:
            self._give_up(trial.generation, str(error))
            if isinstance(error, Shortage):
                self._given_up = None
                raise
            log.error("trial refused", extra={"fields": {"generation": trial.generation, "why": str(error)}})

    def _give_up(self, generation: str, why: str) -> None:
        self._hold(None, 0)
        self.refused, self._given_up = {generation: why}, generation

    def _named(self) -> Trial | None:
        """Return what the store names; where it cannot be read, what was seen last is over with its lease."""
        try:
            return self._store.trial()
        except (Shortage, OSError):
            if self._seen is not None and self._is_overdue(self._seen):
                self._hold(None, 0)
            raise

    def _is_overdue(self, trial: Trial) -> bool:
        """Whether nobody has renewed the lease of a trial in time."""
        now = time.monotonic()
        if trial != self._seen:
            self._seen, self._seen_at = trial, now
        return trial.renewed is not None and now >= self._seen_at + pointer.LEASE_SECONDS

    def _show_share(self) -> None:
        trial = self.trial
        self._metrics.show_canary(0.0 if trial is None else trial.share, self.sharing[0].share if self.sharing else 0.0)
        if trial is not None and trial.share and not self._records and self._said != trial.generation:
            self._said = trial.generation
            why = "feedback is off, so nobody could tell which generation is better; set it to ids or texts"
            fields = {"generation": trial.generation, "share": trial.share, "why": why}
            log.error("the trial's share is not taken", extra={"fields": fields})

    def try_to_follow_trial(self) -> None:
        """Do what `follow_trial` does; where it cannot be tried now, that is left to the next call."""
        with suppress(Shortage, OSError):
            self.follow_trial()

    def _loaded(self, generation: str) -> tuple[S, int]:
        manifest = self._store.manifest(generation)
        # What is held of its parts here, and its model's weights unless that model is loaded.
        price, free = self._live.holder.bytes_of(manifest), machine.available_bytes()
        if not self._live.holder.has_model(manifest.model.fingerprint):
            price += self._weight_bytes(manifest)
        if price > free:
            needed, left = price // _MIB, int(free) // _MIB
            raise Shortage(f"a trial of {generation} takes about {needed} MiB of memory, and {left} MiB are free")
        return self._live.load(generation), price

    def _weight_bytes(self, manifest: Manifest) -> int:
        own = sum(entry.bytes for name, entry in manifest.files.items() if name.startswith(f"{MODEL_DIRECTORY}/"))
        path = self._store.model_directory(manifest.id) / CONFIG_FILE
        try:
            config = read_config(path) if path.is_file() else None
        except CheckpointInvalid:  # who loads it says so
            config = None
        if config is None or not config.has_network or config.weights == "full":
            return own
        weights = find_base_files(config.base_name) / "model.safetensors"
        return own + weights.stat().st_size * (1 if config.shared_encoder else 2)

    # Updates.

    def receive(self) -> None:
        """Give what is on trial the updates that the live generation has; call it about once a second, on one thread.

        Raises Shortage, StoreBusy or OSError if it could not be tried now; the next call tries again.
        """
        held, canary, live = self.current, self._canary, self._live.current
        if held is None or canary is None or live is None or canary.withdrawn is not None:
            return
        if held.snapshot.revision < live.snapshot.revision:
            try:
                manifest = held.generation.manifest
                if self._missed is None or self._missed.generation != manifest.id:
                    self._missed = self._store.missed(manifest, partial(encode_texts, held.ranker))
                missed = self._missed
                with _may_be_read_only():
                    self._store.receive(held.generation.id, missed, _ENCODE_SECONDS)
                self._catch_up(held)
                if missed.missed():  # the rest comes next time, or is another's to write
                    return
            except (StoreBusy, OSError):
                raise
            except Exception as error:
                if shortage := shortage_in(error):
                    raise shortage from error
                canary.withdrawn = f"it cannot take the updates: {error}"
                return
        canary.fresh_at = time.monotonic()

    def _catch_up(self, held: S) -> None:
        """Take over what the log of what is held has."""
        caught_up = held.caught_up()
        with self._replacing:
            if self._live.beside is held:  # nobody has ended it meanwhile
                self._live.beside = caught_up

    # What is held.

    def _hold(self, loaded: S | None, price: int, trial: Trial | None = None) -> None:
        held = self.current
        if held is not None:
            self._live.holder.replaced(held)
        with self._replacing:
            self._live.beside = loaded
        self.bytes, self.refused, self._given_up = price, {}, None
        self._canary = None if trial is None else Canary(trial)
        if loaded is not None:
            manifest = loaded.generation.manifest
            self._metrics.show_trial((manifest.id, manifest.model.fingerprint, manifest.format_version))
            log.info("on trial", extra={"fields": {"generation": manifest.id, "bytes": price}})
        elif held is not None:
            self._missed = None
            self._metrics.show_trial(None)
            log.info("the trial has ended", extra={"fields": {"generation": held.generation.id}})


@contextmanager
def _may_be_read_only() -> Iterator[None]:
    """Let others do the block where this process may not write to the store."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
