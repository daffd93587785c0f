"""The recall that a build measures is the share of the best rows, counted one by one, that requests can find."""

from functools import partial

import numpy as np
import pytest
from brute_force import paper_scores
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrank.index_builder.index import retrieval
from polyrank.index_builder.index.choice import IndexSpec
from polyrank.index_builder.index.faiss_index import CandidateIndex
from polyrank.index_builder.index.measuring import Probe, Probes
from polyrank.index_builder.index.retrieval import retrieve
from polyrank.model.representations import Additions

RETRIEVED = 20


@pytest.fixture(scope="module", autouse=True)
def few_are_retrieved() -> None:
    """Let a small pool have rows that are not found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "RETRIEVE_K", RETRIEVED)
        yield


@settings(max_examples=cases(60), deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["Flat", "IVF8,Flat", "HNSW4", "PQ2x4"]),
    st.sampled_from([0, 40, 90]),
    st.floats(0.01, 10),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_recall_is_that_of_what_vectors_and_words_find_together(
    seed: int, factory: str, depth: int, late_weight: float, spoken: float
) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((400, 8)).astype(np.float16)
    params = {"nprobe": 2} if "IVF" in factory else {}
    index = CandidateIndex.build(
        IndexSpec("custom", factory, {**params, **({"depth": depth} if depth else {})}), matrix
    )
    probes, counted = [], []
    for _ in range(5):
        codes = rng.standard_normal((int(rng.integers(1, 5)), 8)).astype(np.float32)
        values = np.where(rng.random(400) < spoken, rng.standard_normal(400), -0.25).astype(np.float32)
        additions = Additions(late_weight, values)
        probes.append(Probe(codes, partial(Additions, late_weight, values)))
        by_words = np.lexsort((np.arange(400), -values))[: max(depth, RETRIEVED)].tolist()
        found = sorted({*retrieve(index, codes, RETRIEVED).rows.tolist(), *by_words})
        scores = paper_scores(matrix, codes, additions)
        for places in (10, 100):
            last = np.sort(scores)[-places]
            reached = int((scores[found] >= last - 1e-5 * max(1.0, abs(last))).sum())
            counted.append(min(reached, places) / places)
    recall = Probes(matrix, probes).measure(index)
    assert (recall.of, recall.probes, recall.count) == ("vectors and words", "given", 5)
    assert (recall.at_10, recall.at_100) == pytest.approx((np.mean(counted[::2]), np.mean(counted[1::2])), abs=1e-6)
