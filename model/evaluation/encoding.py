"""Encode many texts or contexts, with progress, and refuse a model whose numbers are not finite."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from polyrank.model.errors import ModelError
from polyrank.model.rankers.networks import Retriever
from polyrank.model.text.assembly import Conversation

_CONTEXTS_AT_ONCE = 256

ReportProgress = Callable[[str, int, int], None]  # called with (stage, done, total)


def candidate_embeddings(
    ranker: Retriever, texts: Sequence[str], report: ReportProgress
) -> tuple[NDArray[np.float32], int]:
    """Encode texts, (texts, D), and count those that lost their end. The stage is "candidates".

    Raises ModelError where the model gives numbers that are not finite.
    """
    done = 0

    def on_done(more: int) -> None:
        nonlocal done
        done += more
        report("candidates", done, len(texts))

    tokens, cut = ranker.tokenize_candidates(texts)
    embeddings = ranker.encode_candidates(tokens, on_done)
    require_finite(ranker.name, [embeddings])
    return embeddings, cut


def context_codes(
    ranker: Retriever, conversations: Sequence[Conversation], report: ReportProgress
) -> Iterator[NDArray[np.float32]]:
    """Encode contexts, some at a time; yields the vectors (M, D) of each. The stage is "contexts".

    Raises ModelError where the model gives numbers that are not finite.
    """
    for start in range(0, len(conversations), _CONTEXTS_AT_ONCE):
        chunk = conversations[start : start + _CONTEXTS_AT_ONCE]
        codes = ranker.encode_contexts([ranker.tokenize_context(conversation)[0] for conversation in chunk])
        require_finite(ranker.name, codes)
        yield from codes
        report("contexts", start + len(chunk), len(conversations))


def require_finite(name: str, numbers: Iterable[NDArray[np.floating]]) -> None:
    """Raise ModelError for vectors or scores that are not finite: no score is above them, so all ranks would be 1."""
    if not all(np.isfinite(array).all() for array in numbers):
        raise ModelError(f"{name} gives scores that are not finite numbers; its weights are damaged")
