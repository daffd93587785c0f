"""What is answered of what is ranked: thresholds, groups and how they fill, and whether the first is an answer."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from service_fakes import WordCross, WordRanker, asked, brute_force, build_store, open_serving, pool, rank, ranking

from polyrank.index_builder.pool.rows import Candidate
from polyrank.model.config import CalibrationConfig
from polyrank.service.errors import NotCalibrated
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking import selection
from polyrank.service.ranking.near_equal import Distinct
from polyrank.service.ranking.runtime import Runtime, RuntimeSettings
from polyrank.service.ranking.selection import Line, decided, line_of, relevance
from polyrank.service.ranking.values import Decision, Grouping, Ranked, RankedCandidate, RankRequest, SentCandidate
from polyrank.service.scheduling.stages import Journey

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


@pytest.mark.parametrize("index", ["exact", "hnsw"])
def test_the_best_of_near_equal_texts_is_answered_and_others_fill_the_places(tmp_path: Path, index: str) -> None:
    """Of 400 candidates each text is there up to twenty times, in other letters."""
    several = [
        replace(each, id=f"{each.id}-{n}", text=each.text.upper() + "!" * n) for n in range(8) for each in pool(50)
    ]
    build_store(tmp_path, several, index=index)
    serving = open_serving(tmp_path)
    stored = {each.id: each.text for each in several}
    order = [candidate_id for candidate_id, _ in brute_force(serving, TEXT, len(stored))]
    distinct = Distinct()
    best = [candidate_id for candidate_id in order if distinct.admit(stored[candidate_id])]
    for top_k in (1, 5, 20):
        ranked = rank(serving, asked(TEXT, top_k=top_k, retrieve_k=400, collapse=True))
        assert [place.id for place in ranked.places] == best[:top_k]
        assert ranked.degraded == []
    ranked = rank(serving, asked(TEXT, top_k=300, retrieve_k=400, collapse=True))
    assert [place.id for place in ranked.places] == best
    sent = tuple(SentCandidate(None, stored[each]) for each in order)
    ranked = rank(serving, asked(TEXT, top_k=5, candidates=sent, collapse=True))
    assert [place.text for place in ranked.places] == [stored[each] for each in best[:5]]


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
    assert more.filter == {"$and": [{"n": 1}, {"$not": {"topic": ["a"]}}]}
    assert (more.depth, more.grouping) == (8, None)
    filling.add(placed("b", *"cdefghi", start=4))
    last = filling.next_search()
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


LINE = CalibrationConfig(prior=0.1, slope=0.5, intercept=-2.0, alone_slope=0.25, alone_intercept=1.0)


class CalibratedRanker(WordRanker):
    calibration = LINE


class CalibratedCross(WordCross):
    calibration = LINE


def sigmoid(value: float) -> float:
    return float(1 / (1 + np.exp(-value)))


def test_relevance_keeps_the_order_of_neighbouring_float32() -> None:
    scores = np.array([-20.0, -16.0, -1.0, 1e-3, 3.0, 12.0, 17.0, 20.0], np.float32)
    pairs = relevance(np.stack([scores, np.nextafter(scores, np.float32(np.inf))]))
    assert (pairs[0] < pairs[1]).all()
    assert ((pairs > 0) & (pairs < 1)).all()


def test_relevance_is_the_sigmoid_and_of_each_score_alone() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(scale=10, size=200).astype(np.float32)
    expected = [1 / (1 + np.exp(-float(score))) for score in scores]
    assert relevance(scores).tolist() == pytest.approx(expected, rel=1e-12)
    assert relevance(scores[:1])[0] == relevance(scores)[0]


def test_relevance_never_overflows() -> None:
    assert relevance(np.array([-1e30, 1e30, -800.0], np.float32)).tolist() == [0.0, 1.0, 0.0]


def test_words_that_do_not_count_have_a_line_of_their_own() -> None:
    assert line_of(WordCross()) == (1.0, 0.0)
    assert line_of(CalibratedCross()) == Line(0.5, -2.0)
    assert line_of(CalibratedCross(), counts_words=False) == Line(0.25, 1.0)


def ranked(*scores: tuple[float, float | None], **fields: object) -> Ranked:
    """A ranking of these scores, each with that of the cross-encoder."""
    places = [RankedCandidate(f"c{at}", "w1", score, cross=cross) for at, (score, cross) in enumerate(scores)]
    return Ranked(places=places, exact=True, looked_at=len(places), **fields)


def test_the_threshold_itself_is_enough() -> None:
    found, ranker = ranked((4.0, None), (3.0, None)), CalibratedRanker()
    assert decided(0.5, found, ranker, None, True, {}) == Decision(True, 0.5, 0.5)
    above = float(np.nextafter(0.5, 1))
    assert decided(above, found, ranker, None, True, {}) == Decision(False, 0.5, above)


def test_the_model_that_placed_the_first_result_says_it() -> None:
    read, unread = ranked((9.0, 4.0), (1.0, 2.0)), ranked((6.0, None))
    for words, expected in ((True, 0.5), (False, sigmoid(2.0))):
        told = decided(0.6, read, WordRanker(), CalibratedCross(), words, {})
        assert told == Decision(expected >= 0.6, pytest.approx(expected, rel=1e-12), 0.6)
    told = decided(0.6, unread, CalibratedRanker(), CalibratedCross(), False, {})
    assert told == Decision(True, pytest.approx(sigmoid(1.0), rel=1e-12), 0.6)


@pytest.mark.parametrize(("found", "ranker"), [
    (ranked(), CalibratedRanker()),
    (ranked((9.0, None), degraded=["rerank_skipped_deadline"]), WordRanker()),
    (ranked((9.0, None), degraded=["late_failed"]), CalibratedRanker()),
], ids=["no result", "the reranker was skipped", "the second stage failed"])  # fmt: skip
def test_what_is_not_known_is_no_answer(found: Ranked, ranker: WordRanker) -> None:
    assert decided(0.001, found, ranker, CalibratedCross(), True, {}) == (False, None, 0.001, None)


def test_the_languages_are_those_of_the_model_that_placed_the_first_result() -> None:
    class German(CalibratedCross):
        languages = ("de",)

    class English(CalibratedRanker):
        languages = ("en",)

    read, unread, seen = ranked((9.0, 4.0)), ranked((9.0, None)), {"de": 7}
    for found, known in ((read, True), (unread, False)):
        told = decided(0.2, found, English(), German(), True, seen)
        assert (told.answer, told.probability is not None) == (known, known)
        assert told.reason == (None if known else "language")


def test_a_skipped_second_stage_does_not_matter_to_the_reranker() -> None:
    found = ranked((9.0, 4.0), degraded=["late_failed"])
    assert decided(0.5, found, CalibratedRanker(), CalibratedCross(), True, {}) == (True, 0.5, 0.5, None)


def test_the_results_stay_as_they_are(tmp_path: Path) -> None:
    build_store(tmp_path, pool(40), ranker=CalibratedRanker())
    serving = open_serving(tmp_path, load=lambda _: CalibratedRanker())
    plain = rank(serving, asked(top_k=5))
    for threshold in (0.001, 1.0):
        told = rank(serving, asked(top_k=5, answer_if=threshold))
        assert told.places == plain.places
        expected = sigmoid(0.5 * plain.places[0].score - 2.0)
        assert told.decision == Decision(expected >= threshold, pytest.approx(expected, rel=1e-12), threshold)
    kept_out = rank(serving, asked(score_threshold=plain.places[0].score + 1, answer_if=0.001))
    assert (kept_out.places, kept_out.decision) == ([], Decision(False, None, 0.001))
    assert plain.decision is None


def test_a_model_without_calibration_is_refused_before_it_is_asked(tmp_path: Path) -> None:
    def encode() -> None:
        raise AssertionError("nothing is encoded for a request that is refused")

    build_store(tmp_path, pool(5))
    serving = open_serving(tmp_path)
    serving.ranker.on_encode = encode
    with pytest.raises(NotCalibrated, match=r"the model words has no calibration.*and build again with the result"):
        rank(serving, asked(answer_if=0.5))
    with pytest.raises(NotCalibrated, match=r"the reranker overlap has no calibration.*and start the server with the"):
        rank(serving, asked(answer_if=0.5, top_n=3), WordCross())


def test_texts_that_begin_alike_are_compared_with_each_other_once() -> None:
    def seconds(texts: list[str]) -> float:
        distinct, begun = Distinct(), time.process_time()
        assert all(map(distinct.admit, texts))
        return time.process_time() - begun

    draw = Random(3)
    names = ["".join(draw.choices("abcdefghij", k=12)) for _ in range(2040)]
    short = ["".join(draw.choices("abcdefghij", k=5)) for _ in range(500)]
    ends = [draw.sample(short, 60) for _ in range(150)]
    alike = [" ".join([*names[:40], *end]) for end in ends]
    different = [" ".join([*draw.sample(names, 40), *end]) for end in ends]
    turns = [(seconds(alike), seconds(different)) for _ in range(3)]
    # Where each pair was compared for each word of its beginning, it took ten times as long.
    assert min(first for first, _ in turns) < 4 * min(second for _, second in turns)
