"""Thresholds and groups: what is answered of what is ranked, and how groups are filled."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_fakes import WordCross, asked, brute_force, build_store, only_part, open_serving, pool, rank, ranking

from polyrank.index_builder.pool.rows import Candidate
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking import selection
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.runtime import Runtime, RuntimeSettings
from polyrank.service.ranking.stages import Journey
from polyrank.service.ranking.values import Given, Grouping, Ranked, RankedCandidate, RankRequest

TEXT = "w1 w2 w3 w7 w9"


def skewed(count: int, seed: int) -> list[Candidate]:
    """A pool of which most candidates are of one topic, and some of none."""
    rng = np.random.default_rng(seed)
    topics: Sequence[Any] = ["big"] * 30 + ["a", "b", "c", "d", 1, 1.0, True, None, {"no": 1}, ["a", "x"], "none"]
    drawn = [topics[at] for at in rng.integers(len(topics), size=count)]
    return [
        replace(each, metadata={"n": at % 7} if topic == "none" else {"n": at % 7, "topic": topic})
        for at, (each, topic) in enumerate(zip(pool(count, seed=seed), drawn, strict=True))
    ]


def test_groups_are_made_by_fields_inside_objects_as_well() -> None:
    rows = [{"at": {"city": "Oslo"}}, {"at.city": "Oslo"}, {"at": [{"city": "Moss"}, {"city": "Oslo"}]}, {"at": "Oslo"}]
    groups = selection.Groups(Grouping("at.city", 1), 10)
    assert [groups.admit(row) for row in rows] == [True, False, False, True]


def values(metadata: dict[str, Any]) -> set[str]:
    """The groups of a candidate, as texts: 1 and 1.0 are one value, true is another."""
    if "topic" not in metadata or isinstance(metadata["topic"], dict):
        return set()
    topic = metadata["topic"]
    several = topic if isinstance(topic, list) else [topic]
    return {repr(float(one) if isinstance(one, int) and not isinstance(one, bool) else one) for one in several}


def expected(serving: Serving, top_k: int, limit: int) -> list[str]:
    """Every candidate in its order, taken if there is room for it."""
    stored = {each.id: each for each in only_part(serving).snapshot.candidates(only_part(serving).snapshot.all_rows)}
    taken, counts, opened = [], Counter[str](), 0
    for candidate_id, _ in brute_force(serving, TEXT, len(stored)):
        groups = values(stored[candidate_id].metadata)
        is_new = not any(counts[group] for group in groups)
        if any(counts[group] >= limit for group in groups) or (is_new and opened == top_k):
            continue
        opened += is_new
        counts.update(groups)
        taken.append(candidate_id)
    return taken


@pytest.mark.slow
@pytest.mark.parametrize("index", ["exact", "hnsw"])
@pytest.mark.parametrize(("top_k", "limit"), [(1, 1), (3, 1), (5, 1), (3, 4), (20, 2), (2, 60)])
def test_groups_equal_those_of_the_whole_ranking(tmp_path: Path, index: str, top_k: int, limit: int) -> None:
    for seed in (0, 1):
        build_store(tmp_path, skewed(400, seed), index=index)
        serving = open_serving(tmp_path)
        request = asked(TEXT, top_k=top_k, retrieve_k=400, grouping=Grouping("topic", limit))
        ranked = rank(serving, request)
        assert [place.id for place in ranked.places] == expected(serving, top_k, limit)
        assert "groups_incomplete" not in ranked.degraded


def test_groups_heed_a_filter(tmp_path: Path) -> None:
    build_store(tmp_path, skewed(400, 0))
    ranked = rank(open_serving(tmp_path), asked(TEXT, top_k=4, filter={"n": [1, 2]}, grouping=Grouping("topic")))
    assert len(ranked.places) == 4
    assert {place.metadata["n"] for place in ranked.places} <= {1, 2}


def test_more_groups_than_there_are_is_an_answer_of_all(tmp_path: Path) -> None:
    build_store(tmp_path)
    ranked = rank(open_serving(tmp_path), asked(TEXT, top_k=50, grouping=Grouping("lang", 2)))
    assert Counter(place.metadata["lang"] for place in ranked.places) == {"en": 2, "de": 2, "fr": 2}


def test_an_unknown_field_makes_each_candidate_a_group(tmp_path: Path) -> None:
    build_store(tmp_path)
    serving = open_serving(tmp_path)
    grouped = rank(serving, asked(TEXT, top_k=9, grouping=Grouping("nothing")))
    assert [place.id for place in grouped.places] == [each for each, _ in brute_force(serving, TEXT, 9)]


def test_candidates_sent_by_their_ids_are_grouped(tmp_path: Path) -> None:
    build_store(tmp_path)
    sent = (*(Given(f"c{n}", None) for n in range(60)), Given(None, TEXT))
    ranked = rank(open_serving(tmp_path), asked(TEXT, top_k=4, candidates=sent, grouping=Grouping("lang")))
    assert len(ranked.places) == 4  # three languages, and the text, which has none
    assert TEXT in [place.text for place in ranked.places]


def test_a_threshold_leaves_out_what_is_below_it(tmp_path: Path) -> None:
    build_store(tmp_path)
    serving = open_serving(tmp_path)
    everything = rank(serving, asked(TEXT, top_k=60)).places
    threshold = everything[4].score
    above = rank(serving, asked(TEXT, top_k=60, score_threshold=threshold)).places
    assert above == [place for place in everything if place.score >= threshold]
    assert len(rank(serving, asked(TEXT, top_k=2, score_threshold=threshold)).places) == 2
    assert rank(serving, asked(TEXT, score_threshold=1e9)).places == []


def test_threshold_and_groups_act_on_the_last_score(tmp_path: Path) -> None:
    build_store(tmp_path)
    serving = open_serving(tmp_path)
    reranked = rank(serving, asked(TEXT, top_k=60, top_n=60), WordCross()).places
    kept = rank(serving, asked(TEXT, top_k=60, top_n=60, score_threshold=2.0), WordCross()).places
    assert kept == [place for place in reranked if place.cross is not None and place.cross >= 2]
    assert 0 < len(kept) < len(reranked)
    grouped = rank(serving, asked(TEXT, top_k=3, top_n=60, grouping=Grouping("lang")), WordCross()).places
    best = {place.metadata["lang"]: place for place in reversed(reranked)}
    assert sorted(grouped, key=str) == sorted(best.values(), key=str)


def test_what_time_and_rounds_do_not_allow_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_store(tmp_path, skewed(400, 0))
    serving = open_serving(tmp_path)
    monkeypatch.setattr(selection, "MOST_ROUNDS", 1)
    ranked = rank(serving, asked(TEXT, top_k=8, grouping=Grouping("topic")), deadline=time.monotonic() + 60)
    assert ranked.degraded == ["groups_incomplete"]
    assert 0 < len(ranked.places) < 8
    assert not ranked.exact


def test_no_search_is_added_to_a_full_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_store(tmp_path, skewed(400, 0))
    serving, next_search = open_serving(tmp_path), selection.Filling.next_search

    async def scene() -> Ranked:
        runtime, others = Runtime(RuntimeSettings(max_queue_tokens=1000), Metrics()), ExitStack()

        def when_others_have_come(filling: selection.Filling) -> RankRequest | None:
            others.enter_context(runtime.admission.admitted(Journey(), 2000))
            return next_search(filling)

        monkeypatch.setattr(selection.Filling, "next_search", when_others_have_come)
        try:
            with others:
                return await ranking(runtime, serving, asked(TEXT, top_k=8, grouping=Grouping("topic")))
        finally:
            runtime.close()

    ranked = asyncio.run(scene())
    assert ranked.degraded == ["groups_incomplete"]
    assert 0 < len(ranked.places) < 8


def placed(*topics: Any, start: int = 0) -> list[RankedCandidate]:
    """Candidates of some topics, best first; each has a score of its own."""
    return [RankedCandidate(f"c{n}", "t", -n, {"topic": topic}, row=n) for n, topic in enumerate(topics, start)]


def test_each_search_leaves_out_what_is_full() -> None:
    request = asked(top_k=2, grouping=Grouping("topic", 2), filter={"n": 1})
    filling = selection.Filling(request, placed("a", "a", "a", "a"))
    more = filling.next_search()
    assert more is not None
    assert more.filter == {"$and": [{"n": 1}, {"$not": {"topic": ["a"]}}]}
    assert (more.depth, more.grouping) == (8, None)
    filling.add(placed("b", *"cdefghi", start=4))
    last = filling.next_search()
    assert last is not None
    assert last.filter == {"$and": [{"n": 1}, {"topic": ["b"]}, {"$not": {"topic": ["a"]}}]}
    filling.add([])
    assert filling.next_search() is None, "the pool holds no more"


def test_a_group_that_a_list_brings_is_searched_for() -> None:
    filling = selection.Filling(asked(top_k=1, grouping=Grouping("topic", 3)), placed("a", "z", "z"))
    assert (more := filling.next_search()) is not None
    assert more.filter == {"$and": [{"topic": ["a"]}]}
    filling.add(placed("a", start=0) + placed(["a", "b"], start=9))
    assert (more := filling.next_search()) is not None
    assert more.filter == {"$and": [{"topic": ["a", "b"]}]}
    filling.add(placed("a", start=0) + placed("b", start=5) + placed(["a", "b"], "b", start=9))
    assert filling.next_search() is None
    taken = selection.selected(asked(top_k=1, grouping=Grouping("topic", 3)), filling.places)
    assert [place.id for place in taken] == ["c0", "c9", "c10"], "c5 came before its group was there"
