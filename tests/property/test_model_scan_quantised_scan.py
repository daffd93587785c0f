"""The quantised scan with its production sizes, and from several threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from polyrank.model.search.scan import Query
from polyrank.model.search.scan.quantised import product
from polyrank.model.search.scan.quantised.scan import QuantisedScan
from polyrank.model.search.topk import scores_of

torch.set_num_threads(1)  # on matrices this small threads only wait for each other

pytestmark = pytest.mark.skipif(not product.multiplies_bytes(), reason="this processor does not multiply bytes fast")

ROWS, DIM = 20_000, 32


def test_several_threads_get_the_rows_and_scores_of_scoring_every_row() -> None:
    rng = np.random.default_rng(0)
    matrix = (rng.normal(size=(ROWS, DIM)) / np.sqrt(DIM) + rng.normal(size=DIM)).astype(np.float16)
    matrix[rng.integers(ROWS, size=5000)] = matrix[rng.integers(ROWS, size=5000)]
    scan = QuantisedScan(matrix)
    shares = ((1, 1, None), (3, 10, 0.5), (64, 10, None), (16, 100, 0.95), (64, 30, 0.21), (5, 50, 0.01), (8, 0, None))
    queries = [
        Query(
            (rng.normal(size=(m, DIM)) * 3).astype(np.float32), k, None if share is None else rng.random(ROWS) < share
        )
        for m, k, share in shares
    ]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(scan.top_k, [queries, queries[::-1], queries[2:], queries[:3]]))
    for own, found in zip([queries, queries[::-1], queries[2:], queries[:3]], answers, strict=True):
        for query, best in zip(own, found, strict=True):
            scores = scores_of(matrix, query.codes)
            rows = np.arange(ROWS) if query.allowed is None else np.flatnonzero(query.allowed)
            rows = rows[np.lexsort((rows, -scores[rows]))][: query.k]
            np.testing.assert_array_equal(best.rows, rows)
            np.testing.assert_array_equal(best.scores, scores[rows])
