"""Which index a pool gets: by a kind's name, by a FAISS factory string, or by its size and measured times ("auto")."""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import faiss
import numpy as np

from polyrank.index_builder.names import KINDS
from polyrank.model.errors import InvalidInput

# Pools of fewer rows are scanned, unmeasured: the scan was the faster one on every processor that was tried. This and
# the numbers below: docs/measurements/index.md.
MEASURED_FROM = 20_000
# "auto" takes HNSW if a search takes at most this share of the scan's time. The scan is exact, and contexts that wait
# share its passes.
WORTH = 0.7
# HNSW that "auto" took stays up to this share, so that noise does not change the index with every build.
STAYS = 1.0
# The scan's time grows with this power of the rows, HNSW's with their logarithm.
_SCAN_GROWTH = 0.82
# The largest index of these kinds that "auto" chooses: common machines can spare so much memory.
HNSW_BYTES = 2 * 2**30
SQ_BYTES = 8 * 2**30

# Beside its vector a row takes 2 * 32 links of 4 bytes in HNSW, and a row number of 8 bytes in an inverted list.
_HNSW_LINK_BYTES = 2 * 32 * 4
_LIST_BYTES = 8

_ROWS_A_LIST = 39  # FAISS's own minimum to train a list's centroid
_PQ_PART = 8  # at most so many components of a vector become one byte


@dataclass(frozen=True, slots=True)
class SearchTimes:
    """What finding and scoring the best of a pool takes for one context, on one core of the builder's processor.

    `exact_ms`, `hnsw_ms`: by the scan, and by HNSW; predicted from samples where the pool is large.
    """

    exact_ms: float
    hnsw_ms: float

    @property
    def ratio(self) -> float:
        return self.hnsw_ms / self.exact_ms

    def grown(self, before: int, after: int) -> "SearchTimes":
        """The times of `after` rows, if these are of `before` rows.

        >>> SearchTimes(10.0, 8.0).grown(100, 10_000)
        SearchTimes(exact_ms=436.516, hnsw_ms=16.0)
        """
        exact_ms, hnsw_ms = grown_scan(self.exact_ms, before, after), grown_hnsw(self.hnsw_ms, before, after)
        return SearchTimes(round(exact_ms, 3), round(hnsw_ms, 3))


def grown_scan(seconds: float, before: int, after: int) -> float:
    """The time of a scan of `after` rows, if one of `before` rows takes `seconds`."""
    return float(seconds * (after / before) ** _SCAN_GROWTH)


def grown_hnsw(seconds: float, before: int, after: int) -> float:
    """The time of a search of a graph of `after` rows, more than 1, if one of `before` rows takes `seconds`."""
    return seconds * math.log(after) / math.log(before)


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """An index, as the manifest records it."""

    # "exact" (scan the matrix; there is no index file), "flat", "hnsw", "ivf", "ivfpq", or "custom" for a factory
    # string.
    kind: str
    factory: str | None = None  # FAISS's factory string; None for "exact"
    # Of building and searching, by FAISS's names; and "depth", how many rows to retrieve where the service's own number
    # is too low.
    params: dict[str, int] = field(default_factory=dict)
    asked: str = "auto"  # what the user asked for: one of KINDS or a factory string
    times: SearchTimes | None = None  # by which "auto" chose; None where nothing was measured

    @property
    def why(self) -> str | None:
        """The choice and its times in one line; None where nothing was measured."""
        if self.times is None:
            return None
        return (
            f"auto chose {self.kind}: for one context the scan takes {self.times.exact_ms:.1f} ms, "
            f"hnsw {self.times.hnsw_ms:.1f} ms of one core"
        )


def choose_index(
    index: str, count: int, dim: int, times: SearchTimes | None = None, before: IndexSpec | None = None
) -> IndexSpec:
    """Choose the index for a pool of `count` candidates, at least 1, of `dim` components.

    `index` is one of KINDS, or a FAISS factory string that `check_factory` accepts. "auto" scans small pools. Where
    `needs_times` says so, it takes HNSW if it is clearly faster; `before` is the index that the pool had, if any, which
    stays where the times say little or there are none. For larger pools it takes the first of ivf and ivfpq that is
    small enough. Raises InvalidInput if the index needs more candidates to be trained.
    """
    if not needs_times(index, count, dim):
        times = None
    kind = _automatic(count, dim, times, before) if index == "auto" else index
    parts, lists = _parts(dim), _lists(count)
    factories = {
        "exact": None,
        "flat": "Flat",
        "hnsw": "HNSW32",
        "ivf": f"IVF{lists},SQ8",
        "ivfpq": f"OPQ{parts},IVF{lists},PQ{parts}",
    }
    if kind in KINDS:
        spec = IndexSpec(kind, factories[kind], asked=index, times=times)
    else:
        spec = IndexSpec("custom", kind, asked=index)
    if spec.factory is not None and count < (needed := _rows_needed(spec.factory, dim)):
        raise InvalidInput(f"--index {index} needs at least {needed} candidates, and the pool has {count}")
    return spec


def needs_times(index: str, count: int, dim: int) -> bool:
    """Whether the choice depends on how long searches take: "auto", where either of the scan and HNSW may be faster."""
    return index == "auto" and count >= MEASURED_FROM and _has_room_for_hnsw(count, dim)


def _automatic(count: int, dim: int, times: SearchTimes | None, before: IndexSpec | None) -> str:
    if count < MEASURED_FROM:
        return "exact"
    if _has_room_for_hnsw(count, dim):
        was_indexed = before is not None and before.asked == "auto" and before.kind != "exact"
        is_worth = was_indexed if times is None else times.ratio <= (STAYS if was_indexed else WORTH)
        return "hnsw" if is_worth else "exact"
    return "ivf" if count * (dim + _LIST_BYTES) <= SQ_BYTES else "ivfpq"


def _has_room_for_hnsw(count: int, dim: int) -> bool:
    return count * (4 * dim + _HNSW_LINK_BYTES) <= HNSW_BYTES


def _lists(count: int) -> int:
    """A power of two near 4 sqrt(N), but no more than can be trained."""
    lists: int = 2 ** round(math.log2(4 * math.sqrt(count)))
    return max(1, min(lists, count // _ROWS_A_LIST))


def _parts(dim: int) -> int:
    """How many equal parts a vector is cut into: of `_PQ_PART` components, or the next lower number that divides it."""
    return next(dim // size for size in range(_PQ_PART, 0, -1) if dim % size == 0)


def _rows_needed(factory: str, dim: int) -> int:
    """How many rows it takes to train an index: as many as it has lists, or centroids in its quantizer."""
    faiss_index: Any = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)  # must outlive its core
    core = core_of(faiss_index)
    quantizer = getattr(core, "pq", None)
    return max(lists_of(core), 2**quantizer.nbits if quantizer is not None else 1)


def check_factory(index: str, dim: int) -> None:
    """Raise InvalidInput unless `index` is one of KINDS, or a factory string for inner products of `dim` components."""
    if index in KINDS:
        return
    refused = f"--index {index!r} is none of {', '.join(KINDS)} and no FAISS factory string"
    try:
        faiss_index: Any = faiss.index_factory(dim, index, faiss.METRIC_INNER_PRODUCT)
        if faiss_index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise InvalidInput(f"{refused} that searches by inner product")
        if isinstance(faiss_index, faiss.IndexPreTransform):
            _check_transforms(faiss_index, refused)
        if faiss_index.is_trained:
            faiss_index.add(np.ones((1, dim), np.float32))
            faiss_index.search(np.ones((1, dim), np.float32), 1)
    except RuntimeError as error:
        raise InvalidInput(f"{refused} for {dim} dimensions: {reason(error)}") from error


def _check_transforms(faiss_index: Any, refused: str) -> None:
    for at in range(faiss_index.chain.size()):
        step = faiss.downcast_VectorTransform(faiss_index.chain.at(at))
        if isinstance(step, faiss.OPQMatrix) and (step.M < 1 or step.d_out % step.M):
            raise InvalidInput(f"{refused} for {faiss_index.d} dimensions: OPQ{step.M} does not divide {step.d_out}")
        if isinstance(step, faiss.LinearTransform) and not 1 <= step.d_out <= step.d_in:
            raise InvalidInput(f"{refused} for {faiss_index.d} dimensions: {step.d_out} of {step.d_in} cannot be kept")


def core_of(index: Any) -> Any:
    """The FAISS index inside transforms and refinements. It lives as long as the outer index."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return core_of(index.index)
    return core_of(index.base_index) if isinstance(index, faiss.IndexRefine) else index


def lists_of(core: Any) -> int:
    """How many inverted lists the index has; 1 where there are none."""
    return int(core.nlist) if isinstance(core, faiss.IndexIVF) else 1


def reason(error: RuntimeError) -> str:
    """FAISS's message without the place in its source."""
    return re.sub(r"^.*?\.cpp:\d+: (Error: '.*?' failed: ?)?", "", str(error), flags=re.DOTALL).strip() or str(error)
