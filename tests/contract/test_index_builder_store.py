"""What every embedding store does, run on each."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from polyrank.index_builder.vectors.codec import DTYPES
from polyrank.index_builder.vectors.local import LocalStore
from polyrank.index_builder.vectors.protocol import HIT, MISS, EmbeddingStore
from polyrank.index_builder.vectors.redis import RedisStore

DIM = 5
Make = Callable[[bool], EmbeddingStore]


@pytest.fixture(params=["float16", "float32"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["local", "redis"])
def make(request: pytest.FixtureRequest, tmp_path: Path, dtype: str) -> Iterator[Make]:
    """Make a store to fill (True), or open the one that was filled (False)."""
    with ExitStack() as stack:

        def made(create: bool) -> EmbeddingStore:
            store: EmbeddingStore
            if request.param == "local":
                store = LocalStore(tmp_path, DIM, dtype, create=create)
            else:
                store = RedisStore(request.getfixturevalue("redis_url"), "g", DIM, dtype, timeout_seconds=5)
            stack.callback(store.close)
            return store

        yield made


def filled(make: Make, count: int = 3000) -> tuple[list[str], np.ndarray, EmbeddingStore]:
    ids = [f"id {i} \u00e9{{}}*" for i in range(count)]
    vectors = np.random.default_rng(0).standard_normal((count, DIM)).astype(np.float32)
    store = make(True)
    for start in range(0, count, 2100):
        store.put_many(ids[start : start + 2100], vectors[start : start + 2100])
    store.commit()
    return ids, vectors, store


def test_what_was_put_is_fetched_in_the_order_asked(make: Make, dtype: str) -> None:
    ids, vectors, store = filled(make)
    order = np.random.default_rng(1).permutation(len(ids))
    fetched = store.get_many([ids[i] for i in order])
    assert fetched.vectors.dtype == DTYPES[dtype]
    assert (fetched.vectors == vectors[order].astype(DTYPES[dtype])).all()
    assert fetched.status.dtype == np.uint8
    assert (fetched.status == HIT).all()


def test_ids_that_are_not_there_are_misses_with_zero_vectors(make: Make, dtype: str) -> None:
    ids, vectors, store = filled(make)
    fetched = store.get_many([ids[5], "nobody", ids[5], ""])
    assert fetched.status.tolist() == [HIT, MISS, HIT, MISS]
    assert (fetched.vectors[::2] == vectors[5].astype(DTYPES[dtype])).all()
    assert not fetched.vectors[1::2].any()


def test_nothing_asked_nothing_fetched(make: Make) -> None:
    fetched = filled(make)[2].get_many([])
    assert fetched.vectors.shape == (0, DIM)
    assert fetched.status.shape == (0,)


def test_it_counts_what_is_complete(make: Make) -> None:
    store = make(True)
    store.put_many(["a", "b"], np.ones((2, DIM), np.float32))
    assert store.count() == 0
    store.commit()
    assert store.count() == 2


def test_it_can_be_opened_again(make: Make, dtype: str) -> None:
    ids, vectors, _ = filled(make)
    again = make(False)
    assert again.count() == 3000
    assert (again.get_many(ids).vectors == vectors.astype(DTYPES[dtype])).all()


def test_what_was_fetched_is_the_callers_own(make: Make) -> None:
    ids, _, store = filled(make, 10)
    before = store.get_many(ids).vectors.copy()
    store.get_many(ids).vectors[:] = 7
    assert (store.get_many(ids).vectors == before).all()


def test_many_threads_may_read(make: Make, dtype: str) -> None:
    ids, vectors, store = filled(make)
    with ThreadPoolExecutor(16) as threads:
        fetched = list(threads.map(lambda i: store.get_many(ids[i : i + 600]), range(0, 2400, 60)))
    for start, each in zip(range(0, 2400, 60), fetched, strict=True):
        assert (each.vectors == vectors[start : start + 600].astype(DTYPES[dtype])).all()


def test_it_answers(make: Make) -> None:
    filled(make, 1)[2].ping()
