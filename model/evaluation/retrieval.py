"""How well a model finds the right texts in a whole pool: exact retrieval, then a Cross-encoder's second look.

What is measured is the model: the scan is exact, so no index adds errors of its own.
"""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.evaluation.evaluate import Progress, candidate_embeddings, context_codes, require_finite
from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.rankers.late import LateRanker
from polyrank.model.search.scan import Query, prepare
from polyrank.model.search.topk import TopK
from polyrank.model.text.assembly import Conversation

DEPTH = 100  # texts retrieved for each context
_CONTEXTS_A_PASS = 32


class Retrieval(NamedTuple):
    """What was found for each context, and how many of the texts were too long for the model and lost their end."""

    found: list[TopK]
    cut: int


def retrieve(
    ranker: LateRanker, conversations: Sequence[Conversation], texts: Sequence[str], progress: Progress
) -> Retrieval:
    """Find each context's best texts.

    Args:
        ranker: a Bi- or Poly-encoder.
        conversations: the contexts.
        texts: the pool; each is encoded once.
        progress: told (stage, done, total): "candidates", then "contexts".

    Returns:
        For each context places in `texts` and scores of the first DEPTH, best first, equal scores in the pool's order.

    Raises:
        ModelError: the model gives scores that are not finite.
    """
    embeddings, cut = candidate_embeddings(ranker, texts, progress)
    require_finite(ranker.name, [embeddings])
    scan, found = prepare(embeddings), []
    remaining = context_codes(ranker, conversations, progress)
    while several := list(islice(remaining, _CONTEXTS_A_PASS)):
        require_finite(ranker.name, several)
        found += scan.top_k([Query(codes, DEPTH) for codes in several])
    return Retrieval(found, cut)


def rerank(
    reranker: CrossRanker,
    conversations: Sequence[Conversation],
    texts: Sequence[str],
    found: Sequence[TopK],
    top_n: int,
    progress: Progress,
) -> list[TopK]:
    """Order the first `top_n` found for each context anew.

    Args:
        reranker: a Cross-encoder.
        conversations: the contexts.
        texts: the pool.
        found: what was retrieved for each context.
        top_n: how many to read again.
        progress: told ("pairs", contexts done, contexts).

    Returns:
        What was found: the first `top_n` with and by the reranker's scores, equal ones as they were; then the rest.

    Raises:
        ModelError: the reranker gives scores that are not finite.
    """
    reranked = []
    for conversation, best in zip(conversations, found, strict=True):
        rows, rest = np.split(best.rows, [top_n])
        pairs, _ = reranker.tokenize_pairs(conversation, [texts[row] for row in rows])
        scores = reranker.score_pairs(pairs)
        require_finite(reranker.name, [scores])
        order = np.argsort(-scores, kind="stable")
        merged = np.concatenate([scores[order], best.scores[top_n:]])
        reranked.append(TopK(np.concatenate([rows[order], rest]), merged))
        progress("pairs", len(reranked), len(found))
    return reranked


def rank_in(found: TopK, row: int) -> int:
    """Rank of a row among those found, from 1; 0 where it was not found.

    >>> rank_in(TopK(np.array([7, 3]), np.array([0.9, 0.1], np.float32)), 3)
    2
    """
    places: NDArray[np.int64] = np.flatnonzero(found.rows == row)
    return int(places[0]) + 1 if len(places) else 0
