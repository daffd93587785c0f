"""Which way candidates are looked for, and that each way finds what scoring every one of them finds."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import EVIDENCE
from service_fakes import (
    WORDS,
    WordRanker,
    asked,
    brute_force,
    build_store,
    count_nothing,
    load,
    only_part,
    open_serving,
    pool,
    pool_query,
    rank,
)
from updated import updated

from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.search.scan import Query, product
from polyrank.model.search.scan.gpu import GuardedScan
from polyrank.model.search.scan.plain import PlainScan, Status
from polyrank.model.search.topk import TopK
from polyrank.service.errors import UnknownCandidates
from polyrank.service.live import searchable
from polyrank.service.live.searchable import Opener
from polyrank.service.ranking import retrieval
from polyrank.service.ranking.here import serve
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.values import Ranked, RankRequest, SentCandidate
from polyrank.service.scheduling.stages import Journey

TEXT = "w1 w2 w3 w7 w9"
COUNT = 10_000
KINDS = ["exact", "flat", "hnsw"]

Keep = Callable[[Candidate], bool]


def everything(_candidate: Candidate) -> bool:
    return True


def found(ranked: Ranked) -> list[str | None]:
    return [place.id for place in ranked.places]


def assert_same(ranked: Ranked, expected: list[tuple[str, float]]) -> None:
    assert found(ranked) == [each for each, _ in expected]
    np.testing.assert_allclose([place.score for place in ranked.places], [score for _, score in expected], atol=1e-4)


@pytest.fixture(scope="module", params=[*KINDS, *(f"{kind} with words" for kind in KINDS)])
def serving(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Serving:
    """Sixty candidates, of which some were removed, some changed and some added."""
    root = tmp_path_factory.mktemp("small")
    kind, _, with_words = request.param.partition(" ")
    build_store(root, index=kind, ranker=WordRanker(evidence=EVIDENCE if with_words else None))
    serving = updated(open_serving(root), *pool(8, "new", seed=1), deletes=["c0", "c7", "c14"])
    changed = [Candidate(f"c{n}", f"w{n} w1", {"lang": "en", "even": True}) for n in (3, 30, 59)]
    return updated(serving, *changed, Candidate("new2", "w1 w2 w3", {"n": 5}), deletes=["new0", "c20"])


@pytest.mark.parametrize(("filter_", "limit", "exact", "plans"), [
    (None, 0, False, ("scan", "index", "index")),
    (None, 0, True, ("scan", "scan", "scan")),
    ({"lang": "en"}, 1000, False, ("matches", "matches", "matches")),
    ({"lang": "en"}, 5, False, ("matches", "selector", "selector")),
    ({"lang": "en"}, 5, True, ("matches", "matches", "matches")),
    ({"lang": "xx"}, 0, False, ("matches", "matches", "matches")),
])  # fmt: skip
def test_the_plan(serving: Serving, monkeypatch, filter_: Any, limit: int, exact: bool, plans: tuple[str, ...]) -> None:
    monkeypatch.setattr(retrieval, "FEW_MATCHES", limit)
    ranked = rank(serving, asked(TEXT, top_k=3, filter=filter_, exact=exact))
    assert ranked.plan == plans[KINDS.index(serving.generation.manifest.index.kind)]


def test_a_small_share_is_scanned_however_many_rows_it_has(serving: Serving, monkeypatch) -> None:
    monkeypatch.setattr(retrieval, "FEW_MATCHES", 0)
    asked_for = asked(TEXT, top_k=3, filter={"lang": "en"})
    for share, plan in ((0.01, "selector"), (0.99, "matches")):
        monkeypatch.setattr(retrieval, "FEW_OF_ALL", share)
        if only_part(serving).generation.index is not None:
            assert rank(serving, asked_for).plan == plan


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 10, 1000])
@pytest.mark.parametrize(("filter_", "keep"), [
    (None, everything),
    ({"lang": "en"}, lambda c: c.metadata.get("lang") == "en"),
    ({"even": [True], "n": {"lt": 3}}, lambda c: c.metadata.get("even") is True and c.metadata.get("n", 9) < 3),
    ({"lang": {"exists": False}}, lambda c: "lang" not in c.metadata),
    ({"n": 5}, lambda c: c.metadata.get("n") == 5),
])  # fmt: skip
def test_with_removed_changed_and_added_rows_it_equals_brute_force(
    serving: Serving, monkeypatch, filter_: Any, keep: Keep, limit: int
) -> None:
    monkeypatch.setattr(retrieval, "FEW_MATCHES", limit)
    for top_k in (1, 5, 100):
        for exact in (False, True):
            ranked = rank(serving, asked(TEXT, top_k=top_k, filter=filter_, exact=exact))
            assert_same(ranked, brute_force(serving, TEXT, top_k, keep))
            assert ranked.exact or not exact


def test_exclusion_of_rows_built_added_removed_and_unknown(serving: Serving) -> None:
    every = [each for each, _ in brute_force(serving, TEXT, 100)]
    excluded = (*every[:4], "new2", "c3", "c0", "new0", "nobody", "c3")
    for filter_, keep in ((None, everything), ({"lang": "en"}, lambda c: c.metadata.get("lang") == "en")):
        ranked = rank(serving, asked(TEXT, top_k=10, filter=filter_, exclude_ids=excluded))
        expected = brute_force(serving, TEXT, 10, lambda c, keep=keep: keep(c) and c.id not in excluded)
        assert_same(ranked, expected)


def test_everything_excluded_or_filtered_out_is_an_empty_answer(serving: Serving) -> None:
    every = tuple(each for each, _ in brute_force(serving, TEXT, 100))
    for fields in ({"exclude_ids": every}, {"filter": {"lang": "xx"}}, {"filter": {"n": 5}, "exclude_ids": every}):
        ranked = rank(serving, asked(TEXT, **fields))
        assert (ranked.places, ranked.exact) == ([], True)


def test_only_added_rows_are_left(serving: Serving) -> None:
    alone = updated(serving, deletes=[f"c{n}" for n in range(60)])
    ranked = rank(alone, asked(TEXT, top_k=100))
    assert_same(ranked, brute_force(alone, TEXT, 100))
    assert (len(ranked.places), ranked.exact) == (7, True)
    nothing = updated(alone, deletes=[each for each, _ in brute_force(alone, TEXT, 100)])
    assert (rank(nothing, asked(TEXT)).places, nothing.snapshot.count) == ([], 0)


def test_candidates_by_id_are_those_of_the_snapshot(serving: Serving) -> None:
    ids = ("c1", "c3", "new2", "c0", "new0", "new1", "nobody")
    ranked = rank(serving, asked(TEXT, candidates=tuple(SentCandidate(each, None) for each in ids)))
    assert ranked.missing_ids == ["c0", "new0", "nobody"]
    held = ("c1", "c3", "new1", "new2")
    assert sorted(found(ranked)) == list(held)
    assert_same(ranked, brute_force(serving, TEXT, 100, lambda c: c.id in held))
    places = {place.id: place for place in ranked.places}
    assert (places["c3"].text, places["c3"].metadata) == ("w3 w1", {"lang": "en", "even": True})
    assert (places["new2"].text, places["new2"].metadata, places["new2"].index) == ("w1 w2 w3", {"n": 5}, 2)
    with pytest.raises(UnknownCandidates, match="'c0'"):
        rank(serving, asked(TEXT, candidates=(SentCandidate("c0", None),)))


def test_equal_texts_follow_the_order_in_which_they_came(tmp_path: Path) -> None:
    build_store(tmp_path, [Candidate(f"t{n}", "w1 w2") for n in range(4)], index="flat")
    serving = updated(open_serving(tmp_path), Candidate("a", "w1 w2"), Candidate("t1", "w1 w2", {"new": True}))
    assert found(rank(serving, asked("w1 w2"))) == ["t0", "t2", "t3", "a", "t1"]
    again = updated(serving, Candidate("a", "w1 w2"))
    assert found(rank(again, asked("w1 w2"))) == ["t0", "t2", "t3", "t1", "a"]


def test_an_answer_of_everything_there_is_is_exact(serving: Serving) -> None:
    ranked = rank(serving, asked(TEXT, top_k=100, retrieve_k=100))
    assert len(ranked.places) == serving.snapshot.count
    assert ranked.exact


@pytest.fixture(scope="module", params=[*KINDS, "exact with words", "flat with words"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Serving:
    """So many candidates that a filter can be selective; every tenth was removed, and some were added."""
    rng = np.random.default_rng(0)
    texts = [" ".join(words) for words in rng.choice(WORDS, size=(97, 4))]
    candidates = [Candidate(f"c{n}", texts[n % 97], {"h": n % 100, "rare": n == 7777}) for n in range(COUNT)]
    root = tmp_path_factory.mktemp("large")
    kind, _, with_words = request.param.partition(" ")
    build_store(root, candidates, index=kind, ranker=WordRanker(evidence=EVIDENCE if with_words else None))
    serving = updated(open_serving(root), deletes=[f"c{n}" for n in range(0, COUNT, 10)])
    return updated(serving, *(Candidate(f"a{n}", texts[n], {"h": n, "rare": False}) for n in range(97)))


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 65_000])
@pytest.mark.parametrize("top_k", [10, 100])
@pytest.mark.parametrize(("filter_", "keep"), [
    ({"rare": True}, lambda c: c.metadata["rare"]),
    ({"h": 5}, lambda c: c.metadata["h"] == 5),
    ({"h": {"lt": 3}, "rare": False}, lambda c: c.metadata["h"] < 3),
])  # fmt: skip
def test_a_selective_filter_returns_all_that_is_asked_for(
    large: Serving, monkeypatch, filter_: Any, keep: Keep, top_k: int, limit: int
) -> None:
    monkeypatch.setattr(retrieval, "FEW_MATCHES", limit)
    expected = brute_force(large, TEXT, top_k, keep)
    ranked = rank(large, asked(TEXT, top_k=top_k, filter=filter_))
    assert len(ranked.places) == len(expected) == (1 if filter_.get("rare") else top_k)
    if (ranked.plan, large.generation.manifest.index.kind) != ("selector", "hnsw"):
        assert_same(ranked, expected)
    else:  # which may miss the best, but lets nothing else through
        everyone = dict(brute_force(large, TEXT, COUNT, keep))
        scores = {place.id: place.score for place in ranked.places}
        assert scores == pytest.approx({each: everyone[each] for each in scores if each is not None}, abs=1e-4)


@pytest.mark.slow
def test_in_one_pass_each_gets_its_own_answer(large: Serving) -> None:
    """Of other texts, filters, exclusions and numbers, and at other revisions of the same generation."""
    newer = updated(large, Candidate("z", TEXT, {"h": 5, "rare": False}), deletes=["a1", "c11"])
    excluded = tuple(f"c{n}" for n in range(1, 40))
    cases: list[tuple[Serving, RankRequest, Keep]] = [
        (large, asked(TEXT, top_k=5), everything),
        (newer, asked(TEXT, top_k=20), everything),
        (large, asked("w4 w5", top_k=1), everything),
        (newer, asked(TEXT, top_k=30, exclude_ids=excluded), lambda c: c.id not in excluded),
        (large, asked(TEXT, top_k=7, filter={"h": {"lt": 60}}), lambda c: c.metadata.get("h", 99) < 60),
    ]
    searches = []
    for serving, request, _ in cases:
        [codes] = serving.ranker.encode_contexts([serving.ranker.tokenize_context(request.conversation)[0]])
        exact = pool_query(replace(request, exact=True))
        read = retrieval.read_words(only_part(serving), exact)
        searches.append(retrieval.PoolSearch(only_part(serving), exact, codes, Journey(), read, with_candidates=True))
    found = retrieval.search(searches)
    for search, rows, (serving, request, keep) in zip(searches, found, cases, strict=True):
        best = retrieval.part_hits(search, rows)
        expected = brute_force(serving, request.conversation.turns[0].text, request.top_k, keep)
        assert [each.id for each in best.candidates] == [each for each, _ in expected]
        assert best.bound == -np.inf


def test_what_a_scan_finds_has_the_scores_of_its_vectors_bit_for_bit(large: Serving) -> None:
    scanned = rank(large, asked(TEXT, top_k=200, exact=True))
    ids = tuple(SentCandidate(place.id, None) for place in scanned.places)
    by_vectors = rank(large, asked(TEXT, top_k=200, candidates=ids))
    assert {place.id: place.score for place in by_vectors.places} == {place.id: place.score for place in scanned.places}
    assert (scanned.plan, len(scanned.places)) == ("scan", 200)


@pytest.mark.parametrize(("kind", "fetched"), [("exact", 0), ("flat", 20)])
def test_only_what_an_index_finds_is_scored_by_its_vectors(tmp_path: Path, kind: str, fetched: int) -> None:
    build_store(tmp_path, index=kind)
    counted: Counter[tuple[str, str]] = Counter()
    serving = open_serving(tmp_path, lambda tier, result, count: counted.update({(tier, result): count}))
    assert len(rank(serving, asked(TEXT, top_k=10, retrieve_k=20)).places) == 10
    assert counted["matrix", "hit"] == fetched


def test_only_what_is_scanned_in_bytes_is_shared(large: Serving) -> None:
    def shares(codes: int = 1, **fields: Any) -> bool:
        return retrieval.PoolSearch(
            only_part(large), pool_query(asked(TEXT, **fields)), np.ones((codes, 16), np.float32), Journey()
        ).shares

    assert shares() == shares(32) == (only_part(large).generation.index is None and product.refusal(16) is None)
    assert not shares(33), "a pass has no room for two of these"
    assert not shares(filter={"h": 5}), "each filter is looked through by itself"


def test_a_pool_of_which_little_is_left_returns_all_that_is_asked_for(large: Serving) -> None:
    few = updated(large, deletes=[f"c{n}" for n in range(COUNT) if n % 1000 != 1])
    expected = brute_force(few, TEXT, 107)
    assert len(expected) == 107
    for top_k in (5, 107):
        assert_same(rank(few, asked(TEXT, top_k=top_k)), expected[:top_k])


class FailingScan(PlainScan):
    def top_k(self, queries: Sequence[Query]) -> list[TopK]:
        raise MemoryError("CUDA out of memory")


def test_an_index_is_not_asked_where_a_gpu_scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_store(tmp_path, index="hnsw")
    store, gpu = GenerationStore(tmp_path), Status("gpu", "a fake")

    def served(device: str) -> Serving:
        parts = store.open_parts(store.current() or "")
        return serve(Opener(count_nothing, None, load, device), parts, store.updates.of(parts[0].manifest))

    def plan(device: str) -> str:
        return rank(served(device), asked(TEXT)).plan or ""

    def on_cpu(matrix: Any, _device: str, with_bytes: bool) -> PlainScan:
        assert not with_bytes, "few requests would need them"
        return PlainScan(matrix, 1e3)

    def on_gpu(matrix: Any, _device: str, with_bytes: bool) -> GuardedScan:
        return GuardedScan(PlainScan(matrix, 1e3, gpu), PlainScan(matrix, 1e3))

    def on_failed_gpu(matrix: Any, _device: str, with_bytes: bool) -> GuardedScan:
        return GuardedScan(FailingScan(matrix, 1e3, gpu), PlainScan(matrix, 1e3))

    assert plan("cpu") == "index"
    monkeypatch.setattr(searchable, "prepare", on_cpu)
    assert isinstance(only_part(served("cuda")).scan, PlainScan), "prepared before a request asks for it"
    assert plan("cuda") == "index", "the scan stayed on the CPU"
    assert served("cuda").search_status == ("index", "the generation was built with an index of the kind hnsw", False)
    monkeypatch.setattr(searchable, "prepare", on_gpu)
    assert plan("cuda") == "scan"
    monkeypatch.setattr(searchable, "prepare", on_failed_gpu)
    serving = served("cuda")
    assert [rank(serving, asked(TEXT)).plan for _ in range(4)] == ["scan", "scan", "scan", "index"]


def test_of_searches_that_are_done_together_each_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[list[int]] = []

    def sought(*jobs: int) -> list[Any]:
        part = SimpleNamespace(vectors=SimpleNamespace(are_here=True))
        return [SimpleNamespace(job=job, part=part) for job in jobs]

    def search(searches: Sequence[Any], _threads: int | None) -> list[int]:
        jobs = [each.job for each in searches]
        done.append(jobs)
        if 13 in jobs:
            raise ValueError("13")
        return [2 * job for job in jobs]

    def finish(_search: Any, share: int) -> int:
        if share == 14:
            raise KeyError("7")
        return share

    monkeypatch.setattr(retrieval, "search", search)
    monkeypatch.setattr(retrieval, "part_hits", finish)
    run = retrieval.SearchBatch("a")
    one, refused, two = run(sought(1, 13, 2))
    assert (one, type(refused), two) == (2, ValueError, 4)
    assert done == [[1, 13, 2], [1], [13], [2]]
    one, failed, two = run(sought(1, 7, 2))
    assert (one, type(failed), two) == (2, KeyError, 4)
    assert done[4:] == [[1, 7, 2]], "what cannot be finished has no other done again"
    assert run == retrieval.SearchBatch("a") != retrieval.SearchBatch("b"), "equal ones share a batch"
