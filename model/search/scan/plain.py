"""The interface of a scan, and the plain scan, whose answers every other scan must give."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.model import threads
from polyrank.model.representations import Additions
from polyrank.model.search.topk import TopK, top_k

# Codes of all contexts that share a pass in bytes: with more, it takes as long as a pass for each context.
PASS_CODES = 64
_LEAST_SHARE = 16_384  # rows of a thread: a millisecond's work, for which it pays to start one


@dataclass(frozen=True, slots=True)
class Query:
    """A search for the `k` best rows for one context; fewer come back when fewer are allowed."""

    codes: NDArray[np.float32]  # the context vectors, (M, D), the score scale multiplied in
    k: int
    allowed: NDArray[np.bool_] | None = None  # the rows that may be in the answer, (N,); None: all
    additions: Additions | None = None  # what to add to the scores by candidate attention; None: nothing

    def count(self, rows: int) -> int:
        """Count the allowed rows of a pool that has so many."""
        return rows if self.allowed is None else int(np.count_nonzero(self.allowed))


@dataclass(frozen=True, slots=True)
class Status:
    """Which scan serves a pool, and why."""

    # What is scanned: a copy in bytes, the stored rows, or a copy in the memory of a GPU.
    kind: Literal["bytes", "stored rows", "gpu"]
    why: str  # the reason, as a sentence without its full stop
    is_fallback: bool = False  # whether a faster scan was asked for or usual on this processor, and failed
    is_timed: bool = False  # whether only a timing refused the faster one: another timing may not (`faster`)

    def shares(self, codes: int) -> bool:
        """Whether several queries with so many codes each take less time in one call than one call each."""
        return self.kind == "gpu" or (self.kind == "bytes" and 2 * codes <= PASS_CODES)


STORED_ROWS = Status("stored rows", "a copy in bytes was not asked for")


class Scan(Protocol):
    """A pool that is ready to be scanned. Safe to call from several threads."""

    @property
    def status(self) -> Status:
        """Which scan serves now, and why."""

    @property
    def longest(self) -> float:
        """The length of the longest row."""

    def top_k(self, queries: Sequence[Query]) -> list[TopK]:
        """Find the best rows of each query, exactly.

        Raises VectorsDamaged where the rows have changed since they were prepared, as far as their scores show it.
        """


class PlainScan:
    """Scores the stored rows (N, D), float16 or float32, for one query after another. longest: of the rows' lengths."""

    def __init__(self, matrix: NDArray[Any], longest: float, status: Status = STORED_ROWS) -> None:
        self._matrix, self.longest = matrix, longest
        self.status = status

    def top_k(self, queries: Sequence[Query]) -> list[TopK]:
        return [self.of(query) for query in queries]

    def of(self, query: Query) -> TopK:
        """Find the best rows of one query; several threads share a large pool."""
        count = min(threads.shares(), query.count(len(self._matrix)) // _LEAST_SHARE)
        if count < 2:
            return self._among(query, slice(0, len(self._matrix)))
        ends = np.linspace(0, len(self._matrix), count + 1).astype(int).tolist()
        with ThreadPoolExecutor(count) as pool:
            parts = list(pool.map(partial(self._among, query), map(slice, ends[:-1], ends[1:])))
        rows, scores = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = np.argsort(-scores, kind="stable")[: query.k]
        return TopK(rows[order], scores[order])

    def _among(self, query: Query, part: slice) -> TopK:
        matrix, rows, additions = self._matrix[part], None, query.additions
        allowed = None if query.allowed is None else query.allowed[part]
        if allowed is not None and 2 * np.count_nonzero(allowed) <= len(matrix):
            rows, allowed = np.flatnonzero(allowed), None  # the other rows need not be read
        if additions is not None:
            additions = Additions(additions.late_weight, additions.values[part])
        best = top_k(matrix, query.codes, query.k, rows, self.longest, allowed, additions)
        return TopK(best.rows + part.start, best.scores)
