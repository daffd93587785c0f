"""The scan of a pool on a CPU with a copy of its rows in bytes, which leaves few rows to be scored.

`score <= max_i s_i` (topk.py), and the product of bytes bounds every `s_i` from above (quantised_rows.py). A row whose
bounds all stay below the k-th best score known so far cannot be among the best. The others, the survivors, are scored
in float32 as the plain scan does, and the finalists among them in float64.

The first k-th best score comes from the most promising rows of a sample, and it rises with each stage. Blocks are
visited in an order that spreads over the pool, because neighbours are often alike.

Where a query adds numbers to the scores, rows with large ones are looked at before the blocks (`Cut`).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.model.search.scan.plain import PlainScan, Query, Status
from polyrank.model.search.scan.product import GROUP, ByteProduct
from polyrank.model.search.scan.quantised_rows import BLOCK_ROWS, Cut, QuantisedCodes, QuantisedRows, biases
from polyrank.model.search.topk import Best, Scores, TopK, added, closed_form, kth_best, ranked, turned
from polyrank.model.search.widening import widened

IN_BYTES = Status("bytes", "the processor multiplies bytes fast")
LEAST_ROWS = 4096
# From so many rows on a pass takes less time, by the number of codes in it. docs/measurements/scan.md
_ROWS_FOR_ONE_CODE = 2**14
_FEW_CODES, _ROWS_FOR_FEW_CODES = 8, 2**13
_FEW_ALLOWED = 0.15  # share of the rows: so few are scored one by one in less time than a pass takes
_MOST_ASKED = 0.1  # share of the rows, as k: with a larger k too many rows survive
_PASS_CODES = 4096  # of all contexts that share a pass
_PRODUCT_ELEMENTS = 2**19  # of the product of a part of a block: stays in cache
_FIRST_BLOCKS = 2
_STAGE_GROWTH = 4  # each stage looks at so many times the blocks of all stages before it
_PROMISING = 4  # times k rows of the sample are scored for the first k-th best
_LEAST_PART = 1024  # rows
_SCORED_ROWS = 4096  # survivors scored at a time in float32
_PENDING = 2**18  # survivors that may wait to be scored
_MOST_SURVIVORS = 0.3  # share of the rows looked at: with more, bounds are no help and the plain scan takes over
_JUDGED = 0.1  # share of all rows that must have been looked at before that is decided


class QuantisedScan:
    """A pool with a copy of its rows in bytes. matrix: (N, D), float16 or float32; N at least 1."""

    def __init__(self, matrix: NDArray[Any], status: Status = IN_BYTES) -> None:
        self.status = status
        self._rows = QuantisedRows.of(matrix)
        self._stored = np.asarray(matrix)
        self.longest = self._rows.longest
        self._plain = PlainScan(matrix, self.longest)

    def top_k(self, queries: Sequence[Query]) -> list[TopK]:
        """Find the best rows of each query, in as few passes as their codes fit into."""
        codes = sum(len(query.codes) for query in queries)
        found = {at: self._plain.of(query) for at, query in enumerate(queries) if not self._prunes(query, codes)}
        waiting = [at for at in range(len(queries)) if at not in found]
        with np.errstate(all="ignore"):  # what is no number is found by its score
            for group in _groups([queries[at] for at in waiting]):
                searches = [_Search(self._stored, query, self._rows.longest) for query in group]
                _Pass(self._rows, searches).run()
                for search in searches:
                    found[waiting.pop(0)] = self._plain.of(search.query) if search.gave_up else search.result()
        return [found[at] for at in range(len(queries))]

    def _prunes(self, query: Query, codes: int) -> bool:
        """Whether a pass can leave out enough rows to be worth its time. codes: of all queries that share it."""
        count = len(self._stored)
        least = _ROWS_FOR_ONE_CODE if codes == 1 else _ROWS_FOR_FEW_CODES if codes < _FEW_CODES else 0
        return count >= least and 0 < query.k <= _MOST_ASKED * count and query.count(count) > _FEW_ALLOWED * count


def _groups(queries: Sequence[Query]) -> Iterator[list[Query]]:
    """Split queries into groups that share a pass."""
    group: list[Query] = []
    codes = 0
    for query in queries:
        if group and codes + len(query.codes) > _PASS_CODES:
            yield group
            group, codes = [], 0
        group.append(query)
        codes += len(query.codes)
    if group:
        yield group


class _Pass:
    """Takes several searches over all blocks of the pool together."""

    def __init__(self, rows: QuantisedRows, searches: Sequence["_Search"]) -> None:
        self._rows, self._searches = rows, searches
        self._codes = QuantisedCodes.of([search.codes for search in searches], rows.mean)
        self._product = ByteProduct(self._codes.bytes)
        self._owners = self._codes.owners[::GROUP]
        self._looked_at = 0
        self._part = max(_LEAST_PART, _PRODUCT_ELEMENTS // len(self._codes.bytes))  # rows that are multiplied at a time

    def run(self) -> None:
        self._estimate()
        blocks = _spread(len(self._rows.steps))
        start, size = 0, _FIRST_BLOCKS
        while start < len(blocks):
            if not all(search.gave_up for search in self._searches):
                self._stage(blocks[start : start + size])
            start, size = start + size, _STAGE_GROWTH * (start + size)

    def _estimate(self) -> None:
        """Give each search the approximate largest `s` of every row of the sample."""
        sample = self._rows.sample
        steps = self._rows.steps[sample // BLOCK_ROWS].astype(np.float32)
        units, offsets = (each.astype(np.float32) for each in (self._codes.steps, self._codes.offsets))
        starts = np.flatnonzero(np.diff(self._codes.owners, prepend=-1))
        largest = np.empty((len(self._searches), len(sample)), np.float32)
        for start in range(0, len(sample), self._part):
            part = slice(start, start + self._part)
            s = self._product.products(self._rows.sample_bytes[part]).T.copy()  # (P, rows)
            s *= units[:, None]
            s *= steps[part]
            s += offsets[:, None]
            np.maximum.reduceat(s, starts, axis=0, out=largest[:, part])
        for search, own in zip(self._searches, largest, strict=True):
            search.estimate(sample, own)
            if search.cut is not None and not search.gave_up:
                self._look_at_tiers(search, search.cut, sample, own)

    def _look_at_tiers(
        self, search: "_Search", cut: Cut, sample: NDArray[np.int64], largest: NDArray[np.float32]
    ) -> None:
        """Score survivors among the rows of each tier; `sample` and its `largest` as in `estimate`."""
        codes, product = self._codes, self._product
        if len(self._searches) > 1:
            codes = QuantisedCodes.of([search.codes], self._rows.mean)
            product = ByteProduct(codes.bytes)
        blocks = np.arange(len(self._rows.steps))
        for tier in cut.tiers(sample, largest, lambda: search.best.bar):
            for rows in _growing(tier, self._part):
                of_blocks = biases(self._rows, codes, np.array([search.bar]), blocks)
                bias = of_blocks.max(axis=0)  # the rows are of any block
                search.score(product.rows_above(self._rows.bytes, rows, bias))

    def _stage(self, blocks: NDArray[np.int64]) -> None:
        """Find the survivors in some blocks, and score them."""
        bars = np.array([search.bar for search in self._searches])
        survivors: list[NDArray[np.int64]] = []
        pending = 0
        for block, bias in zip(blocks.tolist(), biases(self._rows, self._codes, bars, blocks), strict=True):
            rows = self._rows.bytes[block * BLOCK_ROWS : (block + 1) * BLOCK_ROWS]
            for start in range(0, len(rows), self._part):
                found = self._product.groups_above(rows[start : start + self._part], bias)
                if len(found):
                    survivors.append(found + (block * BLOCK_ROWS + start) * len(self._owners))
                    pending += len(found)
            self._looked_at += len(rows)
            if pending > _PENDING:
                self._score(survivors)
                survivors, pending = [], 0
        self._score(survivors)

    def _score(self, survivors: list[NDArray[np.int64]]) -> None:
        if not survivors:
            return
        rows, groups = np.divmod(np.concatenate(survivors), len(self._owners))
        owners = self._owners[groups]
        for owner, search in enumerate(self._searches):
            own = rows[owners == owner]  # ascending within a block, so groups of one row are neighbours
            if len(own):
                search.add(own[np.r_[True, own[1:] != own[:-1]]], self._looked_at)


class _Search:
    """One query on its way through the pool.

    Attributes:
        best: the best of the rows scored so far.
        cut: what divides the rows by the numbers added to them; None: nothing is added.
        gave_up: whether the plain scan must answer, because the bounds leave out too little or products overflow.
    """

    def __init__(self, stored: NDArray[Any], query: Query, longest: float) -> None:
        self.query = query
        self._longest = longest
        self.codes = query.codes
        self._transposed = np.ascontiguousarray(query.codes.T)
        self._survived = 0
        self._stored = stored
        self._allowed = query.allowed
        self._k = min(query.k, query.count(len(stored)))
        self.best = Best.of(self._k, self.codes, longest, query.additions)
        self.gave_up = self.best.margin == math.inf
        self.cut = None if query.additions is None else Cut(query.additions, query.allowed)

    @property
    def bar(self) -> float:
        """What the largest `s` of a row must reach for the row to matter."""
        if self.gave_up:
            return math.inf
        return self.best.bar if self.cut is None else self.cut.least(self.best.bar)

    def estimate(self, rows: NDArray[np.int64], largest: NDArray[np.float32]) -> None:
        """Take a first threshold from the most promising of some rows (n,), by their approximate largest `s` (n,)."""
        if self._allowed is not None:
            rows, largest = rows[self._allowed[rows]], largest[self._allowed[rows]]
        if len(rows) >= self._k:
            bounds = added(largest, rows, self.query.additions)
            rest = max(0, len(rows) - _PROMISING * self._k)
            promising = rows[np.argpartition(bounds, rest)[rest:]] if rest else rows
            self.best.expect(kth_best(self._scores(promising), self._k))

    def add(self, rows: NDArray[np.int64], looked_at: int) -> None:
        """Score survivors (n,), after `looked_at` rows of the pool were looked at; give up if they are too many."""
        self._survived += len(rows)
        if self._survived > _MOST_SURVIVORS * looked_at and looked_at > _JUDGED * len(self._stored):
            self.gave_up = True
        if self.gave_up:
            return
        if self._allowed is not None:
            rows = rows[self._allowed[rows]]
        if self.cut is not None:
            rows = rows[self.cut.leaves(rows)]
        self.score(rows)

    def score(self, rows: NDArray[np.int64]) -> None:
        """Score rows (n,), all of them allowed and new."""
        for start in range(0, len(rows), _SCORED_ROWS):
            part = rows[start : start + _SCORED_ROWS]
            self.best.add(self._scores(part), part)

    def result(self) -> TopK:
        """Return the best rows, once all survivors were added."""
        rows, additions = np.sort(self.best.rows), self.query.additions
        return ranked(self._stored, self.codes, rows, self._k, self._longest, additions)

    def _scores(self, rows: NDArray[np.int64]) -> Scores:
        late = closed_form(turned(widened(self._stored[rows]) @ self._transposed))
        return added(late, rows, self.query.additions)


def _growing(rows: NDArray[np.int64], most: int) -> Iterator[NDArray[np.int64]]:
    """Split rows (n,) into parts, the first ones small: what they raise the threshold by spares work in the others."""
    start, size = 0, _LEAST_PART
    while start < len(rows):
        yield rows[start : start + size]
        start, size = start + size, min(most, _STAGE_GROWTH * size)


def _spread(count: int) -> NDArray[np.int64]:
    """Order the numbers of so many blocks so that the first ones lie far apart."""
    step = max(1, round(0.618 * count))
    while np.gcd(step, count) > 1:
        step += 1
    return np.arange(count) * step % count
