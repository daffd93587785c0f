"""Encode many texts or contexts, with progress, and refuse a model whose numbers are not finite."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from polyrank.model.architectures.batching import distinct_sequences
from polyrank.model.errors import ModelError
from polyrank.model.rankers.networks import Retriever
from polyrank.model.representations import ContextEncoding, Representations
from polyrank.model.search.additions import Additions
from polyrank.model.search.topk import TopK
from polyrank.model.text.assembly import Conversation

_CONTEXTS_AT_ONCE = 256

ReportProgress = Callable[[str, int, int], None]  # called with (stage, done, total)


def candidate_embeddings(
    ranker: Retriever, texts: Sequence[str], report: ReportProgress
) -> tuple[NDArray[np.float32], int]:
    """Encode texts for the first stage, (texts, D1), as `candidate_representations`."""
    made, cut = candidate_representations(ranker, texts, report)
    return made.first, cut


def candidate_representations(
    ranker: Retriever, texts: Sequence[str], report: ReportProgress
) -> tuple[Representations, int]:
    """Encode texts, and count those that lost their end. The stage is "candidates".

    What a model reads alike is encoded once, and in an order that does not depend on that of the texts: beside others a
    text can get another rounding, which would break ties.

    Raises ModelError where the model gives numbers that are not finite.
    """
    tokens, cut = ranker.tokenize_candidates(texts)
    distinct, places = distinct_sequences(tokens)
    done = 0

    def on_done(more: int) -> None:
        nonlocal done
        done += more
        report("candidates", done, len(distinct))

    made = ranker.represent_candidates([tokens[position] for position in distinct], on_done)
    require_finite(ranker.name, [made.first] if made.late is None else [made.first, made.late])
    return made.take(places), cut


def context_codes(
    ranker: Retriever, conversations: Sequence[Conversation], report: ReportProgress
) -> Iterator[NDArray[np.float32]]:
    """Encode contexts for the first stage; yields the vectors (M, D1) of each, as `context_encodings`."""
    return (each.codes for each in context_encodings(ranker, conversations, report))


def context_encodings(
    ranker: Retriever, conversations: Sequence[Conversation], report: ReportProgress
) -> Iterator[ContextEncoding]:
    """Encode contexts, some at a time. The stage is "contexts".

    Raises ModelError where the model gives numbers that are not finite.
    """
    for start in range(0, len(conversations), _CONTEXTS_AT_ONCE):
        chunk = conversations[start : start + _CONTEXTS_AT_ONCE]
        made = ranker.represent_contexts([ranker.tokenize_context(conversation)[0] for conversation in chunk])
        require_finite(ranker.name, (each.codes for each in made))
        yield from made
        report("contexts", start + len(chunk), len(conversations))


def second_stage(
    ranker: Retriever, made: Representations, context: ContextEncoding, found: TopK, additions: Additions | None
) -> TopK:
    """Order the texts that a first stage found by the scores of the second one, equal ones in the order of the pool.

    made: of the whole pool. additions: to the scores of the whole pool. Raises ModelError as `require_finite`.
    """
    scores = scores_of_rows(ranker, made, context, found.rows, additions)
    require_finite(ranker.name, [scores])
    order = np.lexsort((found.rows, -scores))
    return TopK(found.rows[order], scores[order])


def scores_of_rows(
    ranker: Retriever,
    made: Representations,
    context: ContextEncoding,
    rows: NDArray[np.int64],
    additions: Additions | None,
) -> NDArray[np.float32]:
    """Return the scores that place some texts of a pool, (rows,); arguments as `second_stage`."""
    own = None if additions is None else replace(additions, values=additions.values[rows])
    return ranker.scores(context, made.take(rows), own)


def require_finite(name: str, numbers: Iterable[NDArray[np.floating]]) -> None:
    """Raise ModelError for vectors or scores that are not finite: no score is above them, so all ranks would be 1."""
    if not all(np.isfinite(array).all() for array in numbers):
        raise ModelError(f"{name} gives scores that are not finite numbers; its weights are damaged")
