"""What a generation's model keeps of each candidate for a second stage: a block of its own beside the matrix."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.vectors.blocks import OFFSETS_SUFFIX
from polyrank.model.representations import LateRows, Representations

LATE_FILE = "late.bin"


def late_files(late: LateRows | None) -> set[str]:
    """Name the files of the block; none for a model without a second stage."""
    if late is None:
        return set()
    return {LATE_FILE} if late.count is not None else {LATE_FILE, str(Path(LATE_FILE).with_suffix(OFFSETS_SUFFIX))}


def each_of(rows: NDArray[Any], counts: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Return the rows of each candidate: `counts` of them (N,), one candidate after the other in `rows` (R, D2)."""
    return np.split(rows, np.cumsum(counts)[:-1]) if len(counts) else []


def fits(made: Representations, late: LateRows | None) -> bool:
    """Whether candidates have the rows that their model says it makes."""
    if made.late is None or made.counts is None or late is None:
        return made.late is None and late is None
    return (
        made.counts.shape == (len(made.first),)
        and bool((made.counts >= 0).all())
        and made.late.shape == (made.counts.sum(), late.dim)
        and (late.count is None or bool((made.counts == late.count).all()))
    )
