"""The scan of a pool on a CPU with a copy of its rows in bytes, which leaves few rows to be scored.

`score <= max_i s_i` (topk.py), and products of bytes bound every row's largest `s_i` from above (quantised_rows.py).
Where a query adds numbers to the scores, a row's number is added to its bound. The rows with the largest bounds are
scored first. What the k-th best of them reaches, only few bounds reach: the rows that survive. They are scored in
float32 as the plain scan does, and the finalists among them in float64.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.model.search.scan.plain import PASS_CODES, PlainScan, Query, Status
from polyrank.model.search.scan.product import ByteProduct
from polyrank.model.search.scan.quantised_rows import BLOCK_ROWS, QuantisedCodes, QuantisedRows, upper_bounds
from polyrank.model.search.topk import Best, Scores, TopK, added, closed_form, ranked, turned
from polyrank.model.search.widening import widened

IN_BYTES = Status("bytes", "the processor multiplies bytes fast")
LEAST_ROWS = 4096
# From so many rows on a pass takes less time, by the number of codes in it. docs/measurements/scan.md
_ROWS_FOR_ONE_CODE = 2**14
_FEW_CODES, _ROWS_FOR_FEW_CODES = 8, 2**13
_FEW_ALLOWED = 0.15  # share of the rows: so few are scored one by one in less time than a pass takes
_LARGEST_K = 0.1  # share of the rows, as k: with a larger k too many rows survive
_PRODUCT_ELEMENTS = 2**19  # of the product of a part of a block: stays in cache
_PROMISING = 20  # more rows than twice k are scored for the first k-th best
_SCORED_ROWS = 4096  # survivors scored at a time in float32
_MOST_BOUNDS = 2**25  # of a pass, over all rows and contexts: 128 MiB
_MOST_SURVIVORS = 0.3  # share of the rows: with more, bounds are no help and the plain scan takes over


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
        best = {at: self._plain.of(query) for at, query in enumerate(queries) if not self._prunes(query, codes)}
        waiting = [at for at in range(len(queries)) if at not in best]
        with np.errstate(all="ignore"):  # what is no number is found by its score
            for group in _groups([queries[at] for at in waiting], _MOST_BOUNDS // len(self._stored)):
                for query, bounds in zip(group, self._bounds([query.codes for query in group]), strict=True):
                    best[waiting.pop(0)] = self._best(query, bounds)
        return [best[at] for at in range(len(queries))]

    def _prunes(self, query: Query, codes: int) -> bool:
        """Whether a pass can leave out enough rows to be worth its time. codes: of all queries of the call."""
        count = len(self._stored)
        least = _ROWS_FOR_ONE_CODE if codes == 1 else _ROWS_FOR_FEW_CODES if codes < _FEW_CODES else 0
        return count >= least and 0 < query.k <= _LARGEST_K * count and query.count(count) > _FEW_ALLOWED * count

    def _bounds(self, contexts: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        """Bound the largest `s` of each row from above for the codes (M, D) of each context; (N,) each."""
        rows = self._rows.bytes
        codes = QuantisedCodes.of(contexts, self._rows.mean)
        product = ByteProduct(codes.bytes, len(contexts), *upper_bounds(self._rows, codes))
        part = max(1, min(BLOCK_ROWS, _PRODUCT_ELEMENTS // len(codes.bytes)))
        bounds = np.empty((len(contexts), len(rows)), np.float32)
        for first in range(0, len(rows), BLOCK_ROWS):
            end = min(first + BLOCK_ROWS, len(rows))
            for start in range(first, end, part):
                own = slice(start, min(start + part, end))
                bounds[:, own] = product.largest(rows[own], first // BLOCK_ROWS).T
        return list(bounds)

    def _best(self, query: Query, bounds: Scores) -> TopK:
        """Find the best rows of a query, given upper bounds of the largest `s` of each row, (N,)."""
        count, allowed = len(self._stored), query.allowed
        k = min(query.k, query.count(count))
        best = Best.of(k, query.codes, self.longest, query.additions)
        if best.margin == math.inf:  # products that overflow in float32
            return self._plain.of(query)
        bounds = added(bounds, slice(None), query.additions)
        if allowed is not None:
            bounds[~allowed] = -np.inf
        transposed = np.ascontiguousarray(query.codes.T)

        def score(rows: NDArray[np.int64]) -> None:
            for start in range(0, len(rows), _SCORED_ROWS):
                part = rows[start : start + _SCORED_ROWS]
                late = closed_form(turned(widened(self._stored[part]) @ transposed))
                best.add(added(late, part, query.additions), part)

        most = min(count, 2 * k + _PROMISING)
        promising = np.argpartition(bounds, -most)[-most:]
        score(promising if allowed is None else promising[allowed[promising]])
        bounds[promising] = -np.inf  # they are scored
        survivors = np.flatnonzero(bounds >= best.bar)
        if len(survivors) > _MOST_SURVIVORS * count:
            return self._plain.of(query)
        score(survivors)
        return ranked(self._stored, query.codes, np.sort(best.rows), k, self.longest, query.additions)


def _groups(queries: Sequence[Query], most: int) -> Iterator[list[Query]]:
    """Split queries into groups that share a pass: of at most `most` queries and PASS_CODES codes, or of one query."""
    group: list[Query] = []
    for query in queries:
        codes = max(len(each.codes) for each in (*group, query)) * (len(group) + 1)
        if group and (len(group) >= most or codes > PASS_CODES):
            yield group
            group = []
        group.append(query)
    if group:
        yield group
