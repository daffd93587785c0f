"""Retrieval and reranking over a pool against sorting all scores."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny import write_checkpoint

import polyrank
from polyrank.model.errors import ModelError
from polyrank.model.evaluation.retrieval import DEPTH, rank_in, rerank, retrieve
from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.rankers.late import LateRanker
from polyrank.model.representations import ContextEncoding, Representations
from polyrank.model.search.topk import TopK, scores_of
from polyrank.model.text.assembly import Conversation

POOL = [f"w{n % 40} w{n * 7 % 33} w{n // 40}" for n in range(260)]
CONTEXTS = [Conversation.of([f"w{n} w{n + 1}", f"w{2 * n % 40}"], ["w3"] if n % 2 else []) for n in range(25)]


@pytest.fixture(scope="module")
def rankers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    parent = tmp_path_factory.mktemp("retrieval")
    write_checkpoint(parent, "poly", 0, architecture="poly", n_codes=4, normalize=True, score_scale=5.0)
    write_checkpoint(parent, "bi", 1, architecture="bi", normalize=True, shared_encoder=True)
    write_checkpoint(parent, "cross", 2, architecture="cross")
    return {name: polyrank.load(str(parent / name)) for name in ("poly", "bi", "cross")}


def silent(_stage: str, _done: int, _total: int) -> None:
    pass


def all_scores(ranker: LateRanker, context: Conversation, texts: Sequence[str]) -> NDArray[np.float32]:
    embeddings = ranker.encode_candidates(ranker.tokenize_candidates(texts)[0])
    [codes] = ranker.encode_contexts([ranker.tokenize_context(context)[0]])
    return scores_of(embeddings, codes)


@pytest.mark.parametrize("name", ["poly", "bi"])
def test_what_is_found_are_the_first_of_all_scores_sorted(rankers: dict[str, Any], name: str) -> None:
    texts = [*POOL, *POOL[:30]]  # equal texts, to be found in the pool's order
    found, _ = retrieve(rankers[name], CONTEXTS, texts, silent)
    for context, best in zip(CONTEXTS, found, strict=True):
        scores = all_scores(rankers[name], context, texts)
        np.testing.assert_allclose(best.scores, scores[best.rows], rtol=1e-4, atol=1e-5)
        assert len(best.rows) == DEPTH
        assert len(set(best.rows.tolist())) == DEPTH
        assert best.scores[-1] >= np.delete(scores, best.rows).max() - 1e-4
        assert (np.diff(best.scores) <= 0).all()
        equal = np.diff(best.scores) == 0
        assert (np.diff(best.rows)[equal] > 0).all()


@pytest.mark.parametrize("name", ["poly", "bi"])
def test_ranks_are_one_more_than_those_ahead(rankers: dict[str, Any], name: str) -> None:
    found, _ = retrieve(rankers[name], CONTEXTS, POOL, silent)
    for at, (context, best) in enumerate(zip(CONTEXTS, found, strict=True)):
        scores = all_scores(rankers[name], context, POOL)
        order = sorted(range(len(POOL)), key=lambda row: (-round(float(scores[row]), 4), row))
        gold = order[(0, 1, 57, 99, 140)[at % 5]]
        ahead, equal = int((scores > scores[gold] + 1e-4).sum()), int((abs(scores - scores[gold]) <= 1e-4).sum())
        rank = rank_in(best, gold)
        if ahead + equal <= DEPTH:
            assert ahead < rank <= ahead + equal
        elif ahead >= DEPTH:
            assert rank == 0


@pytest.mark.parametrize("top_n", [1, 7, 100])
def test_reranking_orders_the_first_by_the_pairs_and_keeps_the_rest(rankers: dict[str, Any], top_n: int) -> None:
    cross = rankers["cross"]
    found, _ = retrieve(rankers["poly"], CONTEXTS, POOL, silent)
    told: list[tuple[str, int, int]] = []
    reranked = rerank(cross, CONTEXTS, POOL, found, top_n, lambda *numbers: told.append(numbers), True)
    assert told == [("pairs", done, 25) for done in range(1, 26)]
    for context, before, after in zip(CONTEXTS, found, reranked, strict=True):
        first = before.rows[:top_n]
        pairs, _ = cross.tokenize_pairs(context, [POOL[row] for row in first])
        scores = cross.score_pairs(pairs)
        order = sorted(range(len(first)), key=lambda at: (-scores[at], at))
        assert after.rows.tolist() == [*first[order], *before.rows[top_n:]]
        assert after.scores.tolist() == [*scores[order], *before.scores[top_n:]]


def test_a_small_pool_is_found_whole(rankers: dict[str, Any]) -> None:
    [found], cut = retrieve(rankers["bi"], CONTEXTS[:1], [*POOL[:2], "w1 " * 50], silent)
    assert cut == 1
    assert sorted(found.rows.tolist()) == [0, 1, 2]
    [reranked] = rerank(rankers["cross"], CONTEXTS[:1], POOL[:3], [found], 20, silent, True)
    assert sorted(reranked.rows.tolist()) == [0, 1, 2]


def test_a_row_that_was_not_found_has_no_rank() -> None:
    found = TopK(np.array([4, 9]), np.array([1.0, 0.5], np.float32))
    assert [rank_in(found, row) for row in (4, 9, 5)] == [1, 2, 0]


class Damaged(CrossRanker):
    """A Cross-encoder whose scores are all NaN."""

    def __init__(self) -> None:
        self.name, self.evidence = "damaged", None

    def tokenize_pairs(self, conversation: Conversation, texts: Sequence[str]) -> Any:
        return texts, None

    def score_pairs(self, pairs: Any) -> NDArray[np.float32]:
        return np.full(len(pairs), np.nan, np.float32)


def test_scores_that_are_no_numbers_are_no_ranking(rankers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = retrieve(rankers["bi"], CONTEXTS[:1], POOL[:3], silent)
    with pytest.raises(ModelError, match="damaged gives scores that are not finite"):
        rerank(Damaged(), CONTEXTS[:1], POOL[:3], found, 2, silent, True)
    dim = rankers["bi"].dim
    for method, broken in (
        ("represent_candidates", Representations(np.full((3, dim), np.nan, np.float32))),
        ("represent_contexts", [ContextEncoding(np.full((1, dim), np.inf, np.float32))]),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(rankers["bi"], method, lambda *_, broken=broken: broken)
            with pytest.raises(ModelError, match="are not finite"):
                retrieve(rankers["bi"], CONTEXTS[:1], POOL[:3], silent)
