"""Metrics of rankings: one value for each example; their mean is the figure of the set.

Where scores tie, a value is the expected one over random orders of tied candidates (polyrank.model.ties).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyrank.model.text.folding import folded_line
from polyrank.model.ties import Ties

RECALL_AT = (1, 2, 5, 10)
DEPTH = 100  # texts retrieved for each context

Values = dict[str, NDArray[np.float64]]


def equal_to(right: str, texts: Sequence[str]) -> NDArray[np.bool_]:
    """Tell which texts count as the same as the right one, (texts,): those that `text_key` takes for the same.

    >>> equal_to("I use C#.", ["i  use c#.", "I use C++."])
    array([ True, False])
    """
    form = folded_line(right)
    return np.array([folded_line(text) == form for text in texts], np.bool_)


def ndcg_at_k(found: Ties, judged: NDArray[np.float64], k: int) -> float:
    """nDCG@k, trec_eval's `ndcg_cut`: discounted gain of the first k documents over that of the best possible order.

    The gain is the judgement itself, not a power of 2; the document at rank r counts 1 / log2(r + 1) of its gain.

    found: the retrieved documents, with gain 0 if not judged. judged: gains of all judged documents, retrieved or not,
    in any order, (judged,). Returns 0 to 1; 0 if no judged document has a gain.

    >>> found = Ties.of([2.0, 1.0], [0.0, 2.0])
    >>> round(ndcg_at_k(found, np.array([1.0, 2.0]), 10), 4)  # (2 / log2(3)) / (2 + 1 / log2(3))
    0.4796
    """
    best = Ties.of(judged, judged).gain(k)
    return found.gain(k) / best if best > 0 else 0.0


def rank_values(found: Sequence[Ties], at: Sequence[int] = RECALL_AT, depth: int | None = None) -> Values:
    """Compute the metrics of examples with one right reply, which several texts may equal.

    Returns `recall@k` for each k of `at`: the chance that it is among the first k; and `mrr`, the mean of 1 / rank. A
    reply that was not found counts 0 in all of them, and one beyond `depth` in `mrr`.
    """
    recalls = {f"recall@{k}": np.array([each.found(k) for each in found]) for k in at}
    return {**recalls, "mrr": np.array([each.reciprocal(depth) for each in found])}


def judged_values(found: Sequence[Ties], judged: Sequence[NDArray[np.float64]]) -> Values:
    """Compute the metrics of queries with graded judgements: `ndcg@10`, `mrr@10` and `recall@100`.

    For each query, `found` and `judged` are as in `ndcg_at_k`; a document with a gain above 0 is relevant.
    """
    pairs = list(zip(found, judged, strict=True))
    return {
        "ndcg@10": np.array([ndcg_at_k(own, known, 10) for own, known in pairs]),
        "mrr@10": np.array([own.reciprocal(10) for own in found]),
        "recall@100": np.array([own.right_among(100) / max(1, (known > 0).sum()) for own, known in pairs]),
    }
