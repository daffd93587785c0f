"""The lexical score counts alike wherever a candidate comes from, and an answer that is called exact is exact."""

import asyncio
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import EVIDENCE
from numpy.typing import NDArray
from service_fakes import (
    WORDS,
    WordCross,
    WordRanker,
    asked,
    brute_force,
    build_store,
    numbered,
    only_part,
    open_serving,
    pool,
    pool_query,
    rank,
    ranking,
    running,
)
from updated import updated

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.generation.words import Words
from polyrank.index_builder.index.retrieval import BestByWords, best_by_words
from polyrank.index_builder.index.retrieval import search as search_index
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.snapshot import Snapshot, WordValues
from polyrank.model.lexical.score import LexicalScore
from polyrank.model.lexical.table import WordTable
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.reading import Steps, finish
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking import retrieval, runtime, sent_candidates
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.rescoring import ListWords, list_words, score_pairs
from polyrank.service.ranking.runtime import Runtime, RuntimeSettings
from polyrank.service.ranking.values import Given, Ranked
from polyrank.service.scheduling.forwards import PairScores
from polyrank.service.scheduling.stages import Journey

TEXT = "w1 w2 w3 ord-7 ord-9"


def said(seed: int) -> str:
    """A context of random words, the last one rare."""
    rng = np.random.default_rng(seed)
    return f"{' '.join(rng.choice(WORDS, size=4))} ord-{rng.integers(500)}"


@pytest.fixture(scope="module", params=["exact", "flat"])
def serving(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Serving:
    """A thousand candidates, some of them removed or added, whose words count."""
    root = tmp_path_factory.mktemp("words")
    build_store(root, numbered(pool(1000)), index=request.param, ranker=WordRanker(evidence=EVIDENCE))
    new = [Candidate("same", TEXT), Candidate("other", "w1 w1 and a word that nobody knows")]
    return updated(open_serving(root), *new, deletes=["c0", "c1"])


def test_a_candidate_scores_alike_by_a_scan_by_its_id_and_as_a_text(serving: Serving) -> None:
    scanned = rank(serving, asked(TEXT, top_k=2000, exact=True))
    scores = [(place.text, place.score, place.lexical) for place in scanned.places]
    assert {"same", "other"} <= {place.id for place in scanned.places}
    ids, texts = [Given(place.id, None) for place in scanned.places], [Given(None, text) for text, _, _ in scores]
    mixed = [given if at % 3 else Given(f"t{at}", texts[at].text) for at, given in enumerate(ids)]
    for sent in (ids, texts, mixed):  # the whole pool is a list that shares no more than the pool does
        ranked = rank(serving, asked(TEXT, top_k=2000, candidates=tuple(sent)))
        assert ranked.turns_share == 1
        assert sorted((place.text, place.score, place.lexical) for place in ranked.places) == sorted(scores)


def test_words_of_turns_count_less_in_a_list_that_was_chosen_by_them(serving: Serving) -> None:
    alike = [Given(None, text) for text in ("ord-7 is first", "ord-9 is second", "ord-7 is third")]
    [of_pool], *lists = (
        rank(serving, asked(TEXT, candidates=tuple(sent))).places
        for sent in ([Given("same", None)], [*alike, Given("same", None)], [*alike, Given("x", TEXT)])
    )
    with_id, with_text = ({place.text: place for place in places} for places in lists)
    assert {text: place.score for text, place in with_id.items()} == {t: p.score for t, p in with_text.items()}
    assert with_id[TEXT].vector == pytest.approx(of_pool.vector, abs=1e-4)
    assert of_pool.lexical is not None
    assert with_id[TEXT].lexical is not None
    assert with_id[TEXT].lexical < of_pool.lexical
    drawn = rank(serving, asked(TEXT, candidates=(Given(None, "w77"), Given(None, "w78"), Given("x", TEXT))))
    assert {place.text: place.lexical for place in drawn.places}[TEXT] == of_pool.lexical


def test_what_was_said_already_comes_last(serving: Serving) -> None:
    ranked = rank(serving, asked(TEXT, top_k=2000, exact=True))
    assert [place.lexical is not None and place.lexical < -3 for place in ranked.places if place.id == "same"] == [True]


def test_without_evidence_words_do_not_count(tmp_path: Path) -> None:
    build_store(tmp_path)
    assert {place.lexical for place in rank(open_serving(tmp_path), asked(TEXT)).places} == {None}


def test_the_best_by_words_are_not_chosen_on_the_search_thread(serving: Serving, monkeypatch) -> None:
    choosing, searching = [], []

    def chosen(*given: Any) -> BestByWords:
        choosing.append(threading.current_thread().name)
        return best_by_words(*given)

    def searched(*given: Any, **named: Any) -> list[retrieval.Found]:
        searching.append(threading.current_thread().name)
        return search(*given, **named)

    search = retrieval.search
    monkeypatch.setattr(retrieval, "best_by_words", chosen)
    monkeypatch.setattr(retrieval, "search", searched)
    assert rank(serving, asked(TEXT)).plan == ("index" if only_part(serving).generation.index else "scan")
    assert len(searching) == 1
    assert len(choosing) == (only_part(serving).generation.index is not None)
    assert not set(choosing) & set(searching)


def test_an_index_that_words_were_not_chosen_for_is_not_searched(serving: Serving) -> None:
    request = asked(TEXT)
    [codes] = serving.ranker.encode_contexts([serving.ranker.tokenize_context(request.conversation)[0]])
    query = pool_query(request)
    read = retrieval.read_words(only_part(serving), replace(query, exact=True))  # as where a GPU scans, and fails later
    assert read[2] is None
    [found] = retrieval.search([retrieval.PoolSearch(only_part(serving), query, codes, Journey(), read)])
    assert (found.plan, found.bound) == ("scan", -np.inf)


def test_requests_find_what_a_build_measures(tmp_path: Path) -> None:
    mostly_words = replace(EVIDENCE, late_weight=0.1)
    build_store(tmp_path, pool(2000), index="flat", ranker=WordRanker(evidence=mostly_words))
    serving = open_serving(tmp_path)
    generation = only_part(serving).generation
    assert generation.index is not None
    for seed in range(20):
        request = asked(" ".join(np.random.default_rng(seed).choice(WORDS, size=4)), top_k=100)
        [codes] = serving.ranker.encode_contexts([serving.ranker.tokenize_context(request.conversation)[0]])
        additions = generation.words.evidence.additions(request.conversation, generation.words.table)
        found = search_index(generation.index, generation.embeddings.matrix, codes, 100, None, additions)
        ranked = rank(serving, request)
        assert ranked.plan == "index"
        assert [place.score for place in ranked.places] == found.scores.tolist()


@pytest.mark.slow
def test_what_an_index_finds_among_those_that_a_filter_lets_through_equals_brute_force(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval, "FEW_MATCHES", 0)
    monkeypatch.setattr(retrieval, "FEW_OF_ALL", 0)
    certified = 0
    for seed in range(6):
        text = said(seed)
        lang = ("en", "de", "fr")[seed % 3]
        right = brute_force(serving, text, 400, lambda each, lang=lang: each.metadata.get("lang") == lang)
        for retrieve_k in (5, 150, 400):
            ranked = rank(serving, asked(text, top_k=3, retrieve_k=retrieve_k, filter={"lang": lang}))
            assert ranked.plan == ("matches" if only_part(serving).scans_all else "selector")
            assert all((place.id, place.score) in right for place in ranked.places)
            if ranked.exact:
                certified += 1
                assert [(place.id, place.score) for place in ranked.places] == right[:3]
    assert certified >= 6


async def test_few_requests_at_a_time_hold_what_words_say_for_every_row(serving: Serving, monkeypatch) -> None:
    held: list[weakref.ref[NDArray[np.float32]]] = []
    most = 0

    def counted(*given: Any) -> WordValues | None:
        nonlocal most
        words = word_values(*given)
        held.append(weakref.ref(words.own.values))
        most = max(most, sum(each() is not None for each in held))
        return words

    word_values = Snapshot.word_values
    monkeypatch.setattr(Snapshot, "word_values", counted)
    with running() as held_up:
        await asyncio.gather(*(ranking(held_up, serving, asked(f"w1 w{n % 40} {n}", exact=True)) for n in range(150)))
    assert len(held) == 150
    assert 1 <= most <= runtime.MOST_WORDS + runtime.CANDIDATE_THREADS


def test_ids_beside_texts_need_nothing_of_the_pools_words(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*given: Any) -> WordValues | None:
        raise AssertionError("words of the whole pool were read")

    same, text = Given("same", None), Given(None, "ord-9 it is")
    before = rank(serving, asked(TEXT, candidates=(same,))).places
    monkeypatch.setattr(Snapshot, "word_values", read)
    assert len(rank(serving, asked(TEXT, candidates=(same, text))).places) == 2
    with pytest.raises(AssertionError, match="whole pool"):
        rank(serving, asked(TEXT, candidates=(same,)))
    monkeypatch.undo()
    excluded = asked(TEXT, candidates=(same, Given("x", TEXT)), exclude_ids=("x",))
    assert [replace(place, index=0) for place in rank(serving, excluded).places] == before, "a text that is left out"


def test_requests_whose_texts_take_long_do_not_hold_the_room_of_others(serving: Serving, monkeypatch) -> None:
    begun, is_over = threading.Semaphore(0), threading.Event()

    def endless(words: Words, conversation: Conversation, texts: Sequence[str]) -> Steps[ListWords]:
        begun.release()
        while not is_over.is_set():
            yield
        return (yield from list_words(words, conversation, texts))

    async def together() -> list[Ranked]:
        shared = Runtime(RuntimeSettings(), Metrics())
        mixed = (Given("same", None), Given(None, TEXT))
        try:
            slow = [
                asyncio.ensure_future(ranking(shared, serving, asked(f"w{n}", candidates=mixed)))
                for n in range(runtime.MOST_WORDS)
            ]
            for _ in slow:
                await asyncio.to_thread(begun.acquire)
            quick = await asyncio.wait_for(ranking(shared, serving, asked(TEXT)), 30)
            is_over.set()
            return [quick, *await asyncio.gather(*slow)]
        finally:
            is_over.set()
            shared.close()

    monkeypatch.setattr(sent_candidates, "list_words", endless)
    quick, *others = asyncio.run(together())
    assert len(quick.places) == 10
    assert {len(ranked.places) for ranked in others} == {2}


# --- the Cross-encoder


class CrossOfWords(WordCross):
    """A cross-encoder with evidence of its own."""

    evidence = LexicalScore(replace(EVIDENCE, late_weight=0.5, weights={"length": 2.0, "said": -9.0}))


def test_what_is_reranked_counts_words_by_the_rerankers_weights(serving: Serving) -> None:
    before = rank(serving, asked(TEXT, top_k=30))
    reranked = rank(serving, asked(TEXT, top_k=30, top_n=20), CrossOfWords())
    words, scorer = serving.generation.words, CrossOfWords()
    assert words is not None
    first = [place.text for place in before.places[:20]]
    pairs = scorer.score_pairs(finish(scorer.pair_steps(Conversation.of(TEXT), first))[0])
    values = scorer.evidence.values(Conversation.of(TEXT), WordTable.of(first, words.table.statistics))
    assert values.any()
    expected = [np.float32(0.5 * float(pair) + float(value)) for pair, value in zip(pairs, values, strict=True)]
    order = np.argsort(-np.array(expected), kind="stable").tolist()
    assert [(place.id, place.cross) for place in reranked.places[:20]] == [
        (before.places[at].id, expected[at]) for at in order
    ]
    parts = {place.id: (place.score, place.lexical) for place in before.places}
    assert {place.id: (place.score, place.lexical) for place in reranked.places} == parts, "of the first stage"
    assert all(place.cross is None for place in reranked.places[20:])
    assert reranked.seconds["rerank"] > 0


@pytest.mark.parametrize("is_lexical", [False, True])
def test_words_of_turns_count_as_little_for_the_reranker_whatever_ranked_before(
    serving: Serving, tmp_path: Path, is_lexical: bool
) -> None:
    class Crowded(WordCross):
        evidence = LexicalScore(EVIDENCE)

    if is_lexical:
        build(polyrank.load("lexical"), numbered(pool(1000)), tmp_path)
        serving = open_serving(tmp_path, load=polyrank.load)
    texts = ["ord-7 is first", "ord-9 is second", "ord-7 is third", "w4 w5"]
    candidates = tuple(Given(None, text) for text in texts)
    placed = rank(serving, asked(TEXT, candidates=candidates, top_n=4), Crowded()).places
    words, scorer = serving.generation.words, Crowded()
    table = WordTable.of(texts, words.table.statistics)
    share = scorer.evidence.turns_share(Conversation.of(TEXT), [table])
    assert share < 0.9
    pairs = scorer.score_pairs(finish(scorer.pair_steps(Conversation.of(TEXT), texts))[0])
    expected = scorer.evidence.scores(pairs, scorer.evidence.sharing(share).values(Conversation.of(TEXT), table))
    assert [place.cross for place in sorted(placed, key=lambda place: place.index or 0)] == expected.tolist()
    own = words.evidence.values(Conversation.of(TEXT), table).tolist()
    assert ([place.lexical for place in sorted(placed, key=lambda place: place.index or 0)] == own) == is_lexical


def test_pairs_alone_count_where_the_generation_holds_no_words(tmp_path: Path) -> None:
    build_store(tmp_path)
    serving = open_serving(tmp_path)
    one, other = (rank(serving, asked(TEXT, top_n=20), scorer) for scorer in (CrossOfWords(), WordCross()))
    assert one.places == other.places
    assert not one.degraded


def test_texts_that_are_scored_as_pairs_count_words_as_the_generation_has_them(serving: Serving) -> None:
    texts, conversation = ["w1 w2", "w9 w40", TEXT], Conversation.of(TEXT)

    async def scored(words: Words | None) -> PairScores:
        with running(CrossOfWords()) as held:
            return await score_pairs(held, words, conversation, texts, Journey())

    words = serving.generation.words
    with_words, alone = asyncio.run(scored(words)), asyncio.run(scored(None))
    values = CrossOfWords.evidence.values(conversation, WordTable.of(texts, words.table.statistics))
    assert with_words.scores.tolist() == CrossOfWords.evidence.scores(alone.scores, values).tolist()
    assert with_words.scores.tolist() != alone.scores.tolist()
    assert (with_words.tokens, with_words.truncation) == (alone.tokens, alone.truncation)
    assert with_words.seconds["rerank"] > 0


def test_a_request_of_texts_alone_needs_no_room(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "MOST_WORDS", 0)
    soon = time.monotonic() + 10
    assert len(rank(serving, asked(TEXT, candidates=(Given(None, TEXT),)), deadline=soon).places) == 1
