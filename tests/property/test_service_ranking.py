"""However a candidate reaches the ranking, its score is the same."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cases import cases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from service_fakes import WORDS, asked, build_store, open_serving, rank

from polyrank.index_builder.pool.rows import Candidate
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.values import Ranked, SentCandidate

TEXTS = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join), min_size=1, max_size=25)
CONTEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=10).map(" ".join)
DTYPES = st.sampled_from(["float16", "float32"])
KINDS = st.sampled_from(["exact", "flat", "hnsw"])

THIRTY = settings(
    max_examples=cases(30), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
def roots(tmp_path: Path) -> Iterator[Path]:
    """A new directory for each example."""
    return (tmp_path / str(n) for n in range(10_000))


def scores_by_id(ranked: Ranked) -> dict[str | None, float]:
    return {place.id: place.vector for place in ranked.places}


def serve(roots: Iterator[Path], texts: list[str], dtype: str, kind: str) -> Serving:
    root = next(roots)
    build_store(root, [Candidate(f"c{n}", text) for n, text in enumerate(texts)], dtype=dtype, index=kind)
    return open_serving(root)


@THIRTY
@given(texts=TEXTS, context=CONTEXTS, dtype=DTYPES, kind=KINDS)
def test_texts_ids_and_retrieval_score_alike(roots, texts: list[str], context: str, dtype: str, kind: str) -> None:
    serving = serve(roots, texts, dtype, kind)
    names = [f"c{n}" for n in range(len(texts))]
    by_text = tuple(SentCandidate(name, text) for name, text in zip(names, texts, strict=True))
    by_id = tuple(SentCandidate(name, None) for name in names)
    mixed = tuple(one if n % 2 else other for n, (one, other) in enumerate(zip(by_text, by_id, strict=True)))
    retrieved = rank(serving, asked(context, top_k=len(texts)))
    order = [place.id for place in retrieved.places]
    for candidates in (by_text, by_id, mixed):
        ranked = rank(serving, asked(context, top_k=len(texts), candidates=candidates))
        assert [place.id for place in ranked.places] == order
        expected, actual = scores_by_id(retrieved), scores_by_id(ranked)
        np.testing.assert_allclose([actual[each] for each in order], [expected[each] for each in order], atol=1e-4)


@THIRTY
@given(texts=TEXTS, context=CONTEXTS, kind=KINDS, top_k=st.integers(1, 30), excluded=st.sets(st.integers(0, 24)))
def test_what_is_excluded_makes_room(roots, texts, context, kind, top_k: int, excluded: set[int]) -> None:
    serving = serve(roots, texts, "float16", kind)
    names = tuple(f"c{n}" for n in excluded)
    whole = rank(serving, asked(context, top_k=1000, exact=True))
    expected = [place for place in whole.places if place.id not in names][:top_k]
    ranked = rank(serving, asked(context, top_k=top_k, exclude_ids=names))
    assert [place.id for place in ranked.places] == [place.id for place in expected]


@THIRTY
@given(texts=TEXTS, context=CONTEXTS, data=st.data())
def test_the_order_of_candidates_changes_no_score(roots, texts: list[str], context: str, data: st.DataObject) -> None:
    serving = serve(roots, ["w0"], "float16", "exact")
    sent = [SentCandidate(str(n), text) for n, text in enumerate(texts)]
    shuffled = data.draw(st.permutations(sent))
    one, other = (
        scores_by_id(rank(serving, asked(context, top_k=1000, candidates=tuple(each)))) for each in (sent, shuffled)
    )
    assert one == pytest.approx(other, abs=1e-4)
