"""Groups equal those that a plain loop over the whole ranking takes, whatever their field holds."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import EVIDENCE
from service_fakes import DIM, WordCross, WordRanker, asked, build_store, open_serving, pool, rank
from shards_in_process import ServedParts

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.generation.filters import matching_places
from polyrank.index_builder.pool.rows import Candidate
from polyrank.model.representations import LateRows
from polyrank.model.text.assembly import Conversation
from polyrank.service.ranking import selection
from polyrank.service.ranking.selection import Filling, selected
from polyrank.service.ranking.values import Grouping, RankedCandidate, RankRequest, SentCandidate

VALUES = ["a", "b", "c", "d", "e", 1, 1.0, True, None, "common", "common", "common", ["a", "b"], {"no": "value"}, []]


def groups_of(metadata: dict[str, Any]) -> set[str]:
    value = metadata.get("g", {})
    several = value if isinstance(value, list) else [value]
    scalars = [one for one in several if not isinstance(one, dict | list)]
    return {repr(float(one) if isinstance(one, int) and not isinstance(one, bool) else one) for one in scalars}


def plain_loop(places: Sequence[RankedCandidate], request: RankRequest) -> list[str]:
    """Go through a whole ranking from the top."""
    taken, counts, opened = [], Counter[str](), 0
    for place in places:
        if request.score_threshold is not None and place.placed_by < request.score_threshold:
            continue
        groups = groups_of(place.metadata)
        is_new = not any(counts[group] for group in groups)
        if any(counts[group] >= request.grouping.limit for group in groups) or (is_new and opened == request.top_k):
            continue
        opened += is_new
        counts.update(groups)
        taken.append(place.id or place.text)
    return taken


def random_cell(drawing: random.Random, values: Sequence[Any]) -> dict[str, Any]:
    if drawing.random() < 0.05:
        return {}
    value = drawing.choice(values)
    return {"g": [drawing.choice(values) for _ in range(drawing.randrange(4))] if drawing.random() < 0.4 else value}


@pytest.mark.parametrize("seed", range(4))
def test_the_searches_find_all_that_a_plain_loop_takes(seed: int) -> None:
    drawing = random.Random(seed)
    for _ in range(1000):
        values = drawing.sample(VALUES, drawing.randint(3, len(VALUES)))
        metadata = [random_cell(drawing, values) for _ in range(drawing.randint(1, 120))]
        scores = [float(drawing.randrange(30)) for _ in metadata]
        found = [RankedCandidate(f"c{n}", "t", scores[n], metadata[n], row=n) for n in range(len(scores))]
        whole = sorted(found, key=lambda place: -place.score)
        request = asked(
            top_k=drawing.randint(1, 4), grouping=Grouping("g", drawing.randint(1, 5)),
            top_n=drawing.choice([None, None, 3, 12]), score_threshold=drawing.choice([None, None, 3.0, 10.0]),
        )  # fmt: skip
        read = [replace(place, cross=30 * drawing.random()) for place in whole[: request.top_n or 0]]
        read.sort(key=lambda place: -place.placed_by)

        first = whole[: request.depth]
        filling = Filling(request, first)
        filling.places = read + first[len(read) :]
        while (more := filling.next_search()) is not None:
            assert more.filter is not None
            matching = set(matching_places(metadata, more.filter).tolist())
            filling.add([place for place in whole if place.row in matching][: more.depth])
            assert filling.round < 25, "each search looks further"
        taken = [place.id for place in selected(request, filling.places)]
        assert taken == plain_loop(read + whole[len(read) :], request)


def test_a_list_brings_a_group_that_no_search_has_looked_for(tmp_path: Path) -> None:
    groups: list[Any] = ["A", *["Z"] * 9, ["A", "B"], "B", *["Z"] * 21]
    by_score = rank_of_pool(tmp_path, [Candidate(f"x{n}", f"w{n}") for n in range(len(groups))])
    rows = [Candidate(each, text, {"g": group}) for (each, text), group in zip(by_score, groups, strict=True)]
    build_store(tmp_path, rows)
    request = asked(top_k=1, exact=True, grouping=Grouping("g", 2))
    ranked = rank(open_serving(tmp_path), request)
    assert [place.id for place in ranked.places] == [by_score[at][0] for at in (0, 10, 11)]
    assert ranked.exact


def rank_of_pool(root: Path, candidates: Sequence[Candidate]) -> list[tuple[str, str]]:
    build_store(root, candidates)
    return [(place.id or "", place.text) for place in rank(open_serving(root), asked(top_k=len(candidates))).places]


def random_pool(seed: int, count: int) -> list[Candidate]:
    drawing = random.Random(seed)
    return [
        replace(each, metadata={**each.metadata, **random_cell(drawing, VALUES)}) for each in pool(count, seed=seed)
    ]


def random_requests(seed: int, count: int) -> list[RankRequest]:
    drawing = random.Random(seed)
    return [
        asked(
            " ".join(f"w{drawing.randrange(40)}" for _ in range(4)),
            top_k=drawing.choice([1, 1, 2, 3, 6]),
            grouping=Grouping("g", drawing.choice([1, 2, 3, 7])),
            exact=drawing.random() < 0.5,
            filter=drawing.choice([None, None, {"even": True}, {"g": ["a", "b", "common"]}, {"$not": {"g": "common"}}]),
            exclude_ids=drawing.choice([(), ("c1", "c7", "c30")]),
            top_n=drawing.choice([None, None, 5, 20]),
            score_threshold=drawing.choice([None, None, None, 0.5]),
        )
        for _ in range(count)
    ]


KINDS = {
    "vectors": WordRanker(),
    "words": WordRanker(evidence=EVIDENCE),
    "second stage": WordRanker(late=LateRows(DIM, None)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", ["exact", "flat", "hnsw"])
def test_whatever_is_called_exact_is_what_a_plain_loop_takes(tmp_path: Path, kind: str, index: str) -> None:
    build_store(tmp_path, random_pool(1, 400), ranker=KINDS[kind], index=index)
    serving, exact, scorer = open_serving(tmp_path), 0, WordCross()
    for request in random_requests(2, 25):
        whole = rank(serving, replace(request, top_k=400, exact=True, grouping=None, score_threshold=None), scorer)
        ranked = rank(serving, request, scorer)
        if ranked.exact:
            assert [place.id for place in ranked.places] == plain_loop(whole.places, request), request
        elif index == "exact" and kind != "second stage":
            assert "groups_incomplete" in ranked.degraded
        exact += ranked.exact
    assert exact >= 8


@pytest.mark.parametrize("kind", ["vectors", "words"])
@pytest.mark.parametrize(("most_rounds", "most_depth"), [(8, 10_000), (3, 10_000), (8, 20)])
def test_so_is_it_in_parts_and_where_the_search_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, most_rounds: int, most_depth: int
) -> None:
    monkeypatch.setattr(selection, "MOST_ROUNDS", most_rounds)
    monkeypatch.setattr(selection, "MOST_DEPTH", most_depth)
    candidates, incomplete = random_pool(3, 300), 0
    build_store(tmp_path / "whole", candidates, ranker=KINDS[kind])
    build(KINDS[kind], candidates, tmp_path / "parts", BuildOptions(index="exact"), parts=3)
    serving, served = open_serving(tmp_path / "whole"), ServedParts(tmp_path / "parts")
    try:
        requests = [replace(request, top_n=None) for request in random_requests(4, 25)]
        for request, in_parts in zip(requests, served.rank(*requests), strict=True):
            whole = rank(serving, replace(request, top_k=300, grouping=None, score_threshold=None))
            for ranked in (rank(serving, request), in_parts):
                assert ranked.exact == ("groups_incomplete" not in ranked.degraded)
                assert not ranked.exact or [each.id for each in ranked.places] == plain_loop(whole.places, request)
                incomplete += not ranked.exact
    finally:
        served.close()
    assert (incomplete > 0) == (most_depth < 100 or most_rounds < 8)


def test_candidates_that_were_sent_are_grouped_by_their_lists(tmp_path: Path) -> None:
    build_store(tmp_path, random_pool(5, 200))
    serving = open_serving(tmp_path)
    by_id = (SentCandidate(f"c{n}", None) for n in range(0, 200, 2))
    sent = (*by_id, SentCandidate(None, "w1 w2"), SentCandidate("own", "w3 w9"))
    for request in random_requests(6, 15):
        asked_for = replace(request, candidates=sent, filter=None, exact=False, exclude_ids=())
        whole = rank(serving, replace(asked_for, top_k=200, grouping=None, score_threshold=None), WordCross())
        ranked = rank(serving, asked_for, WordCross())
        assert [place.id or place.text for place in ranked.places] == plain_loop(whole.places, request)


def test_the_reranker_chooses_the_groups_that_are_filled(tmp_path: Path) -> None:
    build_store(tmp_path, random_pool(7, 200))
    serving, other = open_serving(tmp_path), 0
    for text in ("w1 w2 w3", "w5 w9", "w7 w8 w30", "w11 w12"):
        request = replace(asked(text, top_k=1, top_n=10, grouping=Grouping("g", 4)), conversation=Conversation.of(text))
        whole = rank(serving, replace(request, top_k=200, grouping=None), WordCross())
        ranked = rank(serving, request, WordCross())
        assert [place.id for place in ranked.places] == plain_loop(whole.places, request)
        first = rank(serving, replace(request, top_n=None)).places[0]
        other += first.id != ranked.places[0].id
    assert other, "the reranker puts another candidate first"
