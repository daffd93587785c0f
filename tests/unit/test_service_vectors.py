"""Vectors from Redis are the matrix's own, whatever Redis lacks, damaged or refuses."""

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from service_fakes import DIM, WordRanker, build_store, pool
from tiny import write_base

import polyrank
from polyrank.index_builder.errors import MatrixMissing, StoreUnavailable
from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.vectors.encoder import encode_texts
from polyrank.index_builder.vectors.redis import CORRUPT, HIT, MISS, Fetched, within
from polyrank.model.config import ModelConfig
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.representations import Representations
from polyrank.service.caching.redis_server import Budget
from polyrank.service.caching.vector_cache import VectorCache
from polyrank.service.caching.vectors import MatrixVectors, RedisVectors, largest_of

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

    def read(self, names: Sequence[str], _budget: Budget) -> tuple[list[Fetched], bool]:
        return ([], False) if self.down else ([self.get_many(names)], True)

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
        cache = VectorCache("g", DIM, "float16", self.count, None, self.redis)  # type: ignore[arg-type]
        return RedisVectors(self.generation, cache, None, lambda: self.redis, self.encode, self.count)  # type: ignore[arg-type,return-value]

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


# --- largest on the vectors of a model, from those of some texts: no vector of the model is beyond them

MORE = ["[MASK]", "[unused0]", "[unused1]"]
WORDS = [f"w{n}" for n in range(40)]
RETRIEVERS = [name for name, row in ARCHITECTURES.items() if row.embeds]


def texts(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for _ in range(count)]


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("architecture", RETRIEVERS)
def test_no_vector_of_the_model_is_longer(tmp_path: Path, architecture: str, normalize: bool) -> None:
    base = str(write_base(tmp_path / "base", 3, MORE))
    lengths = {"max_context_tokens": 40, "max_candidate_tokens": 16}
    config = ModelConfig(architecture=architecture, base_name="tiny", normalize=normalize, **lengths)
    encode = partial(encode_texts, polyrank.from_base(base, config))
    bounds, made = largest_of(encode, 17), encode([*texts(200), "?", "", "w1 " * 500])
    for dtype in (np.float16, np.float32):
        assert within(made.first.astype(dtype), bounds.vector).all()
        assert made.late is None or within(made.late.astype(dtype), bounds.row).all()
    assert made.counts is None or made.late is None or made.counts.max() <= bounds.rows  # 16 tokens and a marker
    if normalize or made.late is not None:  # every second stage has a first one of unit vectors
        assert bounds.vector == pytest.approx(1.02, abs=0.01)
        assert not within(made.first * 1.05, bounds.vector).any()
    if architecture == "colbert":
        assert bounds.row == pytest.approx(1.02, abs=0.01)
    assert not within(made.first * 1000, bounds.vector).any()
    assert made.late is None or not within(made.late * 1000, bounds.row).any()


def test_a_model_without_a_second_stage_bounds_no_rows_and_zeros_are_no_vectors_of_another() -> None:
    bounds = largest_of(lambda given: Representations(np.zeros((len(given), 4), np.float32)), 17)
    assert bounds == (17, 0.0, float("inf"))
    assert within(np.array([[0.0], [-0.0], [1e-3]], np.float16), 0.0).tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("longest", [1.0, 1e30, float("inf")])
def test_what_is_no_number_is_within_nothing(dtype: type, longest: float) -> None:
    rows = np.full((4, 3), 0.5, dtype)
    rows[0, 1], rows[1, 2], rows[2, 0] = np.nan, np.inf, -np.inf
    assert within(rows, longest).tolist() == [False, False, False, True]


def test_the_largest_numbers_are_within_an_infinite_length_alone() -> None:
    rows = np.full((1, 65_535), np.finfo(np.float32).max, np.float32)
    assert [bool(within(rows, longest)[0]) for longest in (float("inf"), 1e30)] == [True, False]
