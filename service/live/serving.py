"""One live unit: a generation, the model that made it and where its vectors come from.

It is never changed, only replaced as a whole.
"""

import gc
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import FingerprintMismatch
from polyrank.index_builder.store.generation import Generation
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.index_builder.store.update_log import UpdateLog
from polyrank.index_builder.vectors.encoder import encode_texts
from polyrank.model.errors import CheckpointInvalid, InvalidInput, ModelError
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.search.scan import Scan, prepare
from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.model.text.tokenizer import Token
from polyrank.service.caching.budget import Budget
from polyrank.service.caching.caches import Caches
from polyrank.service.caching.redis_tier import CountCache
from polyrank.service.caching.text_cache import TextCache
from polyrank.service.caching.vectors import Gathered, MatrixVectors, Vectors


class LateScorer(Protocol):
    """What ranking asks of a Bi- or Poly-encoder; see polyrank.LateRanker."""

    name: str
    architecture: str
    fingerprint: str
    dim: int
    max_input_tokens: int
    backend: str

    def tokenize_context(self, conversation: Conversation) -> tuple[list[int], Truncation]:
        """Token ids, and what did not fit."""

    def tokenize_candidates(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Token ids of each, and how many texts were cut."""

    def pieces(self, texts: Sequence[str], wrapped: bool) -> list[list[Token]]:
        """Tokens of each text, uncut."""

    def encode_contexts(self, contexts: Sequence[list[int]]) -> list[NDArray[np.float32]]:
        """Context vectors (M, D) of each, the score scale multiplied in."""

    def encode_candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """Candidate embeddings, (N, D)."""


class Loaded:
    """What is loaded once for a generation, and shared by its revisions.

    Attributes:
        log: the generation's updates; for one thread at a time.
        loaded_at: seconds since the epoch.
        texts: vectors of candidates that were sent as text before; None: they are always encoded.

    Args:
        device: where vectors are scanned.
    """

    def __init__(
        self,
        generation: Generation,
        ranker: LateScorer,
        vectors: Vectors,
        log: UpdateLog,
        texts: TextCache | None = None,
        device: str = "cpu",
    ) -> None:
        self.generation, self.ranker, self.vectors, self.log, self.texts = generation, ranker, vectors, log, texts
        self._device = device
        self.loaded_at = time.time()
        # The last request that holds this unit lets go of it, and with it of the generation's maps.
        weakref.finalize(self, generation.close).atexit = False

    @cached_property
    def scan(self) -> Scan:
        """All vectors built, ready to be scanned; prepared when first asked for, which takes a pass over them.

        Beside an index few requests need it: then it has no copy of them, but for one in the memory of a GPU.
        """
        return prepare(self.vectors.matrix(), self._device, with_bytes=self.generation.index is None)

    @property
    def scans_all(self) -> bool:
        """Whether every row is scanned where an index could be asked: there is none, or a GPU scans in less time."""
        return self.generation.index is None or self.scan.on_gpu


@dataclass(frozen=True, slots=True)
class Serving:
    """What a request is answered from, from its beginning to its end: a generation at a revision, and its model.

    Attributes:
        loaded: the generation, and what goes with it.
        snapshot: the generation at the revision.
        checksum: of the updates that are in it; 0 where there are none.
    """

    loaded: Loaded
    snapshot: Snapshot
    checksum: int = 0

    @property
    def generation(self) -> Generation:
        """As it was built."""
        return self.loaded.generation

    @property
    def ranker(self) -> LateScorer:
        """The model that made its vectors."""
        return self.loaded.ranker

    def caught_up(self) -> "Serving":
        """With the updates that were written since; for one thread at a time.

        Raises:
            GenerationCorrupt: the update log is damaged.
        """
        updates = list(self.loaded.log.read())
        try:
            if not updates:
                return self
            return replace(self, snapshot=self.snapshot.updated(updates), checksum=self.loaded.log.checksum)
        except BaseException:
            self.loaded.log.unread()
            raise

    def gather(self, rows: NDArray[np.int64], budget: Budget | None = None) -> Gathered:
        """Fetch the vectors of rows of the snapshot, in the order asked.

        Args:
            rows: (N,).
            budget: the request's, for Redis; None: one of its own.
        """
        found = self.loaded.vectors.gather(self.snapshot.split(rows)[1], budget or Budget())
        return found._replace(vectors=self.snapshot.merged(rows, found.vectors))


LoadRanker = Callable[[str], Any]


class Opener:
    """Makes live units of open generations.

    Args:
        count: told of each vector asked for.
        caches: where vectors may come from besides a generation's own matrix; None: from nowhere.
        load: loads a checkpoint directory.
        device: where vectors are scanned.
    """

    def __init__(
        self,
        count: CountCache,
        caches: Caches | None,
        load: LoadRanker,
        device: str = "cpu",
    ) -> None:
        self._count = count
        self._caches = caches
        self._load = load
        self._device = device

    def serve(self, generation: Generation, log: UpdateLog, previous: Serving | None = None) -> Serving:
        """Load what the generation needs; a model of the same fingerprint is shared with the previous unit.

        Args:
            generation: open.
            log: its updates, none of them read yet.
            previous: what is served now.

        Raises:
            FingerprintMismatch: the model in the generation is not the one that made its vectors.
            ModelError: it cannot be loaded, or does not run here.
            GenerationCorrupt: the update log is damaged.
        """
        ranker = self._ranker(generation, previous)
        if self._caches is None:
            loaded = Loaded(generation, ranker, MatrixVectors(generation, self._count), log, None, self._device)
        else:
            texts = self._caches.texts(generation.manifest, ranker.backend)
            vectors = self._caches.vectors(generation, partial(encode_texts, ranker))
            loaded = Loaded(generation, ranker, vectors, log, texts, self._device)
        serving = Serving(loaded, Snapshot.of(generation)).caught_up()
        try:
            _ = loaded.scan  # no request is to wait for it
            if ranker is not (previous and previous.ranker):
                _warm_up(ranker)
                if previous is not None:  # at the start the server does
                    # Loading leaves frames of errors and traced graphs behind, which would hold a model that has gone.
                    gc.collect()
        except Exception as error:  # of torch, OpenVINO or memory: a generation that is refused, not a server that ends
            why = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            raise ModelError(f"{generation.manifest.model.name} does not run here: {why[0]}") from error
        return serving

    def _ranker(self, generation: Generation, previous: Serving | None) -> LateScorer:
        wanted = generation.manifest.model.fingerprint
        if previous is not None and previous.ranker.fingerprint == wanted:
            return previous.ranker
        try:
            ranker: LateScorer = self._load(str(generation.model_directory))
        except InvalidInput as error:  # a back-end's words for a model that it cannot run
            raise ModelError(f"{generation.manifest.model.name} does not run here: {error}") from error
        if not ARCHITECTURES[ranker.architecture].retrieves:
            raise CheckpointInvalid(f"a {ranker.architecture}-encoder has no vectors to retrieve by")
        if ranker.fingerprint != wanted:
            raise FingerprintMismatch(wanted, ranker.fingerprint)
        return ranker


# Words a sequence and sequences a batch, as they come: a kernel's first call with a shape is the slow one.
_SHAPES = ((1, 1), (12, 1), (12, 8), (40, 8), (400, 1))


def _warm_up(ranker: LateScorer) -> None:
    for words, count in _SHAPES:
        text = "hello " * words
        ranker.encode_contexts([ranker.tokenize_context(Conversation.of(text))[0]] * count)
        ranker.encode_candidates(ranker.tokenize_candidates([text] * count)[0])
