"""FAISS's factory strings: whether one can be asked for, and what is inside an index made of it."""

import re
from typing import Any, NamedTuple

import faiss
import numpy as np

from polyrank.index_builder.index.choice import KINDS, IndexSpec
from polyrank.model.errors import InvalidInput

# How hard an index is searched before it is tuned: docs/measurements/index.md.
_EF_SEARCH, _MOST_EF_SEARCH = 64, 2048
_NPROBE = 32


def check_factory(index: str, dim: int) -> None:
    """See that an index of vectors of `dim` components can be asked for: one of KINDS, or a FAISS factory string.

    Raises:
        InvalidInput: it is neither, does not fit the dimension, or does not search by inner product.
    """
    if index in KINDS:
        return
    known = f"--index {index!r} is none of {', '.join(KINDS)} and no FAISS factory string"
    try:
        made: Any = faiss.index_factory(dim, index, faiss.METRIC_INNER_PRODUCT)
        if made.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise InvalidInput(f"{known} that searches by inner product")
        if isinstance(made, faiss.IndexPreTransform):
            _check_transforms(made, known)
        if made.is_trained:
            made.add(np.ones((1, dim), np.float32))
            made.search(np.ones((1, dim), np.float32), 1)
    except RuntimeError as error:
        raise InvalidInput(f"{known} for {dim} dimensions: {reason(error)}") from error


def check_rows(spec: IndexSpec, count: int, dim: int) -> None:
    """See that `count` candidates suffice to train an index that `check_factory` has passed.

    Raises:
        InvalidInput: they do not.
    """
    if spec.factory is None:
        return
    made: Any = faiss.index_factory(dim, spec.factory, faiss.METRIC_INNER_PRODUCT)
    core = core_of(made)
    quantizer = getattr(core, "pq", None)
    needed = max(lists_of(core), 2**quantizer.nbits if quantizer is not None else 1)
    if count < needed:
        raise InvalidInput(f"--index {spec.factory} needs at least {needed} candidates, and the pool has {count}")


class Effort(NamedTuple):
    """The parameter that trades time for recall."""

    name: str
    default: int
    most: int


def effort_of(index: Any) -> Effort | None:
    """That of an index; None where FAISS offers none."""
    core = core_of(index)
    if isinstance(core, faiss.IndexHNSW):
        return Effort("efSearch", _EF_SEARCH, _MOST_EF_SEARCH)
    if isinstance(core, faiss.IndexIVF):
        return Effort("nprobe", min(_NPROBE, core.nlist), core.nlist)
    return None


def core_of(index: Any) -> Any:
    """What is inside transforms and refinements; it lives as long as the index."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return core_of(index.index)
    return core_of(index.base_index) if isinstance(index, faiss.IndexRefine) else index


def lists_of(core: Any) -> int:
    """How many inverted lists it has; 1 where there are none."""
    return int(core.nlist) if isinstance(core, faiss.IndexIVF) else 1


def has_graph(core: Any) -> bool:
    """Whether rows, or the centroids of lists, are linked to a graph."""
    graphs = (faiss.IndexHNSW, faiss.IndexNSG)
    quantizer = faiss.downcast_index(core.quantizer) if isinstance(core, faiss.IndexIVF) else None
    return isinstance(core, graphs) or isinstance(quantizer, graphs)


def _check_transforms(made: Any, known: str) -> None:
    for at in range(made.chain.size()):
        step = faiss.downcast_VectorTransform(made.chain.at(at))
        if isinstance(step, faiss.OPQMatrix) and (step.M < 1 or step.d_out % step.M):
            raise InvalidInput(f"{known} for {made.d} dimensions: OPQ{step.M} does not divide {step.d_out}")
        if isinstance(step, faiss.LinearTransform) and not 1 <= step.d_out <= step.d_in:
            raise InvalidInput(f"{known} for {made.d} dimensions: {step.d_out} of {step.d_in} cannot be kept")


def reason(error: RuntimeError) -> str:
    """What FAISS had to say, without the place in its source."""
    return re.sub(r"^.*?\.cpp:\d+: (Error: '.*?' failed: ?)?", "", str(error), flags=re.DOTALL).strip() or str(error)
