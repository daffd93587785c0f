"""The second stage: the same scores wherever its rows are, and what an answer says where it was left out."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import EVIDENCE
from service_fakes import (
    DIM,
    WordRanker,
    asked,
    build_store,
    count_nothing,
    load,
    only_part,
    open_serving,
    pool,
    rank,
    ranking,
    running,
    word_additions,
)
from updated import LiveStore
from waiting import until

from polyrank.index_builder.building.compaction import compact
from polyrank.index_builder.errors import GenerationCorrupt
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.redis_client import connect
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.vectors.local import LATE_FILE, MATRIX_FILE, rounded_all
from polyrank.model.representations import LateRows
from polyrank.model.text.assembly import Conversation
from polyrank.service.caching import redis_server
from polyrank.service.caching.vectors import Caches
from polyrank.service.errors import TooManyForExact
from polyrank.service.live.searchable import Opener
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking import costs, engine, rescoring
from polyrank.service.ranking.here import serve
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.rescoring import LateScores
from polyrank.service.ranking.values import Given, Grouping, Ranked
from polyrank.service.scheduling import stages
from polyrank.service.settings import Settings

TEXT = "w1 w2 w3"
POOL = pool(60)
RAGGED = LateRows(DIM, None)


@pytest.fixture(params=[(LateRows(DIM, 2), None), (RAGGED, None), (RAGGED, EVIDENCE)], ids=["fixed", "ragged", "words"])
def ranker(request: pytest.FixtureRequest) -> WordRanker:
    """A model with a second stage; the last one also counts words."""
    late, evidence = request.param
    return WordRanker(late=late, evidence=evidence)


@pytest.fixture
def serving(tmp_path: Path, ranker: WordRanker) -> Serving:
    build_store(tmp_path, POOL, ranker=ranker)
    return open_serving(tmp_path)


@pytest.fixture
def ragged(tmp_path: Path) -> Serving:
    build_store(tmp_path, POOL, ranker=WordRanker(late=RAGGED))
    return open_serving(tmp_path)


def expected(serving: Serving, keep: Callable[[Candidate], bool] = lambda _: True) -> dict[str, float]:
    """Every candidate scored by itself, best first, ties by row."""
    ranker, rows = serving.ranker, only_part(serving).snapshot.matching({})
    [context] = ranker.represent_context_batch([WordRanker().tokenize_context(Conversation.of(TEXT))[0]])
    candidates = only_part(serving).snapshot.candidates(rows)
    tokens, _ = ranker.tokenize_candidates([each.text for each in candidates])
    made = [rounded_all(ranker.represent_candidate_batch([each]), "float16") for each in tokens]
    late = np.concatenate([ranker.late_scores(context, each) for each in made])
    additions = word_additions(serving, TEXT, rows)
    scores = late if additions is None else additions.to(late)
    order = np.argsort(-scores, kind="stable").tolist()
    return {candidates[at].id: float(scores[at]) for at in order if keep(candidates[at])}


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests wait for Redis, however slow the machine is."""
    monkeypatch.setattr(redis_server, "BUDGET_SECONDS", 30.0)


def assert_same(ranked: Ranked, wanted: dict[str, float]) -> None:
    assert ranked.degraded == []
    assert [place.id for place in ranked.places] == list(wanted)[: len(ranked.places)]
    scores = [place.score for place in ranked.places]
    assert scores == pytest.approx([wanted[str(place.id)] for place in ranked.places], abs=1e-4)


def test_stored_inline_and_by_id_give_the_same(serving: Serving) -> None:
    wanted = expected(serving)
    stored = rank(serving, asked(TEXT, top_k=60))
    assert_same(stored, wanted)
    assert (stored.exact, len(stored.places)) == (True, 60)

    inline = rank(serving, asked(TEXT, top_k=60, candidates=tuple(Given(each.id, each.text) for each in POOL)))
    by_id = rank(serving, asked(TEXT, top_k=60, candidates=tuple(Given(each.id, None) for each in POOL)))
    half = [Given(each.id, each.text if n % 2 else None) for n, each in enumerate(POOL)]
    mixed = rank(serving, asked(TEXT, top_k=60, candidates=tuple(half)))
    for ranked in (inline, by_id, mixed):
        assert_same(ranked, wanted)
        assert ranked.exact
    with_words = serving.generation.words is not None
    assert all((place.lexical is not None) == with_words for place in [*stored.places, *mixed.places])


def test_it_makes_no_encoder_call(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = expected(serving)
    for name in ("encode_candidates", "encode_candidate_batch", "represent_candidates", "represent_candidate_batch"):
        monkeypatch.setattr(serving.ranker, name, lambda *_: pytest.fail("encoded"))
    assert_same(rank(serving, asked(TEXT, top_k=60)), wanted)


@pytest.mark.parametrize("index", ["exact", "hnsw"])
def test_only_the_best_of_the_first_stage_are_scored(tmp_path: Path, index: str) -> None:
    ranker = WordRanker(late=RAGGED)
    build_store(tmp_path, pool(300), ranker=ranker, index=index)
    serving = open_serving(tmp_path)
    wanted = expected(serving)
    plain = WordRanker()
    build_store(tmp_path / "plain", pool(300), ranker=plain, index=index)
    first = rank(open_serving(tmp_path / "plain"), asked(TEXT, top_k=20))
    some = rank(serving, asked(TEXT, top_k=10, retrieve_k=20))
    kept = {place.id for place in first.places}
    assert_same(some, {each: score for each, score in wanted.items() if each in kept})
    assert not some.exact
    whole = rank(serving, asked(TEXT, top_k=10, retrieve_k=20, exact=True))
    assert_same(whole, wanted)
    assert whole.exact


def test_filters_exclusions_and_groups_hold(serving: Serving) -> None:
    wanted = expected(serving, lambda each: each.metadata["lang"] == "en" and each.id != "c3")
    assert_same(rank(serving, asked(TEXT, top_k=60, filter={"lang": "en"}, exclude_ids=("c3",))), wanted)
    grouped = rank(serving, asked(TEXT, top_k=3, grouping=Grouping("lang")))
    best = {}
    for each, score in expected(serving).items():
        best.setdefault(POOL[int(each[1:])].metadata["lang"], (each, score))
    assert [place.id for place in grouped.places] == [each for each, _ in best.values()]


def test_redis_and_replicas_give_the_same(tmp_path: Path, ranker: WordRanker, redis_url: str) -> None:
    generation = build_store(tmp_path, POOL, ranker=ranker, redis_url=redis_url)
    wanted = expected(open_serving(tmp_path))
    path = tmp_path / "generations" / generation
    for missing in ([], [LATE_FILE], [MATRIX_FILE, LATE_FILE]):
        for name in missing:
            (path / name).unlink(missing_ok=True)
        with closing(LiveStore(tmp_path, redis_url=redis_url)) as here:
            assert_same(rank(here.serving, asked(TEXT, top_k=60)), wanted)
            here.upsert(Candidate("added", TEXT))
            here.delete("added")
            assert_same(rank(here.serving, asked(TEXT, top_k=60)), wanted)


def test_rows_that_redis_lost_or_that_are_damaged_come_from_elsewhere(tmp_path, ranker: WordRanker, redis_url) -> None:
    generation = build_store(tmp_path, POOL, ranker=ranker, redis_url=redis_url)
    wanted = expected(open_serving(tmp_path))
    for has_file in (True, False):
        if not has_file:
            (tmp_path / "generations" / generation / LATE_FILE).unlink()
        with closing(connect(redis_url, 5)) as client:
            client.delete(f"pe:{{{generation}}}:r:c1")
            client.setrange(f"pe:{{{generation}}}:r:c2", 20, b"damage")
        with closing(LiveStore(tmp_path, redis_url=redis_url)) as here:
            assert_same(rank(here.serving, asked(TEXT, top_k=60)), wanted)


@pytest.mark.parametrize("lost", ["all", "redis"])
def test_a_replica_that_cannot_have_the_rows_answers_by_the_first_stage(tmp_path, redis_process, lost: str) -> None:
    generation = build_store(tmp_path, POOL, ranker=WordRanker(late=RAGGED), redis_url=redis_process.url)
    (tmp_path / "generations" / generation / LATE_FILE).unlink()
    wanted = expected(open_replica(tmp_path))
    by_id = tuple(Given(each.id, None) for each in POOL)
    with closing(LiveStore(tmp_path, redis_url=redis_process.url)) as here:
        if lost == "all":
            with redis_process.client() as client:
                client.flushall()
        else:
            redis_process.kill()
        for request in (asked(TEXT), asked(TEXT, candidates=by_id))[: 1 if lost == "all" else 2]:
            ranked = rank(here.serving, request)
            assert set(ranked.degraded) == {"late_failed", "cache_unavailable"}
            assert (len(ranked.places), ranked.exact) == (10, False)
        if lost == "all":  # each request makes some of the rows anew
            until(lambda: not rank(here.serving, asked(TEXT)).degraded)  # they are written in the background
            assert_same(rank(here.serving, asked(TEXT, top_k=60)), wanted)
        here.upsert(Candidate("c1", POOL[1].text))


def open_replica(root: Path) -> Serving:
    """The active generation, of which the rows are not on the disk."""
    store = GenerationStore(root, needs_matrix=False)
    parts = store.open_parts(str(store.current()))
    return serve(Opener(count_nothing, None, load), parts, store.updates.of(parts[0].manifest))


def test_updates_compaction_and_rollback_keep_the_scores(tmp_path: Path, ranker: WordRanker) -> None:
    build_store(tmp_path, POOL, ranker=ranker)
    with closing(LiveStore(tmp_path)) as here:
        here.upsert(Candidate("c7", "w1 w2"), Candidate("new", "w3 w3 w9"))
        here.delete("c9")
        here.upsert(Candidate("c7", "w1 w2", {"n": 1}), Candidate("c8", "w2"))  # the first text stays as it is
        wanted = expected(here.serving)
        assert_same(rank(here.serving, asked(TEXT, top_k=61)), wanted)
        compacted = compact(tmp_path).generation
        here.live.follow_current()
        assert here.serving.generation.id == compacted
        if ranker.evidence is not None:  # a compaction counts words anew
            wanted = expected(here.serving)
        assert_same(rank(here.serving, asked(TEXT, top_k=61)), wanted)
        build_store(tmp_path, pool(5), ranker=WordRanker())
        here.live.follow_current()
        assert rank(here.serving, asked(TEXT)).seconds["late"] == 0
        here.live.rollback()
        assert_same(rank(here.serving, asked(TEXT, top_k=61)), wanted)


def test_texts_are_kept_with_their_rows(tmp_path: Path, ranker: WordRanker, redis_url: str) -> None:
    build_store(tmp_path, POOL, ranker=ranker)
    settings = Settings(store=tmp_path, redis_url=redis_url, vector_cache_mb=8)
    sent = asked(TEXT, top_k=60, candidates=tuple(Given(each.id, each.text) for each in POOL))
    caches = Caches(settings, Metrics())
    serving = open_serving(tmp_path, caches=caches)
    wanted = expected(serving)
    assert_same(rank(serving, sent), wanted)
    serving.ranker.represent_candidate_batch = lambda *_: pytest.fail("encoded")
    assert_same(rank(serving, sent), wanted)  # from memory
    caches.close()
    caches.server._writer.shutdown(wait=True)
    others = Caches(settings, Metrics())
    other = open_serving(tmp_path, caches=others)
    other.ranker.represent_candidate_batch = lambda *_: pytest.fail("encoded")
    assert_same(rank(other, sent), wanted)  # from Redis
    others.close()


@pytest.mark.parametrize("sends", [False, True])
def test_too_little_time_leaves_the_first_stage(ragged: Serving, monkeypatch: pytest.MonkeyPatch, sends: bool) -> None:
    candidates = tuple(Given(each.id, each.text) for each in POOL) if sends else None
    plain = rank(ragged, asked(TEXT, candidates=candidates))

    with running() as runtime:
        monkeypatch.setattr(runtime.forwards.scheduler, "predict", lambda lane, _: 9.0 if lane == "late" else 0.0)
        ranked = asyncio.run(ranking(runtime, ragged, asked(TEXT, candidates=candidates), time.monotonic() + 5))
    assert ranked.degraded == ["late_skipped_deadline"]
    assert not ranked.exact
    assert [place.id for place in ranked.places] != [place.id for place in plain.places]
    ragged.ranker.late_rows = ragged.generation.manifest.late
    codes = WordRanker().encode_contexts([WordRanker().tokenize_context(Conversation.of(TEXT))[0]])[0]
    assert max(place.score for place in ranked.places) <= float(np.linalg.norm(codes, axis=1).max()) + 1e-4


async def test_a_slow_second_stage_is_left_when_the_time_is_over(
    ragged: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    monkeypatch.setattr(stages, "ANSWER_SECONDS", 3.0)  # a busy machine may take more than usual for the rest
    monkeypatch.setattr(ragged.ranker, "late_scores", lambda *_: let_go.wait(60))
    with running() as runtime:
        try:
            ranked = await ranking(runtime, ragged, asked(TEXT), time.monotonic() + 5)
        finally:
            let_go.set()
    assert ranked.degraded == ["late_skipped_deadline"]
    assert len(ranked.places) == 10


def test_a_second_stage_that_fails_leaves_the_first(ragged: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    for failing in (lambda *_: 1 / 0, lambda *_: np.full(60, np.nan)):
        monkeypatch.setattr(ragged.ranker, "late_scores", failing)
        ranked = rank(ragged, asked(TEXT))
        assert (ranked.degraded, ranked.exact, len(ranked.places)) == (["late_failed"], False, 10)


@pytest.mark.parametrize("failing", [1, 2])
def test_scores_of_two_stages_are_never_mixed(ragged: Serving, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """One of two searches does without the second stage: its scores do not compare with the other's."""
    plain, calls = rescoring.second_stage, iter(range(1, 9))

    async def failing_once(*asked: Any) -> LateScores:
        return await plain(*asked) if next(calls) != failing else LateScores(None, ["late_failed"])

    monkeypatch.setattr(engine, "second_stage", failing_once)
    ranked = rank(ragged, asked(TEXT, top_k=2, grouping=Grouping("lang", 15)))
    assert next(calls) == 3, "there was a second search"
    assert ranked.degraded == [*(["late_failed"] if failing == 1 else []), "groups_incomplete"]
    wanted = expected(ragged)
    same = [place.score == pytest.approx(wanted[str(place.id)], abs=1e-4) for place in ranked.places]
    assert all(same) if failing == 2 else not any(same)


def test_exact_is_refused_where_it_would_take_too_long(ragged: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "MOST_EXACT_TOKENS", 8)
    most = costs.most_exact(ragged.ranker, Conversation.of(TEXT))
    assert 40 < most < 60
    with pytest.raises(TooManyForExact, match=f"would score 60 candidates, and {most} are the most here"):
        rank(ragged, asked(TEXT, exact=True))
    assert rank(ragged, asked(TEXT, exact=True, filter={"lang": "en"})).exact
    assert rank(ragged, asked(TEXT)).degraded == []


def test_many_are_scored_part_by_part(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = expected(serving)
    monkeypatch.setattr(rescoring, "AT_ONCE", 7)
    assert_same(rank(serving, asked(TEXT, top_k=60)), wanted)


def test_it_is_priced_for_admission(ragged: Serving) -> None:
    def tokens(**fields: Any) -> int:
        return costs.search_tokens(asked(TEXT, **fields), ragged.ranker, 1000) - costs.TOKENS_A_REQUEST

    assert tokens() == 200 * RAGGED.usual_count // 100
    assert tokens(retrieve_k=5000) == tokens(exact=True) == 1000 * RAGGED.usual_count // 100
    assert tokens(candidates=tuple(Given(None, "x") for _ in range(50))) == 50 * RAGGED.usual_count // 100
    assert tokens(top_k=600) == tokens(retrieve_k=600)
    ragged.ranker.late_rows = None
    assert tokens() == 0


def test_a_generation_without_the_rows_of_its_model_is_refused(tmp_path: Path) -> None:
    build_store(tmp_path, POOL, ranker=WordRanker(late=RAGGED))

    def other(path: str) -> WordRanker:
        loaded: WordRanker = load(path)
        loaded.late_rows = LateRows(DIM, 2)
        return loaded

    with pytest.raises(GenerationCorrupt, match="does not hold what its model keeps for a second stage"):
        open_serving(tmp_path, load=other)
