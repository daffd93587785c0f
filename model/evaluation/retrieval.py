"""How well a model finds the right texts in a whole pool: exact retrieval, then reranking by a Cross-encoder.

The scan is exact: without an index's errors, only the model is measured.

A search ends within texts that tie. How many of them it leaves out is then counted, so that figures are expected values
here too (polyrank.model.ties). A second stage and a reranker read only some of them: those that are first in the pool.
So its order has to be drawn (`drawn_order` in model/text/hashes.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.evaluation.encoding import (
    ReportProgress,
    candidate_representations,
    context_encodings,
    require_finite,
    second_stage,
)
from polyrank.model.evaluation.metrics import DEPTH
from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.rankers.networks import Retriever
from polyrank.model.search.scan import Query, prepare
from polyrank.model.search.topk import TopK, scores_of
from polyrank.model.text.assembly import Conversation
from polyrank.model.ties import Ties

_CONTEXTS_A_PASS = 32


class Retrieved(NamedTuple):
    """What was found for a context.

    Attributes:
        best: places and scores of the DEPTH best texts, best first.
        read: how many of them, from the first one on, have their place by a reranker's scores.
        beyond: how many texts were not found and tie with the last one; counted only where a right one is among those
            that tie with it.
        right_beyond: the places of the right ones among these.
    """

    best: TopK
    read: int = 0
    beyond: int = 0
    right_beyond: NDArray[np.int64] = np.empty(0, np.int64)

    def ties(self, gains_of: Callable[[NDArray[np.int64]], NDArray[np.float64]]) -> Ties:
        """Return the ranking; `gains_of` gives the gains of texts by their places. It is exact for the first DEPTH."""
        rows, scores = self.best
        gains = gains_of(rows)
        read, rest = Ties.of(scores[: self.read], gains[: self.read]), Ties.of(scores[self.read :], gains[self.read :])
        if self.beyond and self.read < len(rows):
            rest = rest.widened(self.beyond, gains_of(self.right_beyond))
        return read.then(rest)


def retrieve(
    ranker: Retriever,
    conversations: Sequence[Conversation],
    texts: Sequence[str],
    right: Sequence[NDArray[np.int64]],
    report: ReportProgress,
) -> tuple[list[Retrieved], int]:
    """Find the best texts of the pool for each context, by vectors and by evidence if the model has some.

    A second stage places the texts that the first one found. `right` are the places of each context's right texts.

    The stages reported are "candidates" and "contexts".

    Returns:
        For each context what was found, equal scores in the order of the pool; and how many texts were too long and
        lost their end.

    Raises:
        ModelError: the model gives numbers that are not finite.
    """
    made, cut = candidate_representations(ranker, texts, report)
    scan, table, found = prepare(made.first), ranker.word_table(texts), list[Retrieved]()
    remaining = zip(conversations, right, context_encodings(ranker, conversations, report), strict=True)
    while several := list(islice(remaining, _CONTEXTS_A_PASS)):
        contexts = [context for _, _, context in several]
        added = [ranker.additions(conversation, table) for conversation, _, _ in several]
        queries = [Query(each.codes, DEPTH, additions=own) for each, own in zip(contexts, added, strict=True)]
        best = scan.top_k(queries)
        if ranker.late_rows is not None:
            found += [Retrieved(second_stage(ranker, made, *each)) for each in zip(contexts, best, added, strict=True)]
        else:
            known = (rows for _, rows, _ in several)
            found += [_counted(made.first, *each) for each in zip(queries, best, known, strict=True)]
    return found, cut


def _counted(embeddings: NDArray[np.float32], query: Query, best: TopK, right: NDArray[np.int64]) -> Retrieved:
    """Count the texts that tie with the last one found, where that can matter: where a right one does."""
    last = best.scores[-1]
    if len(best.rows) == len(embeddings) or not (_scores(embeddings, query, right) == last).any():
        return Retrieved(best)
    tied = np.flatnonzero(_scores(embeddings, query, np.arange(len(embeddings))) == last)
    beyond = np.setdiff1d(tied, best.rows)
    return Retrieved(best, beyond=len(beyond), right_beyond=np.intersect1d(beyond, right))


def _scores(embeddings: NDArray[np.float32], query: Query, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    additions = query.additions
    own = None if additions is None else replace(additions, values=additions.values[rows])
    return scores_of(embeddings[rows], query.codes, own)


def rerank(
    reranker: CrossRanker,
    conversations: Sequence[Conversation],
    texts: Sequence[str],
    found: Sequence[Retrieved],
    top_n: int,
    report: ReportProgress,
    counts_words: bool,
) -> list[Retrieved]:
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
    for conversation, own in zip(conversations, found, strict=True):
        rows, rest = np.split(own.best.rows, [top_n])
        scores = reranker.score_texts(conversation, [texts[row] for row in rows], statistics, found=True)
        require_finite(reranker.name, [scores])
        order = np.argsort(-scores, kind="stable")
        merged = np.concatenate([scores[order], own.best.scores[top_n:]])
        reranked.append(own._replace(best=TopK(np.concatenate([rows[order], rest]), merged), read=len(rows)))
        report("pairs", len(reranked), len(found))
    return reranked
