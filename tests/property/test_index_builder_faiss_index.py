"""Whatever is excluded or not allowed is not found, by any kind of index, and what is found is the best of the rest."""

from functools import cache

import numpy as np
import pytest
from cases import cases
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polyrank.index_builder.index.choice import IndexSpec
from polyrank.index_builder.index.faiss_index import CandidateIndex

COUNT, DIM = 300, 16
MATRIX = np.random.default_rng(0).standard_normal((COUNT, DIM)).astype(np.float16)
CODES = np.random.default_rng(1).standard_normal((3, DIM)).astype(np.float32)
PRODUCTS = CODES @ MATRIX.astype(np.float32).T

# By the parameters they take: none with a selector (PQ4x4fs, NSG8), nested ones, HNSW's, IVF's.
EXACT = ["Flat", "IVF8,Flat", "IVF8_HNSW4,Flat", "OPQ4,Flat", "OPQ4,IVF8,Flat,RFlat"]
FACTORIES = [*EXACT, "HNSW32", "IVF8,SQ8", "OPQ4,IVF8,PQ4x4", "PQ4x4fs", "OPQ4,PQ4x4fs", "PQ4x4", "NSG8", "SQ8"]

ROWS = st.sets(st.integers(0, COUNT - 1))
DEPTHS = st.integers(1, COUNT + 5)


@cache
def built(factory: str) -> CandidateIndex:
    return CandidateIndex.build(IndexSpec("custom", factory, {"nprobe": 8} if "IVF" in factory else {}), MATRIX)


@pytest.mark.parametrize("factory", FACTORIES)
@settings(max_examples=cases(25), deadline=None)
@given(exclude=ROWS, only=st.none() | ROWS, depth=DEPTHS)
@example(exclude=set(), only=None, depth=COUNT + 5)
def test_only_what_is_allowed_is_found(factory: str, exclude: set[int], only: set[int] | None, depth: int) -> None:
    allowed = (set(range(COUNT)) if only is None else only) - exclude
    mask = None if only is None else np.isin(np.arange(COUNT), list(only))
    rows, products = built(factory).search(CODES, depth, np.array(sorted(exclude), np.int64), mask)
    assert mask is None or mask.sum() == len(only), "the caller's mask stays as it was"
    assert rows.shape == products.shape == (3, depth)
    for line, found, values in zip(PRODUCTS, rows, products, strict=True):
        kept = found[found >= 0]
        assert set(kept.tolist()) <= allowed
        assert len(set(kept.tolist())) == len(kept) <= min(depth, len(allowed))
        assert (found[len(kept) :] == -1).all()
        if factory in EXACT:
            best = sorted(allowed, key=lambda row: -line[row])[:depth]
            np.testing.assert_allclose(values[: len(kept)], line[best], atol=2e-3)
