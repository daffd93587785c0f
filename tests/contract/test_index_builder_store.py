"""What the matrix on disk and its copy in Redis have in common: the same ids give the same vectors."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import HashEncoder

from polyrank.index_builder.redis_client import connect
from polyrank.index_builder.vectors.local import DTYPES, EmbeddingsWriter, LocalEmbeddings, rounded_all
from polyrank.index_builder.vectors.redis import HIT, MISS, RedisEmbeddings, drop_generation
from polyrank.model.representations import LateRows, Representations, each_of

DIM = 5
Embeddings = LocalEmbeddings | RedisEmbeddings
Make = Callable[[bool], Any]


@pytest.fixture(params=["float16", "float32"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["local", "redis"])
def make(request: pytest.FixtureRequest, tmp_path: Path, dtype: str) -> Iterator[Make]:
    """Begin embeddings that are to be put (True), or open those that were put (False)."""
    with ExitStack() as stack:

        def made(create: bool) -> Any:
            store: Any
            if request.param == "redis":
                store = RedisEmbeddings(request.getfixturevalue("redis_url"), "g", DIM, dtype, timeout_seconds=5)
            elif create:
                store = EmbeddingsWriter(tmp_path, DIM, dtype)
            else:
                store = LocalEmbeddings(tmp_path, DIM, dtype)
            stack.callback(store.close)
            return store

        yield made


def put(store: Any, ids: list[str], vectors: np.ndarray) -> None:
    if isinstance(store, EmbeddingsWriter):
        store.put_many(ids, Representations(vectors))
    else:
        store.put_many(ids, vectors)


def filled(make: Make, count: int = 3000) -> tuple[list[str], np.ndarray, Embeddings]:
    ids = [f"id {i} \u00e9{{}}*" for i in range(count)]
    vectors = np.random.default_rng(0).standard_normal((count, DIM)).astype(np.float32)
    store = make(True)
    for start in range(0, count, 2100):
        put(store, ids[start : start + 2100], vectors[start : start + 2100])
    store.commit()
    return ids, vectors, make(False)


def vectors_of(store: Embeddings, ids: list[str]) -> np.ndarray:
    """The vectors of ids that are all there, as the service asks for them."""
    if isinstance(store, LocalEmbeddings):
        return store.gather(store.ids.rows(ids))
    fetched = store.get_many(ids)
    assert fetched.status.dtype == np.uint8
    assert (fetched.status == HIT).all()
    return fetched.rows


def test_what_was_put_is_fetched_in_the_order_asked(make: Make, dtype: str) -> None:
    ids, vectors, store = filled(make)
    order = np.random.default_rng(1).permutation(len(ids))
    fetched = vectors_of(store, [ids[i] for i in order])
    assert fetched.dtype == DTYPES[dtype]
    assert (fetched == vectors[order].astype(DTYPES[dtype])).all()
    assert (vectors_of(store, [ids[5], ids[5]]) == vectors[5].astype(DTYPES[dtype])).all()


def test_ids_that_are_not_there_are_told(make: Make, dtype: str) -> None:
    ids, vectors, store = filled(make)
    asked = [ids[5], "nobody", ids[5], ""]
    if isinstance(store, LocalEmbeddings):
        assert store.ids.rows(asked).tolist() == [5, -1, 5, -1]
    else:
        fetched = store.get_many(asked)
        assert fetched.status.tolist() == [HIT, MISS, HIT, MISS]
        assert (fetched.rows == vectors[[5, 5]].astype(DTYPES[dtype])).all()


def test_nothing_asked_nothing_fetched(make: Make) -> None:
    assert vectors_of(filled(make)[2], []).shape == (0, DIM)


def test_it_counts_what_is_complete(make: Make) -> None:
    store = make(True)
    put(store, ["a", "b"], np.ones((2, DIM), np.float32))
    if isinstance(store, RedisEmbeddings):
        assert store.count() == 0
    store.commit()
    assert make(False).count() == 2


def test_what_was_fetched_is_the_callers_own(make: Make) -> None:
    ids, _, store = filled(make, 10)
    before = vectors_of(store, ids).copy()
    vectors_of(store, ids)[:] = 7
    assert (vectors_of(store, ids) == before).all()


def test_many_threads_may_read(make: Make, dtype: str) -> None:
    ids, vectors, store = filled(make)
    with ThreadPoolExecutor(16) as threads:
        fetched = list(threads.map(lambda i: vectors_of(store, ids[i : i + 600]), range(0, 2400, 60)))
    for start, each in zip(range(0, 2400, 60), fetched, strict=True):
        assert (each == vectors[start : start + 600].astype(DTYPES[dtype])).all()


@pytest.mark.parametrize("late", [LateRows(3, 2), LateRows(2, None)], ids=["fixed", "ragged"])
def test_rows_of_a_second_stage_are_fetched_as_they_were_put(request, tmp_path, dtype: str, late: LateRows) -> None:
    encoder, ids = HashEncoder(DIM, late=late), [f"id {i}" for i in range(700)]
    made = rounded_all(encoder.of(ids), dtype)
    expected = each_of(made.late, made.counts)
    with closing(EmbeddingsWriter(tmp_path, DIM, dtype, late)) as writer:
        writer.put_many(ids, made)
        writer.commit()
    with closing(LocalEmbeddings(tmp_path, DIM, dtype, late)) as local:
        order = np.random.default_rng(1).permutation(len(ids))
        for stored, wanted in zip(local.representations(order), made.take(order), strict=True):
            np.testing.assert_array_equal(stored, wanted)
    url = request.getfixturevalue("redis_url")
    with closing(RedisEmbeddings(url, "g", DIM, dtype, 5, late)) as copy:
        copy.put_many(ids, made.first)
        copy.rows.put_many(ids, expected)
        copy.commit()
        assert copy.count() == len(ids)
        rows, counts, status = copy.rows.get_many([*ids, "nobody"])
        assert status.tolist() == [HIT] * len(ids) + [MISS]
        np.testing.assert_array_equal(rows, made.late)
        assert counts.tolist() == [*made.counts.tolist(), 0]
    with closing(RedisEmbeddings(url, "g", DIM, dtype, 5)) as other:
        assert other.count() == 0, "the copy is of a model with a second stage"
    drop_generation(url, "g")
    with closing(connect(url, 5)) as client:
        assert client.keys("pe:{g}:*") == []
