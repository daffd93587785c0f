"""Answers of a pool that is cut into parts equal those of the same pool in one piece, to the bit."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import EVIDENCE
from hypothesis import given, settings
from hypothesis import strategies as st
from service_fakes import DIM, WordRanker, asked, build_store, numbered, open_serving, pool, rank
from shards_in_process import ServedParts

from polyrank.index_builder.building.compaction import move
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.model.representations import LateRows
from polyrank.model.text.assembly import Conversation
from polyrank.service.ranking.engine import merged
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.values import Grouping, Hits, Ranked, RankRequest, SentCandidate

KINDS = {
    "vectors": WordRanker(),
    "words": WordRanker(evidence=EVIDENCE),
    "words, second stage": WordRanker(evidence=EVIDENCE, late=LateRows(DIM, None)),
}
# Few words and many candidates, so that texts occur twice and scores tie.
POOL = [*pool(150), *(replace(each, id=f"again {each.id}") for each in pool(60)), *numbered(pool(100, "n", seed=3))]
TEXTS = ["w1 w2 w3", "w5", "w7 w7 ord-3 w2", "nothing known"]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def whole(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Serving:
    root = tmp_path_factory.mktemp("whole")
    build_store(root, POOL, ranker=KINDS[kind])
    return open_serving(root)


@pytest.fixture(scope="module")
def cut(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, ServedParts]]:
    served = {}
    for shards in (1, 2, 4, 8):
        root = tmp_path_factory.mktemp(f"parts-{shards}")
        if shards < 8:
            build(KINDS[kind], POOL, root, BuildOptions(index="exact"), parts=shards)
        else:
            build(KINDS[kind], POOL, root, BuildOptions(index="exact"), parts=3)
            move(root, shards)
        served[shards] = ServedParts(root)
    yield served
    for each in served.values():
        each.close()


def same(one: Ranked, other: Ranked) -> None:
    assert replace(one, seconds={}, plan=None) == replace(other, seconds={}, plan=None)


SENT = [("c3", None), (None, "w1 w9"), ("again c3", None), ("x", None)]
REQUESTS = [
    asked(top_k=10),
    asked(top_k=len(POOL) + 5),
    asked(top_k=3, filter={"lang": "en", "n": {"gte": 3}}),
    asked(top_k=7, filter={"lang": "no such"}),
    asked(top_k=20, exclude_ids=("c1", "again c7", "n4", "no such id")),
    asked(top_k=4, grouping=Grouping("n", 2)),
    asked(top_k=30, score_threshold=0.5),
    asked(top_k=30, retrieve_k=40, filter={"even": True}),
    asked(top_k=9, candidates=tuple(SentCandidate(*each) for each in SENT)),
    asked(top_k=9, candidates=(SentCandidate(None, "w4"), SentCandidate("own", "w1 w2"))),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=range(len(REQUESTS)))
def test_answers_do_not_depend_on_the_number_of_parts(
    whole: Serving, cut: dict[int, ServedParts], request_: RankRequest
) -> None:
    texts = [replace(request_, conversation=Conversation.of(text)) for text in TEXTS]
    expected = [rank(whole, each) for each in texts]
    assert any(each.places for each in expected) or request_.filter == {"lang": "no such"}
    for served in cut.values():
        for found, wanted in zip(served.rank(*texts), expected, strict=True):
            same(found, wanted)


@pytest.mark.parametrize("index", ["flat", "hnsw"])
def test_where_parts_have_indexes_an_answer_that_is_called_exact_is_that_of_a_scan(
    kind: str, whole: Serving, tmp_path: Path, index: str
) -> None:
    build(KINDS[kind], POOL, tmp_path, BuildOptions(index=index), parts=3)
    served, exact = ServedParts(tmp_path), 0
    for retrieve_k in (8, 64):
        texts = [asked(text, top_k=3, retrieve_k=retrieve_k) for text in TEXTS]
        for request, found in zip(texts, served.rank(*texts), strict=True):
            assert found.plan == "index"
            if found.exact:
                exact += 1
                wanted = rank(whole, replace(request, exact=True))
                assert [(each.id, each.score) for each in found.places] == [(p.id, p.score) for p in wanted.places]
    served.close()
    # A graph finds what it finds, and a second stage scores what was found: neither is ever certain.
    assert (exact > 0) == (index == "flat" and KINDS[kind].late_rows is None)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.25, 0.5, 1.0])), min_size=1, max_size=60),
    st.integers(1, 12),
)
def test_merging_the_best_of_parts_gives_the_best(rows: list[tuple[int, float]], k: int) -> None:
    parts, scores = np.array([part for part, _ in rows]), np.array([score for _, score in rows], np.float32)
    order = np.arange(len(rows))
    found = {}
    for part in np.unique(parts).tolist():
        own = np.flatnonzero(parts == part)
        best = np.lexsort((order[own], -scores[own]))[:k]
        found[part] = Hits(order[own][best], best, scores[own][best], None, len(own), -np.inf, "scan")
    result = merged(found, k)
    expected = np.lexsort((order, -scores))[:k]
    assert result.order.tolist() == expected.tolist()
    assert result.scores.tolist() == scores[expected].tolist()
    assert result.parts.tolist() == parts[expected].tolist()
    assert result.looked_at == len(rows)
