"""Retrieval and reranking over a pool against sorting all scores."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fakes import silent
from numpy.typing import NDArray
from tiny import write_checkpoint

import polyrank
from polyrank.model.errors import ModelError
from polyrank.model.evaluation.rankings import DEPTH, Retrieved, rerank, retrieve
from polyrank.model.measures import Ties
from polyrank.model.rankers.networks import CrossRanker, VectorRanker
from polyrank.model.representations import ContextEncoding, Representations
from polyrank.model.search.topk import scores_of
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.sequences import Pairs

POOL = [f"w{n % 40} w{n * 7 % 33} w{n // 40}" for n in range(260)]
CONTEXTS = [Conversation.of([f"w{n} w{n + 1}", f"w{2 * n % 40}"], ["w3"] if n % 2 else []) for n in range(25)]


@pytest.fixture(scope="module")
def rankers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    parent = tmp_path_factory.mktemp("retrieval")
    write_checkpoint(parent, "poly", 0, architecture="poly", n_codes=4, normalize=True, score_scale=5.0)
    write_checkpoint(parent, "bi", 1, architecture="bi", normalize=True, shared_encoder=True)
    write_checkpoint(parent, "cross", 2, architecture="cross")
    return {name: polyrank.load(str(parent / name)) for name in ("poly", "bi", "cross")}


def found_in(
    ranker: Any, conversations: Sequence[Conversation], texts: Sequence[str], right: Sequence[int] = ()
) -> tuple[list[Retrieved], int]:
    """Search a pool in which a text of each context is right; none: no text is."""
    known = [np.array([row]) for row in right] or [np.empty(0, np.int64)] * len(conversations)
    return retrieve(ranker, conversations, texts, known, silent)


def all_scores(ranker: VectorRanker, context: Conversation, texts: Sequence[str]) -> NDArray[np.float32]:
    embeddings = ranker.encode_candidates(ranker.tokenize_candidates(texts)[0])
    [codes] = ranker.encode_contexts([ranker.tokenize_context(context)[0]])
    return scores_of(embeddings, codes)


@pytest.mark.parametrize("name", ["poly", "bi"])
def test_what_is_found_are_the_first_of_all_scores_sorted(rankers: dict[str, Any], name: str) -> None:
    texts = [*POOL, *POOL[:30]]  # equal texts, to be found in the pool's order
    found, _ = found_in(rankers[name], CONTEXTS, texts)
    for context, (best, *_) in zip(CONTEXTS, found, strict=True):
        scores = all_scores(rankers[name], context, texts)
        np.testing.assert_allclose(best.scores, scores[best.rows], rtol=1e-4, atol=1e-5)
        assert len(best.rows) == DEPTH
        assert len(set(best.rows.tolist())) == DEPTH
        assert best.scores[-1] >= np.delete(scores, best.rows).max() - 1e-4
        assert (np.diff(best.scores) <= 0).all()
        equal = np.diff(best.scores) == 0
        assert (np.diff(best.rows)[equal] > 0).all()


@pytest.mark.parametrize("name", ["poly", "bi"])
def test_the_place_of_the_right_text_is_that_among_all_scores(rankers: dict[str, Any], name: str) -> None:
    scores = [all_scores(rankers[name], context, POOL) for context in CONTEXTS]
    right = [int(np.argsort(-own)[(0, 1, 57, 99, 140)[at % 5]]) for at, own in enumerate(scores)]
    found, _ = found_in(rankers[name], CONTEXTS, POOL, right)
    for own, gold, each in zip(scores, right, found, strict=True):
        ties = each.ties(lambda rows, gold=gold: (rows == gold).astype(np.float64))
        ahead, equal = int((own > own[gold] + 1e-4).sum()), int((abs(own - own[gold]) <= 1e-4).sum())
        if ties.first_right is None:
            assert ahead + equal > DEPTH
        else:
            assert ahead <= ties.first_right[0] < min(DEPTH, ahead + equal)


class Constant:
    """Gives every text the same score; with `lengths` one that falls with its letters, so that few texts tie."""

    name, late_rows, evidence = "constant", None, None

    def __init__(self, lengths: bool) -> None:
        self._lengths = lengths

    def tokenize_candidates(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        return [[len(text) if self._lengths else 0, at] for at, text in enumerate(texts)], 0

    def represent_candidates(self, ids: list[list[int]], on_done: Any) -> Representations:
        return Representations(np.array([[-own[0]] for own in ids], np.float32))

    def tokenize_context(self, conversation: Conversation) -> tuple[list[int], None]:
        return [1], None

    def represent_contexts(self, contexts: list[list[int]]) -> list[ContextEncoding]:
        return [ContextEncoding(np.ones((1, 1), np.float32)) for _ in contexts]

    def word_table(self, texts: Sequence[str]) -> None:
        """It has no evidence."""

    def additions(self, conversation: Conversation, table: None) -> None:
        """It has no evidence."""


@pytest.mark.parametrize("lengths", [False, True])
def test_figures_are_those_of_the_whole_pool_where_the_search_ends_within_a_tie(lengths: bool) -> None:
    """Whichever text is right, and also where two are."""
    for right in (*range(0, 260, 13), (3, 259), (0, 200)):
        rows = np.atleast_1d(right)
        [found], _ = retrieve(Constant(lengths), CONTEXTS[:1], POOL, [rows], silent)

        def gains(places: NDArray[np.int64], rows: NDArray[np.int64] = rows) -> NDArray[np.float64]:
            return np.isin(places, rows).astype(np.float64)

        lengths_of = np.array([len(text) for text in POOL])
        whole = Ties.of(-lengths_of * lengths, gains(np.arange(260)))
        ties = found.ties(gains)
        for k in (1, 10, 99, 100):
            assert ties.found(k) == whole.found(k)
            assert ties.right_among(k) == pytest.approx(whole.right_among(k))
            assert ties.gain(k) == pytest.approx(whole.gain(k))
        assert ties.reciprocal(DEPTH) == pytest.approx(whole.reciprocal(DEPTH))


@pytest.mark.parametrize("top_n", [1, 20, 100])
def test_what_a_reranker_did_not_read_ties_behind_it(rankers: dict[str, Any], top_n: int) -> None:
    """Of a constant first stage the right text is read or not; if not, it ties with all others that were not."""
    for right in range(0, 260, 20):
        found, _ = retrieve(Constant(False), CONTEXTS[:1], POOL, [np.array([right])], silent)
        [after] = rerank(rankers["cross"], CONTEXTS[:1], POOL, found, top_n, silent, True)
        ties = after.ties(lambda rows, right=right: (rows == right).astype(np.float64))
        if right in after.best.rows[:top_n]:
            assert ties.found(top_n) == 1
        else:
            assert ties.found(top_n) == 0
            assert ties.found(100) == pytest.approx((100 - top_n) / (260 - top_n))


@pytest.mark.parametrize("top_n", [1, 7, 100])
def test_reranking_orders_the_first_by_the_pairs_and_keeps_the_rest(rankers: dict[str, Any], top_n: int) -> None:
    cross = rankers["cross"]
    found, _ = found_in(rankers["poly"], CONTEXTS, POOL)
    told: list[tuple[str, int, int]] = []
    reranked = rerank(cross, CONTEXTS, POOL, found, top_n, lambda *numbers: told.append(numbers), True)
    assert told == [("pairs", done, 25) for done in range(26)]
    for context, (before, *_), (after, read, *_) in zip(CONTEXTS, found, reranked, strict=True):
        first = before.rows[:top_n]
        scores = cross.score_texts(context, [POOL[row] for row in first], None)
        order = sorted(range(len(first)), key=lambda at: (-scores[at], at))
        assert read == top_n
        assert after.rows.tolist() == [*first[order], *before.rows[top_n:]]
        assert after.scores.tolist() == [*scores[order], *before.scores[top_n:]]


def test_a_small_pool_is_found_whole(rankers: dict[str, Any]) -> None:
    [found], cut = found_in(rankers["bi"], CONTEXTS[:1], [*POOL[:2], "w1 " * 50])
    assert cut == 1
    assert sorted(found.best.rows.tolist()) == [0, 1, 2]
    [reranked] = rerank(rankers["cross"], CONTEXTS[:1], POOL[:3], [found], 20, silent, True)
    assert sorted(reranked.best.rows.tolist()) == [0, 1, 2]


class Damaged(CrossRanker):
    """A Cross-encoder whose scores are all NaN."""

    def __init__(self) -> None:
        self.name, self.evidence = "damaged", None

    def tokenize_pairs(self, conversation: Conversation, texts: Sequence[str]) -> Any:
        return Pairs([[]], [[at] for at in range(len(texts))], [0] * len(texts)), None

    def score_pairs(self, pairs: Pairs) -> NDArray[np.float32]:
        return np.full(len(pairs.owners), np.nan, np.float32)


def test_scores_that_are_no_numbers_are_no_ranking(rankers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = found_in(rankers["bi"], CONTEXTS[:1], POOL[:3])
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
                found_in(rankers["bi"], CONTEXTS[:1], POOL[:3])
