"""The second look: a cross-encoder reads the first few together with the context, if the time allows."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model import Conversation, Truncation
from service.errors import InferenceFailed
from service.values import Place

# Weight of the newest measurement in the running cost of a pair.
NEWEST = 0.3
# Each skip lowers the estimate a little: one slow moment must not end reranking for good.
DOUBT = 0.95


class PairScorer(Protocol):
    """What reranking asks of a cross-encoder."""

    name: str
    architecture: str
    fingerprint: str

    def tokenize_pairs(self, conversation: Conversation, texts: Sequence[str]) -> tuple[Any, Truncation]:
        """Join the context with each text; says what did not fit."""

    def score_pairs(self, pairs: Any) -> NDArray[np.float32]:
        """Score tokenised pairs, (N,)."""


LoadScorer = Callable[[str], PairScorer]


def load_reranker(name: str, load_cross: LoadScorer) -> "Reranker":
    """Load a cross-encoder, warmed up."""
    reranker = Reranker(load_cross(name))
    reranker.warm_up()
    return reranker


class Reranker:
    """A cross-encoder and what a pair costs it; for one thread at a time."""

    def __init__(self, scorer: PairScorer, clock: Callable[[], float] = time.monotonic) -> None:
        self.scorer = scorer
        self._clock = clock
        self._seconds_a_pair = 0.0

    def warm_up(self) -> None:
        """Score one pair, so that the first request does not pay for the first call."""
        self.scorer.score_pairs(self.scorer.tokenize_pairs(Conversation.of("hello"), ["hello"])[0])

    def fits(self, pairs: int, deadline: float) -> bool:
        """Whether so many pairs can be scored before the deadline, as far as can be told."""
        if self._clock() + pairs * self._seconds_a_pair <= deadline:
            return True
        self._seconds_a_pair *= DOUBT
        return False

    def rerank(self, conversation: Conversation, places: Sequence[Place]) -> tuple[list[Place], Truncation]:
        """Order by the cross-encoder's score; equal scores stay in the order given.

        Raises:
            InferenceFailed: a score is not finite.
        """
        began = self._clock()
        pairs, truncation = self.scorer.tokenize_pairs(conversation, [place.text for place in places])
        scores = self.scorer.score_pairs(pairs)
        if not np.isfinite(scores).all():
            raise InferenceFailed("a cross-encoder score is not finite")
        self._learn((self._clock() - began) / len(places))
        order = np.argsort(-scores, kind="stable").tolist()
        return [replace(places[at], cross=float(scores[at])) for at in order], truncation

    def _learn(self, seconds: float) -> None:
        known = self._seconds_a_pair
        self._seconds_a_pair = seconds if not known else NEWEST * seconds + (1 - NEWEST) * known
