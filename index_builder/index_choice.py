"""Which index answers a pool of this size fastest."""

from dataclasses import dataclass, field

from model.errors import InvalidInput

# Up to about here scanning the matrix answers sooner than the service's HNSW search (M = 64, D = 384, 200 rows a code):
# docs/results.md, "Where scanning stops being cheaper than HNSW".
SCAN_LIMIT = 65_000

# Links a node, candidates considered while linking and while searching: at these, the recall of docs/results.md.
_HNSW_FACTORY = "HNSW32"
_HNSW_PARAMS = {"efConstruction": 200, "efSearch": 128}


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """An index, as the manifest records it.

    Attributes:
        kind: "exact" (scan the matrix; no index file), "flat" or "hnsw".
        factory: FAISS's name of it; None for "exact".
        params: by FAISS's names.
    """

    kind: str
    factory: str | None = None
    params: dict[str, int] = field(default_factory=dict)


_SPECS = {
    "exact": IndexSpec("exact"),
    "flat": IndexSpec("flat", "Flat"),
    "hnsw": IndexSpec("hnsw", _HNSW_FACTORY, _HNSW_PARAMS),
}
KINDS = ("auto", *_SPECS)


def choose_index(kind: str, count: int) -> IndexSpec:
    """The index for `count` candidates; "auto" takes the cheaper of exact and hnsw.

    Raises:
        InvalidInput: the kind is unknown.
    """
    if kind == "auto":
        kind = "exact" if count <= SCAN_LIMIT else "hnsw"
    if kind not in _SPECS:
        raise InvalidInput(f"unknown kind of index {kind!r}; use one of {', '.join(KINDS)}")
    return _SPECS[kind]
