"""What is searched, and the models that encode for it: loaded before a request needs them."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import FingerprintMismatch, GenerationCorrupt
from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.index_builder.vectors.encoder import encode_texts
from polyrank.index_builder.vectors.local import DTYPES
from polyrank.model.errors import CheckpointInvalid, InvalidInput, ModelError, shortage_in
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.representations import Representations
from polyrank.model.search.scan import Scan, prepare
from polyrank.model.telling import telling
from polyrank.service.caching.redis_server import Budget
from polyrank.service.caching.vector_cache import CountCache, TextCache
from polyrank.service.caching.vectors import Caches, CandidateVectors, Gathered, Largest, MatrixVectors, largest_of
from polyrank.service.live.models import LoadRanker, VectorScorer, warm_up_ranker
from polyrank.service.observe.labels import Searched


class SearchStatus(NamedTuple):
    """How the candidates of a request are found, unless it says otherwise.

    `fallback`: whether a faster search was asked for or usual on this machine, and failed.
    """

    kind: Searched
    why: str
    fallback: bool


@dataclass(frozen=True, slots=True)
class Searchable:
    """What is searched: a part of a generation at a revision, without the model, which encodes the context elsewhere.

    `scan`: over those vectors. Beside an index few requests scan, so it keeps no copy of them in the CPU's memory.
    """

    snapshot: Snapshot
    vectors: CandidateVectors
    scan: Scan

    @property
    def generation(self) -> Generation:
        """The part as it was built."""
        return self.snapshot.generation

    @property
    def nothing(self) -> Representations:
        """What is stored of no candidates."""
        return nothing_of(self.generation.manifest)

    @property
    def scans_all(self) -> bool:
        """Whether every row is scanned: the generation has no index, or a GPU scans, which is faster than any index."""
        return self.generation.index is None or self.scan.status.kind == "gpu"

    @property
    def search_status(self) -> SearchStatus:
        """How candidates are found now: a GPU that fails gives way to the CPU."""
        scan, index = self.scan.status, self.generation.manifest.index
        if self.scans_all:
            return SearchStatus(scan.kind, scan.why, scan.is_fallback)
        why = f"the generation was built with an index of the kind {index.kind}"
        return SearchStatus("index", f"{why}; {scan.why}" if scan.is_fallback else why, scan.is_fallback)

    @property
    def longest(self) -> float:
        """The length of the longest vector, of those added by updates as well."""
        return max(self.scan.longest, self.snapshot.longest_added)

    def gather(self, rows: NDArray[np.int64], budget: Budget, *, first_only: bool = False) -> Gathered:
        """Fetch what is stored of rows (N,) of the snapshot, in the order asked.

        `first_only`: the vectors alone. Also returns whether the caches answered.
        """
        own, available = self.vectors.gather(self.snapshot.split(rows)[1], budget, first_only=first_only)
        return self.snapshot.merged(rows, own), available


def nothing_of(manifest: Manifest) -> Representations:
    """Return what a generation stores of no candidates."""
    none, dtype = Representations.none(manifest.dim, manifest.late), DTYPES[manifest.dtype]
    late = None if none.late is None else none.late.astype(dtype)
    return Representations(none.first.astype(dtype), late, none.counts)


class Opened(NamedTuple):
    """What a generation is served with: its model, a cache of texts, and what is searched of each part."""

    ranker: VectorScorer
    texts: TextCache | None
    parts: tuple[Searchable, ...]


class Opener:
    """Makes what is served of open generations, of one pool or several; threads may share it.

    Without caches all vectors come from the generation's own matrix. They are scanned on `device`. `warm_up` does once
    with a new model what no request shall wait for. A model is in memory once, whoever uses it.
    """

    def __init__(
        self,
        count: CountCache,
        caches: Caches | None,
        load: LoadRanker,
        device: str = "cpu",
        warm_up: Callable[[VectorScorer], None] = warm_up_ranker,
    ) -> None:
        self._count, self._caches, self._load, self._device = count, caches, load, device
        self._warm_up = warm_up
        self._known: weakref.WeakKeyDictionary[VectorScorer, Largest] = weakref.WeakKeyDictionary()
        self._loaded: weakref.WeakValueDictionary[str, VectorScorer] = weakref.WeakValueDictionary()  # by fingerprint
        self._loading = threading.Lock()

    def open(self, parts: Sequence[Generation]) -> Opened:
        """Load everything that answering from the parts of a generation needs, so that no request waits for it.

        A part is closed when nobody holds its vectors any more.

        Raises:
            FingerprintMismatch: the model in the generation did not make its vectors.
            ModelError: it cannot be loaded, or does not run here.
        """
        manifest = parts[0].manifest
        ranker = self.ranker(manifest, parts[0].model_directory)
        device = self._device if ARCHITECTURES[ranker.architecture].embeds else "cpu"  # words are read there
        searchable = [self.searchable(part, self._vectors(part, ranker), device) for part in parts]
        for part, found in zip(parts, searchable, strict=True):
            # Every revision holds the vectors, so the last request that holds one of them closes the part's maps.
            weakref.finalize(found.vectors, part.close).atexit = False
        return Opened(ranker, self.texts(manifest, ranker), tuple(searchable))

    @staticmethod
    def searchable(part: Generation, vectors: CandidateVectors, device: str = "cpu") -> Searchable:
        """Prepare a scan of a part as it was built; raises ModelError or Shortage as `runs_here`."""
        with runs_here(part.manifest), telling("preparing the search"):
            scan = prepare(vectors.matrix(), device, with_bytes=part.index is None)
        return Searchable(Snapshot.of(part), vectors, scan)

    def has_model(self, fingerprint: str) -> bool:
        """Whether the model is in memory."""
        return fingerprint in self._loaded

    def ranker(self, manifest: Manifest, directory: Path) -> VectorScorer:
        """Load the model in the directory of the generation of this manifest and warm it up, unless it is in memory.

        Raises GenerationCorrupt if it lacks what its model keeps for a second stage.
        """
        with self._loading:
            known = self._loaded.get(manifest.model.fingerprint)
            if known is not None:
                return known
            ranker, is_first = self._read(manifest, directory), not self._loaded
            with runs_here(manifest):
                self._warm_up(ranker)
            if not is_first:  # at the start the server collects
                # Loading leaves frames of errors and traced graphs behind, which would keep an old model alive.
                gc.collect()
            self._loaded[ranker.fingerprint] = ranker
        return ranker

    def _read(self, manifest: Manifest, directory: Path) -> VectorScorer:
        wanted = manifest.model.fingerprint
        try:
            ranker: VectorScorer = self._load(str(directory))
        except InvalidInput as error:  # a back-end says so of a model that it cannot run
            raise ModelError(f"{manifest.model.name} does not run here: {error}") from error
        if not ARCHITECTURES[ranker.architecture].retrieves:
            raise CheckpointInvalid(f"a {ranker.architecture}-encoder cannot search a pool")
        if ranker.fingerprint != wanted:
            raise FingerprintMismatch(wanted, ranker.fingerprint)
        if ranker.late_rows != manifest.late:
            raise GenerationCorrupt(manifest.id, "it does not hold what its model keeps for a second stage")
        return ranker

    def _vectors(self, part: Generation, ranker: VectorScorer) -> CandidateVectors:
        if self._caches is None:
            return MatrixVectors(part, self._count)
        return self._caches.vectors(part, partial(encode_texts, ranker), self._largest(part.manifest, ranker))

    def texts(self, manifest: Manifest, ranker: VectorScorer) -> TextCache | None:
        """Return the cache of the vectors of texts; None: every text is encoded."""
        if self._caches is None or not ARCHITECTURES[ranker.architecture].embeds:
            return None  # a vector that says nothing is made faster than found
        return self._caches.texts(manifest, ranker.backend, ranker.rounding, self._largest(manifest, ranker))

    def _largest(self, manifest: Manifest, ranker: VectorScorer) -> Largest:
        rows = ranker.max_input_tokens + 1  # a marker
        if self._caches is None or self._caches.server is None:
            return Largest(rows)  # vectors come from nobody but the model
        if ranker not in self._known:  # a large model takes seconds for it
            with runs_here(manifest):
                self._known[ranker] = largest_of(partial(encode_texts, ranker), rows)
        return self._known[ranker]


@contextmanager
def runs_here(manifest: Manifest) -> Iterator[None]:
    """Refuse a generation on which torch or OpenVINO fail in the block: the server goes on.

    Raises ModelError if the block failed.
    """
    try:
        yield
    except Exception as error:
        if shortage := shortage_in(error):
            raise shortage from error
        why = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise ModelError(f"{manifest.model.name} does not run here: {why[0]}") from error
