"""What a model makes of texts: of candidates, which may be stored, and of one context; and what words add to scores.

Importing this needs no torch: builders do without.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_USUAL_ROWS = 16


@dataclass(frozen=True, slots=True)
class LateRows:
    """What a model keeps of each candidate for its second stage."""

    dim: int  # D2, the size of a row
    count: int | None  # rows of every candidate; None: it differs from candidate to candidate

    @property
    def usual_count(self) -> int:
        """The rows of a usual candidate, for estimates where they differ."""
        return self.count or _USUAL_ROWS


class ContextEncoding(NamedTuple):
    """What a model makes of one context."""

    codes: NDArray[np.float32]  # the vectors of the first stage, (M, D1), with the score scale multiplied in
    late: tuple[NDArray[Any], ...] = ()  # what the second stage reads, without padding; () where there is none


class Representations(NamedTuple):
    """What a model makes of N candidates."""

    first: NDArray[Any]  # the vectors of the first stage, (N, D1)
    # The rows of the second stage, (R, D2): those of candidate 0, then those of candidate 1, and so on; None: there is
    # no second stage.
    late: NDArray[Any] | None = None
    # How many rows each candidate has, (N,), R in all; None where `late` is None.
    counts: NDArray[np.int64] | None = None

    def blocks(self) -> list[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Return its one or two blocks of rows (R, D), each with how many rows a candidate has in it, (N,)."""
        vectors = self.first, np.ones(len(self.first), np.int64)
        return [vectors] if self.late is None or self.counts is None else [vectors, (self.late, self.counts)]

    @staticmethod
    def of_blocks(blocks: "Sequence[tuple[NDArray[Any], NDArray[np.int64]]]") -> "Representations":
        """Make one of its `blocks`."""
        (first, _), *late = blocks
        return Representations(first, *late[0]) if late else Representations(first)

    def take(self, positions: Sequence[int] | NDArray[np.int64]) -> "Representations":
        """Return those of these positions, in their order."""
        wanted = np.asarray(positions, np.int64)
        first = self.first[wanted]
        if self.late is None or self.counts is None:
            return Representations(first)
        counts = self.counts[wanted]
        return Representations(first, self.late[row_places(_starts(self.counts)[wanted], counts)], counts)

    def fits(self, late: LateRows | None) -> bool:
        """Whether candidates have the rows that their model says it makes."""
        if self.late is None or self.counts is None or late is None:
            return self.late is None and late is None
        return (
            self.counts.shape == (len(self.first),)
            and bool((self.counts >= 0).all())
            and self.late.shape == (self.counts.sum(), late.dim)
            and (late.count is None or bool((self.counts == late.count).all()))
        )

    @staticmethod
    def none(dim: int, late: LateRows | None) -> "Representations":
        """Return those of no candidates, with first-stage vectors of `dim` components."""
        first = np.empty((0, dim), np.float32)
        if late is None:
            return Representations(first)
        return Representations(first, np.empty((0, late.dim), np.float32), np.empty(0, np.int64))

    @staticmethod
    def join(parts: "Sequence[Representations]") -> "Representations":
        """Put several, at least one, behind each other."""
        first = np.concatenate([part.first for part in parts])
        if parts[0].late is None:
            return Representations(first)
        late = np.concatenate([part.late for part in parts if part.late is not None])
        return Representations(first, late, np.concatenate([part.counts for part in parts if part.counts is not None]))

    @staticmethod
    def interleaved(parts: "Sequence[Representations]", of: NDArray[np.int64] | NDArray[np.bool_]) -> "Representations":
        """Put several in one order: the next one comes from the part with the number that stands in `of`, (N,)."""
        if len(parts) == 1:
            return parts[0]
        if parts[0].late is not None:
            return Representations.join(parts).take(np.argsort(np.argsort(of, kind="stable")))
        first = np.empty((len(of), parts[0].first.shape[1]), np.result_type(*(part.first.dtype for part in parts)))
        for number, part in enumerate(parts):
            first[of == number] = part.first
        return Representations(first)


def each_of(rows: NDArray[Any], counts: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Return the rows of each candidate: `counts` of them (N,), one candidate after the other in `rows` (R, D2)."""
    return np.split(rows, np.cumsum(counts)[:-1]) if len(counts) else []


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.cumsum(counts) - counts


def row_places(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of rows that lie in runs: of `counts` rows each, from `starts` on.

    >>> row_places(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    return np.repeat(starts - _starts(counts), counts) + np.arange(counts.sum(), dtype=np.int64)


class Additions(NamedTuple):
    """Makes the score of a row `late_weight * late + values[row]`, where `late` is its score by candidate attention."""

    late_weight: float  # finite and above 0, as `LexicalConfig` holds it
    values: NDArray[np.float32]  # (N,) float32, finite; a number for each row of the pool

    def to(self, late: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the scores of rows whose late scores these are, (N,), computed in float64."""
        return (self.late_weight * late.astype(np.float64) + self.values).astype(np.float32)
