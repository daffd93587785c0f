"""Whether there is time for a second look, as learned from the earlier ones."""

import numpy as np
import pytest
from service_fakes import WordCross

from model import Conversation
from service.errors import InferenceFailed
from service.reranking import Reranker
from service.values import Place


class Slow(WordCross):
    """Takes a second a pair, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0

    def score_pairs(self, pairs):
        self.now += len(pairs)
        return super().score_pairs(pairs)


PLACES = [Place("a", "w1", 3.0), Place("b", "w2", 2.0), Place("c", "w2 w3", 1.0), Place("d", "w1 w3", 0.0)]


def test_equal_scores_keep_their_order() -> None:
    places, _ = Reranker(WordCross()).rerank(Conversation.of("w1 w2 w3"), PLACES)
    assert [place.id for place in places] == ["c", "d", "a", "b"]
    assert [place.cross for place in places] == [2, 2, 1, 1]


def test_the_cost_of_a_pair_is_learned() -> None:
    scorer = Slow()
    reranker = Reranker(scorer, lambda: scorer.now)
    assert reranker.fits(1000, deadline=0.0), "nothing is known yet"
    reranker.rerank(Conversation.of("w1"), PLACES)
    assert reranker.fits(4, deadline=scorer.now + 4.1)
    assert not reranker.fits(4, deadline=scorer.now + 3.9)


def test_one_slow_moment_does_not_end_reranking_for_good() -> None:
    scorer = Slow()
    reranker = Reranker(scorer, lambda: scorer.now)
    reranker.rerank(Conversation.of("w1"), PLACES)
    skipped = 0
    while not reranker.fits(1, deadline=scorer.now + 0.1):
        skipped += 1
    assert 10 < skipped < 100


def test_a_score_that_is_not_finite_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = WordCross()
    monkeypatch.setattr(scorer, "score_pairs", lambda pairs: np.array([np.nan] * 4))
    with pytest.raises(InferenceFailed):
        Reranker(scorer).rerank(Conversation.of("w1"), PLACES)
