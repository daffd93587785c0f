"""What the service asks of a cross-encoder."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.model.text.pairs import Pairs

# Loads a cross-encoder by its name or directory.
LoadScorer = Callable[[str], "PairScorer"]


class PairScorer(Protocol):
    """Reads a context and a candidate together; see model.CrossRanker."""

    name: str
    architecture: str
    fingerprint: str
    max_input_tokens: int
    backend: str

    def tokenize_pairs(self, conversation: Conversation, texts: Sequence[str]) -> tuple[Pairs, Truncation]:
        """Join the context with each text; says what did not fit."""

    def score_pairs(self, pairs: Pairs) -> NDArray[np.float32]:
        """Score tokenised pairs, (N,)."""


def warm_up(scorer: PairScorer) -> None:
    """Score pairs of the lengths that come, so that no request pays for the first calls."""
    for words, texts in ((1, 1), (30, 20), (300, 2)):
        pairs, _ = scorer.tokenize_pairs(Conversation.of("hello " * words), ["hello there"] * texts)
        scorer.score_pairs(pairs)
