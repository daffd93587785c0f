"""Vectors from Redis are the matrix's own, whatever Redis lacks, damaged or refuses."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from service_fakes import DIM, WordRanker, build_store, pool

from polyrank.index_builder.errors import MatrixMissing, StoreUnavailable
from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.vectors.encoder import encode_texts
from polyrank.index_builder.vectors.redis import CORRUPT, HIT, MISS, Fetched
from polyrank.model.representations import Representations
from polyrank.service.caching.redis_server import Budget
from polyrank.service.caching.vector_cache import Cached
from polyrank.service.caching.vectors import MatrixVectors, RedisVectors

ROWS = np.array([3, 1, 4, 1, 5], np.int64)


class CopyOfMatrix:
    """The vectors in Redis, which can lose, damage or refuse them: as a tier, and as the loader's store."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = matrix
        self.lost: set[str] = set()
        self.damaged: set[str] = set()
        self.down = False
        self.calls = 0
        self.closed = False

    def read(self, names: Sequence[str], _budget: Budget) -> Cached:
        if self.down:
            return Cached(np.zeros((len(names), DIM), np.float16), np.zeros(len(names), bool), False)
        fetched = self.get_many(names)
        return Cached(fetched.vectors, fetched.status == HIT, True)

    def get_many(self, ids: Sequence[str]) -> Fetched:
        self.calls += 1
        if self.down:
            raise StoreUnavailable("down")
        vectors = self.matrix[[int(each.removeprefix("c")) for each in ids]]
        codes = {**dict.fromkeys(self.lost, MISS), **dict.fromkeys(self.damaged, CORRUPT)}
        status = np.array([codes.get(each, HIT) for each in ids], np.uint8)
        vectors[status != HIT] = 0
        return Fetched(vectors, status)

    def close(self) -> None:
        self.closed = True


class Fixture:
    def __init__(self, root: Path, index: str) -> None:
        build_store(root, pool(30), index=index)
        store = GenerationStore(root)
        self.generation = store.open(store.current() or "")
        self.whole = np.array(self.generation.embeddings.matrix)
        self.redis = CopyOfMatrix(self.whole)
        self.counts: Counter[tuple[str, str]] = Counter()
        self.encoded: list[str] = []

    def open(self) -> RedisVectors:
        return RedisVectors(self.generation, self.redis, None, lambda: self.redis, self.encode, self.count)  # type: ignore[arg-type,return-value]

    def encode(self, texts: list[str]) -> Representations:
        self.encoded += texts
        return encode_texts(WordRanker(), texts)

    def expected(self) -> np.ndarray:
        return self.whole[ROWS]

    def lose_matrix(self) -> None:
        (self.generation.path / "embeddings.bin").unlink()
        self.generation = Generation.open(self.generation.path, needs_matrix=False)

    def count(self, tier: str, result: str, number: int) -> None:
        self.counts[tier, result] += number


@pytest.fixture
def indexed(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path, "flat")


def test_redis_answers_alone(indexed: Fixture) -> None:
    gathered = indexed.open().gather(ROWS, Budget())
    assert gathered.cache_available
    np.testing.assert_array_equal(gathered.vectors, indexed.expected())
    assert +indexed.counts == {}


def test_gaps_are_filled_from_the_matrix_and_counted(indexed: Fixture) -> None:
    indexed.redis.lost, indexed.redis.damaged = {"c1"}, {"c4"}
    gathered = indexed.open().gather(ROWS, Budget())
    assert gathered.cache_available
    np.testing.assert_array_equal(gathered.vectors, indexed.expected())
    assert +indexed.counts == {("matrix", "hit"): 3}


def test_an_outage_is_told(indexed: Fixture) -> None:
    vectors = indexed.open()
    indexed.redis.down = True
    gathered = vectors.gather(ROWS, Budget())
    assert not gathered.cache_available
    np.testing.assert_array_equal(gathered.vectors, indexed.expected())
    assert +indexed.counts == {("matrix", "hit"): 5}
    indexed.redis.down = False
    assert vectors.gather(ROWS, Budget()).cache_available


def test_an_indexed_generation_is_not_read_ahead(indexed: Fixture) -> None:
    indexed.open()
    assert indexed.redis.calls == 0


def test_a_scanned_generation_is_read_from_redis_once(tmp_path: Path) -> None:
    scanned = Fixture(tmp_path, "exact")
    scanned.redis.lost, scanned.redis.damaged = {"c0", "c7"}, {"c9"}
    matrix = scanned.open().matrix()
    assert scanned.redis.closed
    np.testing.assert_array_equal(matrix, scanned.generation.embeddings.matrix)
    assert not isinstance(matrix, np.memmap)
    assert matrix.dtype == np.float16
    assert (scanned.counts["redis", "hit"], scanned.counts["redis", "miss"], scanned.counts["redis", "corrupt"]) == (
        27,
        2,
        1,
    )


def test_a_scanned_generation_falls_back_to_its_own_matrix(tmp_path: Path) -> None:
    scanned = Fixture(tmp_path, "exact")
    scanned.redis.down = True
    np.testing.assert_array_equal(scanned.open().matrix(), scanned.generation.embeddings.matrix)
    assert scanned.counts["redis", "error"] == 30


def test_the_matrix_itself_is_a_source_too(indexed: Fixture) -> None:
    vectors = MatrixVectors(indexed.generation, indexed.count)
    np.testing.assert_array_equal(vectors.gather(ROWS, Budget()).vectors, indexed.expected())
    assert vectors.matrix() is indexed.generation.embeddings.matrix
    assert indexed.counts["matrix", "hit"] == 5


@pytest.mark.parametrize("index", ["exact", "flat"])
def test_without_the_file_the_matrix_is_read_from_redis(tmp_path: Path, index: str) -> None:
    replica = Fixture(tmp_path, index)
    replica.lose_matrix()
    with pytest.raises(MatrixMissing, match="this replica does not hold the matrix of generation"):
        _ = replica.generation.embeddings.matrix
    vectors = replica.open()
    np.testing.assert_array_equal(vectors.matrix(), replica.whole)
    assert +replica.counts == {("redis", "hit"): 30}
    assert replica.encoded == []
    replica.redis.lost = {"c1"}
    np.testing.assert_array_equal(vectors.gather(ROWS, Budget()).vectors, replica.expected())
    assert replica.counts["matrix", "hit"] == 2


def test_what_neither_redis_nor_the_disk_holds_is_encoded_and_rounded(tmp_path: Path) -> None:
    replica = Fixture(tmp_path, "flat")
    replica.lose_matrix()
    replica.redis.lost, replica.redis.damaged = {"c0", "c7"}, {"c9"}
    matrix = replica.open().matrix()
    np.testing.assert_array_equal(matrix, replica.whole)
    assert matrix.dtype == np.float16
    texts = [candidate.text for candidate in pool(30)]
    assert replica.encoded == [texts[0], texts[7], texts[9]]


def test_a_replica_without_redis_encodes_everything(tmp_path: Path) -> None:
    replica = Fixture(tmp_path, "exact")
    replica.lose_matrix()
    replica.redis.down = True
    vectors = replica.open()
    np.testing.assert_array_equal(vectors.matrix(), replica.whole)
    gathered = vectors.gather(ROWS, Budget())
    assert not gathered.cache_available
    np.testing.assert_array_equal(gathered.vectors, replica.expected())
    assert len(replica.encoded) == 30, "once"
