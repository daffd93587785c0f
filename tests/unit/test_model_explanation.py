"""Whether tokens matter as an explanation says: chat-poly over the bundled conversations."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import polyrank
from polyrank.model.explanation import relative, without
from polyrank.model.rankers.networks import VectorRanker
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.reading import finish

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONVERSATIONS, REPLIES = 20, 4
SHARE = 4  # a quarter of the tokens is removed
TIMES = 3.0

Order = NDArray[np.int64]


class Asked:
    """A conversation with the right reply first, and what the explanation says of its tokens."""

    def __init__(self, ranker: VectorRanker, row: dict[str, object]) -> None:
        self._ranker, explainer = ranker, ranker.explainer
        placed, _ = finish(explainer.context_steps(Conversation.of(row["context"], row.get("persona", ()))))
        self._ids = [token.id for token in placed]
        self.places = np.array([at for at, token in enumerate(placed) if token.start is not None])
        others = [reply for reply in row["candidates"] if reply != row["response"]]
        replies = [row["response"], *others[: REPLIES - 1]]
        self._made = ranker.represent_candidates(ranker.tokenize_candidates(replies)[0])
        [sums], [context] = explainer.context_sums([self._ids]), ranker.represent_contexts([self._ids])
        told = [explainer.explain(context, sums, self._made.take([at]), None, []).tokens for at in range(REPLIES)]
        tokens = np.stack([each for each in told if each is not None])
        self.scores = ranker.late_scores(context, self._made)
        self.explained = tokens.sum(axis=1)
        self.relative = relative(tokens, None)[0][self.places]

    def drops(self, orders: list[Order]) -> list[float]:
        """What the right reply loses against the others where the first tokens of an order are removed."""
        count = max(1, round(len(self.places) / SHARE))
        contexts = [without(self._ids, order[:count].tolist()) for order in orders]
        scores = [self._ranker.late_scores(each, self._made) for each in self._ranker.represent_contexts(contexts)]
        return [_margin(self.scores) - _margin(each) for each in scores]


def _margin(scores: NDArray[np.float32]) -> float:
    return float(scores[0] - scores[1:].mean())


@pytest.fixture(scope="module")
def asked() -> list[Asked]:
    ranker = polyrank.load(ROOT / "checkpoints" / "chat-poly")
    assert isinstance(ranker, VectorRanker)
    lines = (ROOT / "examples" / "support" / "conversations.jsonl").read_text().splitlines()
    return [Asked(ranker, json.loads(line)) for line in lines[:CONVERSATIONS]]


def test_tokens_that_speak_for_a_reply_cost_it_more_than_random_ones(asked: list[Asked]) -> None:
    rng = np.random.default_rng(5)
    drops = []
    for each in asked:
        told = each.places[np.argsort(-each.relative)]
        shuffled = each.places[np.argsort(-rng.permutation(each.relative))]
        drops.append(each.drops([told, shuffled, *(rng.permutation(each.places) for _ in range(3))]))
    by_told, by_shuffled, *by_random = np.mean(drops, axis=0)
    assert by_told >= TIMES * np.mean(by_random)
    assert by_shuffled < TIMES * np.mean(by_random), "the order matters, not that tokens are removed"


def test_contributions_sum_to_the_scores_that_are_served(asked: list[Asked]) -> None:
    for each in asked:
        np.testing.assert_allclose(each.explained, each.scores, rtol=0, atol=1e-5)
