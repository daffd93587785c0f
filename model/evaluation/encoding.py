"""Encode many texts or contexts, with progress, and refuse a model whose numbers are not finite."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from polyrank.model.errors import ModelError
from polyrank.model.rankers.networks import Retriever
from polyrank.model.representations import ContextEncoding, Representations
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

    Raises ModelError where the model gives numbers that are not finite.
    """
    done = 0

    def on_done(more: int) -> None:
        nonlocal done
        done += more
        report("candidates", done, len(texts))

    tokens, cut = ranker.tokenize_candidates(texts)
    made = ranker.represent_candidates(tokens, on_done)
    require_finite(ranker.name, [made.first] if made.late is None else [made.first, made.late])
    return made, cut


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


def require_finite(name: str, numbers: Iterable[NDArray[np.floating]]) -> None:
    """Raise ModelError for vectors or scores that are not finite: no score is above them, so all ranks would be 1."""
    if not all(np.isfinite(array).all() for array in numbers):
        raise ModelError(f"{name} gives scores that are not finite numbers; its weights are damaged")
