"""How well a model finds the gold reply in each example's list: R@k/C and MRR (Humeau et al. 5)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyrank.model.errors import InvalidInput, ModelError
from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.rankers.late import LateRanker
from polyrank.model.search.topk import scores_of
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue

_CONTEXTS_AT_ONCE = 256

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of the candidates and ranks of the gold replies, of which polyrank.model.evaluation.metrics makes figures.

    Attributes:
        ranks: rank of the gold reply in each example's own list, 1 is best, (examples,).
        scores: each example's candidates' scores, in the order of its list.
    """

    ranks: NDArray[np.int64]
    scores: Sequence[NDArray[np.float32]]


def gold_rank(scores: NDArray[np.float32], label: int) -> int:
    """Rank of the gold reply; among equal scores the one listed first is ahead, as in every ranking.

    >>> gold_rank(np.array([2.0, 3.0, 2.0], np.float32), 2)
    3
    """
    gold = scores[label]
    return 1 + int((scores > gold).sum()) + int((scores[:label] == gold).sum())


def evaluate(ranker: LateRanker | CrossRanker, dialogues: Sequence[Dialogue], progress: Progress) -> Evaluation:
    """Rank each example's candidates.

    Args:
        ranker: any model.
        dialogues: examples with candidates; those without are left out.
        progress: told (stage, done, total): "candidates", then "contexts"; or "pairs" for a Cross-encoder.

    Raises:
        InvalidInput: no example has candidates.
        ModelError: the model gives scores that are not finite, which nothing is above: every rank would be the first.
    """
    listed = [dialogue for dialogue in dialogues if dialogue.candidates]
    if not listed:
        raise InvalidInput("no example has `candidates`; there is nothing to rank")
    if isinstance(ranker, CrossRanker):
        scores = _cross_scores(ranker, listed, progress)
    else:
        scores = _late_scores(ranker, listed, progress)
    require_finite(ranker.name, scores)
    ranks = [gold_rank(each, dialogue.label) for each, dialogue in zip(scores, listed, strict=True)]
    return Evaluation(np.array(ranks, np.int64), scores)


def require_finite(name: str, scores: Iterable[NDArray[np.floating]]) -> None:
    """Refuse scores that are no numbers: nothing is above them. Raises ModelError, which names the model."""
    if not all(np.isfinite(each).all() for each in scores):
        raise ModelError(f"{name} gives scores that are not finite numbers; its weights are damaged")


def _late_scores(ranker: LateRanker, dialogues: Sequence[Dialogue], progress: Progress) -> list[NDArray[np.float32]]:
    """Encode each distinct candidate once, then score each list."""
    row_of: dict[str, int] = {}
    for dialogue in dialogues:
        for text in dialogue.candidates:
            row_of.setdefault(text, len(row_of))
    embeddings, _ = candidate_embeddings(ranker, list(row_of), progress)
    codes = context_codes(ranker, [dialogue.conversation for dialogue in dialogues], progress)
    return [
        scores_of(embeddings[[row_of[text] for text in dialogue.candidates]], vectors)
        for dialogue, vectors in zip(dialogues, codes, strict=True)
    ]


def candidate_embeddings(
    ranker: LateRanker, texts: Sequence[str], progress: Progress
) -> tuple[NDArray[np.float32], int]:
    """Encode texts, (texts, D), and count those that lost their end; tells of ("candidates", done, total)."""
    done = 0

    def on_done(more: int) -> None:
        nonlocal done
        done += more
        progress("candidates", done, len(texts))

    tokens, cut = ranker.tokenize_candidates(texts)
    return ranker.encode_candidates(tokens, on_done), cut


def context_codes(
    ranker: LateRanker, conversations: Sequence[Conversation], progress: Progress
) -> Iterator[NDArray[np.float32]]:
    """Encode contexts, some at a time: each one's vectors (M, D); tells of ("contexts", done, total)."""
    for start in range(0, len(conversations), _CONTEXTS_AT_ONCE):
        chunk = conversations[start : start + _CONTEXTS_AT_ONCE]
        yield from ranker.encode_contexts([ranker.tokenize_context(each)[0] for each in chunk])
        progress("contexts", start + len(chunk), len(conversations))


def _cross_scores(ranker: CrossRanker, dialogues: Sequence[Dialogue], progress: Progress) -> list[NDArray[np.float32]]:
    scores = []
    for done, dialogue in enumerate(dialogues, 1):
        scores.append(ranker.score_pairs(ranker.tokenize_pairs(dialogue.conversation, dialogue.candidates)[0]))
        progress("pairs", done, len(dialogues))
    return scores
