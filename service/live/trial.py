"""A second generation beside the one that is served, on trial: requests may ask for it by name, to compare both.

The store names it (TRIAL), so every process that serves the store loads it, also after a restart. It answers as it was
built, with the updates that it had when it was last active. Nothing else changes: CURRENT, history and updates are
those of the live generation. When the trial becomes the live generation, it ends.
"""

import logging
from contextlib import suppress
from typing import Generic

from polyrank.index_builder.errors import GenerationNotFound
from polyrank.index_builder.generation.generation import MODEL_DIRECTORY
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.checkpoint.files import CONFIG_FILE, read_config
from polyrank.model.checkpoint.lookup import find_base_files
from polyrank.model.errors import InvalidInput, RankingError, Shortage
from polyrank.service import machine
from polyrank.service.errors import NoTrial
from polyrank.service.live.switching import Live, S
from polyrank.service.observe.metrics import Metrics

log = logging.getLogger(__name__)

_MIB = 2**20


class Trials(Generic[S]):
    """Holds the generation on trial. Its methods that load are for the thread that loads the live one, too.

    Attributes:
        bytes: about how much memory that takes.
        refused: why the generation that the store names is not loaded, by its id.
    """

    def __init__(self, store: GenerationStore, live: Live[S], metrics: Metrics) -> None:
        self.bytes = 0
        self.refused: dict[str, str] = {}
        self._store, self._live, self._metrics = store, live, metrics
        self._given_up: str | None = None  # refused for more than a shortage: not tried again

    @property
    def current(self) -> S | None:
        """What is on trial; None: nothing."""
        return self._live.beside

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
        self._hold(loaded, price)
        return loaded

    def end(self) -> None:
        """End the trial, here and for all who serve the store; nothing happens where there is none."""
        self._store.end_trial()
        self._hold(None, 0)

    def follow(self) -> None:
        """Load what the store names, or drop what it names no more.

        Raises:
            Shortage, OSError: it could not be tried now; the next call tries again.
        """
        trial = self._store.trial()
        if trial is None:
            self._hold(None, 0)
            return
        named = trial.generation
        if named == self._given_up or (self.current is not None and named == self.current.generation.id):
            return
        try:
            self._hold(*self._loaded(named))
        except GenerationNotFound:
            self._hold(None, 0)
        except RankingError as error:
            self._hold(None, 0)
            self.refused = {named: str(error)}
            if isinstance(error, Shortage):
                raise
            self._given_up = named
            log.error("trial refused", extra={"fields": {"generation": named, "why": str(error)}})

    def follow_if_possible(self) -> None:
        """Do what `follow` does; where it cannot be tried now, that is left to the next call."""
        with suppress(Shortage, OSError):
            self.follow()

    def _loaded(self, generation: str) -> tuple[S, int]:
        manifest = self._store.manifest(generation)
        price, free = self._price(manifest), machine.available_bytes()
        if price > free:
            needed, left = price // _MIB, int(free) // _MIB
            raise Shortage(f"a trial of {generation} takes about {needed} MiB of memory, and {left} MiB are free")
        return self._live.load(generation), price

    def _price(self, manifest: Manifest) -> int:
        """Estimate the bytes of memory that a generation takes beside the live one.

        These are what is held of its parts here, and its model's weights unless that model is loaded.
        """
        price = self._live.holder.bytes_of(manifest)
        if not self._live.holder.has_model(manifest.model.fingerprint):
            price += self._weight_bytes(manifest)
        return price

    def _weight_bytes(self, manifest: Manifest) -> int:
        own = sum(entry.bytes for name, entry in manifest.files.items() if name.startswith(f"{MODEL_DIRECTORY}/"))
        path = self._store.model_directory(manifest.id) / CONFIG_FILE
        config = read_config(path) if path.is_file() else None
        if config is None or not config.has_network or config.weights == "full":
            return own
        weights = find_base_files(config.base_name) / "model.safetensors"
        return own + weights.stat().st_size * (1 if config.shared_encoder else 2)

    def _hold(self, loaded: S | None, price: int) -> None:
        held = self.current
        if held is not None:
            self._live.holder.replaced(held)
        self._live.beside, self.bytes, self.refused, self._given_up = loaded, price, {}, None
        if loaded is not None:
            manifest = loaded.generation.manifest
            self._metrics.show_trial((manifest.id, manifest.model.fingerprint, manifest.format_version))
            log.info("on trial", extra={"fields": {"generation": manifest.id, "bytes": price}})
        elif held is not None:
            self._metrics.show_trial(None)
            log.info("the trial has ended", extra={"fields": {"generation": held.generation.id}})
