"""How well a model finds the right reply: in each example's own list (Humeau et al. 5), and in a whole pool.

The search of a pool is exact: without an index's errors, only the model is measured. It ends within texts that tie. How
many of them it leaves out is then counted, so that figures are expected values here too (polyrank.model.measures). A
second stage and a reranker read only some of them: those that are first in the pool. So its order has to be drawn
(`drawn_order` in model/text/folding.py).

Numbers that are not finite are refused: no score is above them, so all ranks would be 1.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.architectures.batching import distinct_sequences
from polyrank.model.errors import InvalidInput, ModelError
from polyrank.model.lexical.table import WordTable
from polyrank.model.measures import DEPTH, Ties, equal_to
from polyrank.model.rankers.networks import CrossRanker, Ranker, Retriever
from polyrank.model.representations import Additions, ContextEncoding, Representations
from polyrank.model.search.scan import Query, prepare
from polyrank.model.search.topk import TopK, scores_of
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue

_CONTEXTS_AT_ONCE = 256

ReportProgress = Callable[[str, int, int], None]  # called with (stage, done, total)


def candidate_representations(
    ranker: Retriever, texts: Sequence[str], report: ReportProgress
) -> tuple[Representations, int]:
    """Encode texts, and count those that lost their end. The stage is "candidates".

    What a model reads alike is encoded once, and in an order that does not depend on that of the texts: beside others a
    text can get another rounding, which would break ties.
    """
    tokens, cut = ranker.tokenize_candidates(texts)
    distinct, places = distinct_sequences(tokens)
    encoded = 0

    def on_done(more: int) -> None:
        nonlocal encoded
        encoded += more
        report("candidates", encoded, len(distinct))

    on_done(0)
    representations = ranker.represent_candidates([tokens[position] for position in distinct], on_done)
    require_finite(ranker.name, (rows for rows, _ in representations.blocks()))
    return representations.take(places), cut


def context_encodings(
    ranker: Retriever, conversations: Sequence[Conversation], report: ReportProgress
) -> Iterator[ContextEncoding]:
    """Encode contexts, some at a time. The stage is "contexts"."""
    report("contexts", 0, len(conversations))
    for start in range(0, len(conversations), _CONTEXTS_AT_ONCE):
        chunk = conversations[start : start + _CONTEXTS_AT_ONCE]
        encodings = ranker.represent_contexts([ranker.tokenize_context(conversation)[0] for conversation in chunk])
        require_finite(ranker.name, (each.codes for each in encodings))
        yield from encodings
        report("contexts", start + len(chunk), len(conversations))


def second_stage(
    ranker: Retriever, pool: Representations, context: ContextEncoding, best: TopK, additions: Additions | None
) -> TopK:
    """Order the texts that a first stage found by the scores of the second one, equal ones in the order of the pool.

    pool: representations of all its texts. additions: to the scores of the whole pool.
    """
    scores = scores_of_rows(ranker, pool, context, best.rows, additions)
    require_finite(ranker.name, [scores])
    order = np.lexsort((best.rows, -scores))
    return TopK(best.rows[order], scores[order])


def scores_of_rows(
    ranker: Retriever,
    pool: Representations,
    context: ContextEncoding,
    rows: NDArray[np.int64],
    additions: Additions | None,
) -> NDArray[np.float32]:
    """Return the scores that place some texts of a pool, (rows,); arguments as `second_stage`."""
    own = None if additions is None else additions._replace(values=additions.values[rows])
    return ranker.scores(context, pool.take(rows), own)


def require_finite(name: str, numbers: Iterable[NDArray[np.floating]]) -> None:
    """Raise ModelError for vectors or scores that are not finite: no score is above them, so all ranks would be 1."""
    if not all(np.isfinite(array).all() for array in numbers):
        raise ModelError(f"{name} gives scores that are not finite numbers; its weights are damaged")


@dataclass(frozen=True, slots=True)
class RankedLists:
    """The ranking of each list, where texts that equal the gold reply are right; and its scores, in its order."""

    ties: Sequence[Ties]
    scores: Sequence[NDArray[np.float32]]


def rank_lists(ranker: Ranker, dialogues: Sequence[Dialogue], report: ReportProgress) -> RankedLists:
    """Rank the candidates of each example that has some.

    The stages reported are "candidates" and "contexts", or "pairs" for a Cross-encoder.

    Raises InvalidInput where no example has candidates, ModelError for scores that are not finite.
    """
    listed = [dialogue for dialogue in dialogues if dialogue.candidates]
    if not listed:
        raise InvalidInput("no example has `candidates`; there is nothing to rank")
    scores = _late_scores(ranker, listed, report) if ranker.retrieves else _cross_scores(ranker, listed, report)
    require_finite(ranker.name, scores)
    return RankedLists([gold_ties(own, dialogue) for own, dialogue in zip(scores, listed, strict=True)], scores)


def gold_ties(scores: NDArray[np.float32], dialogue: Dialogue) -> Ties:
    """Group the candidates of a dialogue with these scores, (C,); texts that equal the gold reply are right."""
    return Ties.of(scores, equal_to(dialogue.candidates[dialogue.label], dialogue.candidates))


def _late_scores(ranker: Retriever, dialogues: Sequence[Dialogue], report: ReportProgress) -> list[NDArray[np.float32]]:
    """Encode each distinct candidate once, then score each list.

    A model with evidence takes all candidates of all lists for the pool that says how rare a word is. A score can
    depend on the texts beside it, by a rounding. So texts are in an order of their own, not in that of the lists.
    """
    texts = sorted({text for dialogue in dialogues for text in dialogue.candidates})
    row_of = {text: row for row, text in enumerate(texts)}
    pool, _ = candidate_representations(ranker, texts, report)
    contexts = context_encodings(ranker, [dialogue.conversation for dialogue in dialogues], report)
    statistics, scores = ranker.statistics(texts), []
    for dialogue, context in zip(dialogues, contexts, strict=True):
        rows, first, places = np.unique(
            [row_of[text] for text in dialogue.candidates], return_index=True, return_inverse=True
        )
        table = None if statistics is None else WordTable.of(dialogue.candidates, statistics)
        additions = ranker.list_additions(dialogue.conversation, table)
        own = None if additions is None else additions._replace(values=additions.values[first])
        scores.append(ranker.scores(context, pool.take(rows), own)[places])
    return scores


def _cross_scores(
    ranker: CrossRanker, dialogues: Sequence[Dialogue], report: ReportProgress
) -> list[NDArray[np.float32]]:
    """Score each list; where words count, how rare one is follows from the same pool as for a late model."""
    statistics = ranker.statistics(sorted({text for dialogue in dialogues for text in dialogue.candidates}))
    scores = []
    report("pairs", 0, len(dialogues))
    for count, dialogue in enumerate(dialogues, 1):
        scores.append(ranker.score_texts(dialogue.conversation, dialogue.candidates, statistics))
        report("pairs", count, len(dialogues))
    return scores


_CONTEXTS_A_PASS = 32


class Retrieved(NamedTuple):
    """What was found for a context."""

    best: TopK  # places and scores of the DEPTH best texts, best first
    read: int = 0
    # How many texts were not found and tie with the last one; counted only where a right one is among those that tie
    # with it.
    beyond: int = 0
    right_beyond: NDArray[np.int64] = np.empty(0, np.int64)  # the places of the right ones among these

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
    own: Sequence[int | None] | None = None,
) -> tuple[list[Retrieved], int]:
    """Find the best texts of the pool for each context, by vectors and by evidence if the model has some.

    A second stage places the texts that the first one found. `right` are the places of each context's right texts,
    `own` that of the text that each context is itself, which is left out; None: the pool does not hold it, or none.

    The stages reported are "candidates" and "contexts".

    Returns:
        For each context what was found, equal scores in the order of the pool; and how many texts were too long and
        lost their end.
    """
    pool, cut = candidate_representations(ranker, texts, report)
    scan, table, hits = prepare(pool.first), ranker.word_table(texts), list[Retrieved]()
    own = [None] * len(conversations) if own is None else own
    remaining = zip(conversations, right, own, context_encodings(ranker, conversations, report), strict=True)
    while several := list(islice(remaining, _CONTEXTS_A_PASS)):
        contexts = [context for *_, context in several]
        added = [ranker.additions(conversation, table) for conversation, *_ in several]
        allowed = [None if left_out is None else np.arange(len(texts)) != left_out for _, _, left_out, _ in several]
        queries = [
            Query(each.codes, DEPTH, may, additions)
            for each, may, additions in zip(contexts, allowed, added, strict=True)
        ]
        best = scan.top_k(queries)
        if ranker.late_rows is not None:
            hits += [Retrieved(second_stage(ranker, pool, *each)) for each in zip(contexts, best, added, strict=True)]
        else:
            right_rows = (rows for _, rows, *_ in several)
            hits += [_counted(pool.first, *each) for each in zip(queries, best, right_rows, strict=True)]
    return hits, cut


def _counted(embeddings: NDArray[np.float32], query: Query, best: TopK, right: NDArray[np.int64]) -> Retrieved:
    """Count the texts that tie with the last one found, where that can matter: where a right one does."""
    last = best.scores[-1]
    if len(best.rows) == query.count(len(embeddings)) or not (_scores(embeddings, query, right) == last).any():
        return Retrieved(best)
    is_tied = _scores(embeddings, query, np.arange(len(embeddings))) == last
    tied = np.flatnonzero(is_tied if query.allowed is None else is_tied & query.allowed)
    beyond = np.setdiff1d(tied, best.rows)
    return Retrieved(best, beyond=len(beyond), right_beyond=np.intersect1d(beyond, right))


def _scores(embeddings: NDArray[np.float32], query: Query, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    additions = query.additions
    own = None if additions is None else additions._replace(values=additions.values[rows])
    return scores_of(embeddings[rows], query.codes, own)


def rerank(
    reranker: CrossRanker,
    conversations: Sequence[Conversation],
    texts: Sequence[str],
    hits: Sequence[Retrieved],
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
    """
    statistics = reranker.statistics(texts) if counts_words else None
    reranked: list[Retrieved] = []
    report("pairs", 0, len(hits))
    for conversation, own in zip(conversations, hits, strict=True):
        rows, rest = np.split(own.best.rows, [top_n])
        scores = reranker.score_texts(conversation, [texts[row] for row in rows], statistics, as_search=True)
        require_finite(reranker.name, [scores])
        order = np.argsort(-scores, kind="stable")
        merged = np.concatenate([scores[order], own.best.scores[top_n:]])
        reranked.append(own._replace(best=TopK(np.concatenate([rows[order], rest]), merged), read=len(rows)))
        report("pairs", len(reranked), len(hits))
    return reranked
