"""How well a model finds the right texts in a whole pool: exact retrieval, then reranking by a Cross-encoder.

The scan is exact: without an index's errors, only the model is measured.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from polyrank.model.evaluation.encoding import (
    ReportProgress,
    candidate_representations,
    context_encodings,
    require_finite,
)
from polyrank.model.evaluation.metrics import DEPTH
from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.rankers.networks import Retriever
from polyrank.model.representations import ContextEncoding, Representations
from polyrank.model.search.additions import Additions
from polyrank.model.search.scan import Query, prepare
from polyrank.model.search.topk import TopK
from polyrank.model.text.assembly import Conversation

_CONTEXTS_A_PASS = 32


def retrieve(
    ranker: Retriever, conversations: Sequence[Conversation], texts: Sequence[str], report: ReportProgress
) -> tuple[list[TopK], int]:
    """Find the best texts of the pool for each context, by vectors and by evidence if the model has some.

    A second stage places the texts that the first one found.

    The stages reported are "candidates" and "contexts".

    Returns:
        For each context the places in `texts` and the scores of the DEPTH best texts, best first, equal scores in
        the order of the pool; and how many texts were too long and lost their end.

    Raises:
        ModelError: the model gives numbers that are not finite.
    """
    made, cut = candidate_representations(ranker, texts, report)
    scan, table, found = prepare(made.first), ranker.word_table(texts), list[TopK]()
    remaining = zip(conversations, context_encodings(ranker, conversations, report), strict=True)
    while several := list(islice(remaining, _CONTEXTS_A_PASS)):
        contexts = [context for _, context in several]
        added = [ranker.additions(conversation, table) for conversation, _ in several]
        queries = [Query(each.codes, DEPTH, additions=own) for each, own in zip(contexts, added, strict=True)]
        best = scan.top_k(queries)
        if ranker.late_rows is not None:
            best = [_placed(ranker, made, *each) for each in zip(contexts, best, added, strict=True)]
        found += best
    return found, cut


def _placed(
    ranker: Retriever, made: Representations, context: ContextEncoding, best: TopK, additions: Additions | None
) -> TopK:
    """Order the texts found by the scores of the second stage, equal ones in the order of the pool."""
    own = None if additions is None else replace(additions, values=additions.values[best.rows])
    scores = ranker.scores(context, made.take(best.rows), own)
    require_finite(ranker.name, [scores])
    order = np.lexsort((best.rows, -scores))
    return TopK(best.rows[order], scores[order])


def rerank(
    reranker: CrossRanker,
    conversations: Sequence[Conversation],
    texts: Sequence[str],
    found: Sequence[TopK],
    top_n: int,
    report: ReportProgress,
    counts_words: bool,
) -> list[TopK]:
    """Order the first `top_n` texts found for each context by a Cross-encoder's scores. The stage is "pairs".

    counts_words: whether the reranker's evidence counts, if it has some; `texts` then say how rare a word is. A server
    counts it where its generation holds words: where the model that retrieves has evidence.

    Returns:
        The same texts: first those that were read, with and by their new scores, equal ones in their old order; then
        the rest as it was.

    Raises:
        ModelError: the reranker gives scores that are not finite.
    """
    statistics = reranker.statistics(texts) if counts_words else None
    reranked = []
    for conversation, best in zip(conversations, found, strict=True):
        rows, rest = np.split(best.rows, [top_n])
        scores = reranker.score_texts(conversation, [texts[row] for row in rows], statistics, found=True)
        require_finite(reranker.name, [scores])
        order = np.argsort(-scores, kind="stable")
        merged = np.concatenate([scores[order], best.scores[top_n:]])
        reranked.append(TopK(np.concatenate([rows[order], rest]), merged))
        report("pairs", len(reranked), len(found))
    return reranked


def rank_in(found: TopK, row: int) -> int:
    """Rank a row among those found, from 1; 0 if it was not found.

    >>> rank_in(TopK(np.array([7, 3]), np.array([0.9, 0.1], np.float32)), 3)
    2
    """
    places: NDArray[np.int64] = np.flatnonzero(found.rows == row)
    return int(places[0]) + 1 if len(places) else 0
