"""Which index a pool of this size gets."""

import math
from dataclasses import dataclass, field, replace

from polyrank.model.errors import InvalidInput

# Up to so many rows scanning the matrix costs no more than HNSW: docs/measurements/index.md. The indexes after
# the scan are taken while they are no larger than this: what common machines can spare.
SCAN_LIMIT = 130_000
HNSW_BYTES = 2 * 2**30
SQ_BYTES = 8 * 2**30

# What a row takes beside its vector: HNSW's 2 * 32 links of 4 bytes, and an inverted list's 8 bytes of row number.
_HNSW_LINK_BYTES = 2 * 32 * 4
_LIST_BYTES = 8

_ROWS_A_LIST = 39  # FAISS's own least number for training a list's centroid
_PQ_PART = 8  # components of a vector that become one byte, at most
_PQ_ROWS = 256  # centroids of each part: fewer rows cannot train them


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """An index, as the manifest records it.

    Attributes:
        kind: "exact" (scan the matrix; no index file), "flat", "hnsw", "ivf", "ivfpq", or "custom": a factory string
            that was asked for by itself.
        factory: FAISS's name of it; None for "exact".
        params: of building and searching, by FAISS's names, and "depth": rows to retrieve where that had to be more
            than the service asks for.
        asked: one of KINDS, or a factory string: what it was chosen by.
    """

    kind: str
    factory: str | None = None
    params: dict[str, int] = field(default_factory=dict)
    asked: str = "auto"


KINDS = ("auto", "exact", "flat", "hnsw", "ivf", "ivfpq")


def choose_index(index: str, count: int, dim: int) -> IndexSpec:
    """The index for `count` candidates of `dim` components.

    Args:
        index: one of KINDS, or a FAISS factory string, which is taken as it is. "auto": a scan, or the first of hnsw,
            ivf and ivfpq that stays within its bytes.
        count: at least 1.
        dim: D.

    Raises:
        InvalidInput: the pool is too small for the kind.
    """
    chosen = _chosen(_automatic(count, dim) if index == "auto" else index, count, dim)
    return replace(chosen, asked=index)


def _chosen(kind: str, count: int, dim: int) -> IndexSpec:
    if kind == "exact":
        return IndexSpec("exact")
    if kind == "flat":
        return IndexSpec("flat", "Flat")
    if kind == "hnsw":
        return IndexSpec("hnsw", "HNSW32")
    if kind == "ivf":
        return IndexSpec("ivf", f"IVF{_lists(count)},SQ8")
    if kind == "ivfpq":
        if count < _PQ_ROWS:
            raise InvalidInput(f"--index ivfpq needs at least {_PQ_ROWS} candidates, and the pool has {count}")
        parts = _parts(dim)
        return IndexSpec("ivfpq", f"OPQ{parts},IVF{_lists(count)},PQ{parts}")
    return IndexSpec("custom", kind)


def _automatic(count: int, dim: int) -> str:
    if count <= SCAN_LIMIT:
        return "exact"
    if count * (4 * dim + _HNSW_LINK_BYTES) <= HNSW_BYTES:
        return "hnsw"
    return "ivf" if count * (dim + _LIST_BYTES) <= SQ_BYTES else "ivfpq"


def _lists(count: int) -> int:
    """A power of two near 4 sqrt(N), and no more than can be trained."""
    wanted: int = 2 ** round(math.log2(4 * math.sqrt(count)))
    return max(1, min(wanted, count // _ROWS_A_LIST))


def _parts(dim: int) -> int:
    """How many equal parts a vector is cut into, of `_PQ_PART` components or the next lower number that divides it."""
    return next(dim // size for size in range(_PQ_PART, 0, -1) if dim % size == 0)
