"""Metrics of rankings: one value for each example; their mean is the figure of the set.

Ranks count from 1; rank 0 means that the gold reply was not retrieved.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RECALL_AT = (1, 2, 5, 10)
DEPTH = 100  # texts retrieved for each context

Values = dict[str, NDArray[np.float64]]


def recall_at_k(ranks: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """R@k (Humeau et al. 5.1): 1 for each example whose gold reply is among the first k, else 0, (examples,).

    >>> recall_at_k(np.array([1, 3, 2, 0]), 2)
    array([1., 0., 1., 0.])
    """
    return ((ranks >= 1) & (ranks <= k)).astype(np.float64)


def reciprocal_rank(ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return 1 / rank, and 0 if the gold reply was not retrieved, (examples,); the mean is the MRR.

    >>> reciprocal_rank(np.array([1, 4, 0]))
    array([1.  , 0.25, 0.  ])
    """
    return np.where(ranks >= 1, 1.0 / np.maximum(ranks, 1), 0.0)


def ndcg_at_k(gains: NDArray[np.float64], judged: NDArray[np.float64], k: int) -> float:
    """nDCG@k, trec_eval's `ndcg_cut`: discounted gain of the first k documents over that of the best possible order.

    The gain is the judgement itself, not a power of 2; the document at rank r counts 1 / log2(r + 1) of its gain.

    gains: of the retrieved documents, best first, 0 if not judged, (retrieved,). judged: gains of all judged documents,
    retrieved or not, in any order, (judged,). Returns 0 to 1; 0 if no judged document has a gain.

    >>> round(ndcg_at_k(np.array([0.0, 2.0]), np.array([1.0, 2.0]), 10), 4)  # (2 / log2(3)) / (2 + 1 / log2(3))
    0.4796
    """
    best = _dcg(-np.sort(-judged)[:k])
    return _dcg(gains[:k]) / best if best > 0 else 0.0


def rank_values(ranks: NDArray[np.int64], at: Sequence[int] = RECALL_AT) -> Values:
    """Compute the metrics of examples with one gold reply: `recall@k` for each k of `at`, and `mrr`."""
    return {**{f"recall@{k}": recall_at_k(ranks, k) for k in at}, "mrr": reciprocal_rank(ranks)}


def judged_values(gains: Sequence[NDArray[np.float64]], judged: Sequence[NDArray[np.float64]]) -> Values:
    """Compute the metrics of queries with graded judgements: `ndcg@10`, `mrr@10` and `recall@100`.

    For each query, `gains` and `judged` are as in `ndcg_at_k`; a document with a gain above 0 is relevant.
    """
    first = np.array([first_relevant(found) for found in gains], np.int64)
    pairs = list(zip(gains, judged, strict=True))
    return {
        "ndcg@10": np.array([ndcg_at_k(found, known, 10) for found, known in pairs]),
        "mrr@10": reciprocal_rank(np.where(first <= 10, first, 0)),
        "recall@100": np.array([(found[:100] > 0).sum() / max(1, (known > 0).sum()) for found, known in pairs]),
    }


def first_relevant(gains: NDArray[np.float64]) -> int:
    """Return the rank of the first document with a gain; 0 if there is none.

    >>> first_relevant(np.array([0.0, 0.0, 1.0])), first_relevant(np.array([0.0]))
    (3, 0)
    """
    relevant = np.flatnonzero(gains > 0)
    return int(relevant[0]) + 1 if len(relevant) else 0


def _dcg(gains: NDArray[np.float64]) -> float:
    return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())
