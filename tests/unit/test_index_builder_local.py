import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from fakes import HashEncoder, pool

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.errors import GenerationCorrupt, MatrixMissing
from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.vectors import local as module
from polyrank.index_builder.vectors.local import (
    LATE_FILE,
    BlockReader,
    BlockWriter,
    EmbeddingsWriter,
    IdIndex,
    LocalEmbeddings,
    RowBlock,
    hash_id,
)
from polyrank.model.representations import LateRows, Representations, each_of, row_places

RAGGED, FIXED = LateRows(2, None), LateRows(2, 3)
COUNTS = np.array([2, 0, 3, 1])


def store(directory: Path, count: int = 100, dim: int = 4) -> LocalEmbeddings:
    with closing(EmbeddingsWriter(directory, dim, "float16")) as writer:
        writer.put_many(
            [str(i) for i in range(count)],
            Representations(np.arange(count * dim, dtype=np.float32).reshape(count, dim)),
        )
        writer.commit()
    return LocalEmbeddings(directory, dim, "float16")


def test_the_matrix_holds_row_i_of_candidate_i(tmp_path: Path) -> None:
    made = store(tmp_path)
    assert isinstance(made.matrix, np.memmap)
    assert (made.matrix == np.arange(400).reshape(100, 4)).all()
    assert (made.gather(np.array([7, 0, 7])) == made.matrix[[7, 0, 7]]).all()
    assert (tmp_path / "embeddings.bin").read_bytes() == np.arange(400).astype("<f2").tobytes()


def test_writing_to_the_matrix_does_not_reach_the_file(tmp_path: Path) -> None:
    made = store(tmp_path)
    made.matrix[:] = 0
    assert (LocalEmbeddings(tmp_path, 4, "float16").matrix[99] == [396, 397, 398, 399]).all()


def test_torch_takes_the_matrix_without_a_warning(tmp_path: Path) -> None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.from_numpy(store(tmp_path).matrix).shape == (100, 4)


def test_nothing_lies_beside_the_two_files(tmp_path: Path) -> None:
    with closing(EmbeddingsWriter(tmp_path, 4, "float16")) as writer:
        writer.put_many(["a"], Representations(np.ones((1, 4))))
        writer.sync()
        assert [path.name for path in tmp_path.iterdir()] == ["embeddings.bin"]
        assert (tmp_path / "embeddings.bin").stat().st_size == 8
        writer.commit()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["embeddings.bin", "ids.index"]


@pytest.mark.parametrize(("dim", "dtype"), [(5, "float16"), (4, "float32")])
def test_files_that_do_not_fit_are_refused(tmp_path: Path, dim: int, dtype: str) -> None:
    store(tmp_path)
    with pytest.raises(ValueError, match=r"embeddings\.bin has 800 bytes"):
        LocalEmbeddings(tmp_path, dim, dtype)


def test_equal_ids_are_refused(tmp_path: Path) -> None:
    with closing(EmbeddingsWriter(tmp_path, 1, "float16")) as writer:
        writer.put_many(["a", "a"], Representations(np.ones((2, 1), np.float32)))
        with pytest.raises(ValueError, match="same id"):
            writer.commit()


def written(path: Path, ids: list[str]) -> IdIndex:
    IdIndex.write(path, np.array([hash_id(each) for each in ids], np.uint64))
    return IdIndex(path)


def test_every_id_has_its_row_and_others_have_none(tmp_path: Path) -> None:
    ids = [f"id-{i}" for i in range(5000)]
    index = written(tmp_path / "i", ids)
    order = np.random.default_rng(0).permutation(5000)
    assert len(index) == 5000
    assert (index.rows([ids[i] for i in order]) == order).all()
    assert index.rows(["id-7", "no", "", "id-4999", "ID-7"]).tolist() == [7, -1, -1, 4999, -1]
    assert index.rows([]).tolist() == []


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 300])
def test_many_ranges_make_the_same_file_as_sorting_at_once(tmp_path: Path, monkeypatch, count: int) -> None:
    hashes = np.random.default_rng(count).integers(0, 2**64, count, dtype=np.uint64)
    hashes[: count // 2] >>= np.uint64(60)  # crowded at the low end, and empty ranges elsewhere
    hashes = np.random.default_rng(0).permutation(np.unique(hashes))
    order = np.argsort(hashes)
    monkeypatch.setattr(module, "_RANGE_ROWS", 4)
    monkeypatch.setattr(module, "_BLOCK_ROWS", 7)
    IdIndex.write(tmp_path / "i", hashes)
    assert (tmp_path / "i").read_bytes() == hashes[order].tobytes() + order.tobytes()


def test_equal_hashes_in_different_blocks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RANGE_ROWS", 4)
    monkeypatch.setattr(module, "_BLOCK_ROWS", 7)
    hashes = np.random.default_rng(0).integers(0, 2**64, 100, dtype=np.uint64)
    hashes[90] = hashes[3]
    with pytest.raises(ValueError, match="same id"):
        IdIndex.write(tmp_path / "i", hashes)


def test_of_equal_texts_the_first_row_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RANGE_ROWS", 4)
    monkeypatch.setattr(module, "_BLOCK_ROWS", 7)
    texts = [f"text {n}" for n in np.random.default_rng(0).integers(0, 30, 200)]
    IdIndex.write(tmp_path / "i", np.array([hash_id(each) for each in texts], np.uint64), unique=False)
    index = IdIndex(tmp_path / "i")
    assert index.rows(texts).tolist() == [texts.index(each) for each in texts]
    assert index.rows(["text", "text 30"]).tolist() == [-1, -1]


def test_hashes_at_both_ends_of_the_range_are_found(tmp_path: Path) -> None:
    path = tmp_path / "i"
    IdIndex.write(path, np.array([2**64 - 1, 0], np.uint64))
    assert IdIndex(path).rows(["above all or below all"]).tolist() == [-1]


def test_the_hash_does_not_change() -> None:
    assert hash_id("a") == 0x2F42665B399EF840  # `printf a | b2sum -l 64`, little-endian


@pytest.mark.parametrize("size", [0, 15, 24])
def test_a_file_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "i").write_bytes(b"\0" * size)
    with pytest.raises(ValueError, match=f"{size} bytes"):
        IdIndex(tmp_path / "i")


# The block of a second stage, and what is refused of it.


def rows(count: int) -> np.ndarray:
    return np.arange(count * 2, dtype=np.float32).reshape(count, 2)


def block_of(directory: Path, late: LateRows, counts: np.ndarray) -> np.ndarray:
    """Put the rows of as many candidates as there are counts, in two parts."""
    made, half = rows(int(counts.sum())), len(counts) // 2
    with closing(BlockWriter(directory / LATE_FILE, late, "float16")) as writer:
        writer.put_many(made[: counts[:half].sum()], counts[:half])
        writer.sync()
        writer.put_many(made[counts[:half].sum() :], counts[half:])
    return made


@pytest.mark.parametrize(("late", "counts"), [(RAGGED, COUNTS), (FIXED, np.full(4, 3)), (RAGGED, np.zeros(4, int))])
def test_rows_are_found_by_candidate_and_in_their_order(tmp_path: Path, late: LateRows, counts: np.ndarray) -> None:
    made = block_of(tmp_path, late, counts)
    opened, asked = RowBlock(tmp_path / LATE_FILE, late, "float16", 4), np.array([3, 0, 3, 1, 2])
    gathered, numbers = opened.gather(asked)
    each = each_of(made, counts)
    assert numbers.tolist() == counts[asked].tolist()
    np.testing.assert_array_equal(gathered, np.concatenate([each[at] for at in asked]))
    assert gathered.dtype == np.float16
    assert opened.gather(np.empty(0, np.int64))[0].shape == (0, 2)
    assert (tmp_path / "late.bin").read_bytes() == made.astype("<f2").tobytes()
    assert (tmp_path / "late.offsets").exists() == (late is RAGGED)
    if late is RAGGED:
        ends = np.concatenate([[0], np.cumsum(counts)])
        assert (tmp_path / "late.offsets").read_bytes() == ends.astype("<u8").tobytes()


def test_places_are_those_of_the_runs() -> None:
    assert row_places(np.array([5, 0, 9]), np.array([2, 3, 0])).tolist() == [5, 6, 0, 1, 2]
    assert each_of(rows(0), np.empty(0, np.int64)) == []


@pytest.mark.parametrize(("file", "content", "message"), [
    ("late.bin", b"", "late.bin has 0 bytes, which are not 6 x 2"),
    ("late.offsets", b"", "late.offsets has 0 bytes, which are not 5 offsets"),
    ("late.offsets", np.array([1, 2, 2, 5, 6], "<u8").tobytes(), "do not ascend from 0"),
    ("late.offsets", np.array([0, 5, 2, 5, 6], "<u8").tobytes(), "do not ascend from 0"),
    ("late.offsets", np.array([0, 2, 2, 5, 7], "<u8").tobytes(), "late.bin has 24 bytes, which are not 7 x 2"),
    ("late.offsets", np.array([0, 2, 2, 5, 2**64 - 1], "<u8").tobytes(), "do not ascend from 0"),
])  # fmt: skip
def test_a_block_that_does_not_fit_is_refused(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    block_of(tmp_path, RAGGED, COUNTS)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        RowBlock(tmp_path / LATE_FILE, RAGGED, "float16", 4)


def test_a_replica_may_lack_the_rows(tmp_path: Path) -> None:
    block_of(tmp_path, RAGGED, COUNTS)
    (tmp_path / "late.bin").unlink()
    opened = RowBlock(tmp_path / LATE_FILE, RAGGED, "float16", 4)
    assert not opened.has_rows
    with pytest.raises(MatrixMissing):
        opened.gather(np.arange(2))


def test_what_a_killed_build_left_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    made = block_of(tmp_path, RAGGED, COUNTS)

    def first_and_second() -> tuple[object, object]:
        with closing(BlockReader(tmp_path / LATE_FILE, RAGGED, "float16")) as reader:
            return reader.read(2), reader.read(2)

    one, other = first_and_second()
    np.testing.assert_array_equal(one[0], made[:2])
    assert (one[1].tolist(), other[1].tolist()) == ([2, 0], [3, 1])
    (tmp_path / "late.bin").write_bytes((tmp_path / "late.bin").read_bytes()[:-1])
    assert first_and_second()[1] is None
    for last in (2, 2**40, 2**64 - 1):  # descending, too far, and no number at all
        (tmp_path / "late.offsets").write_bytes(np.array([0, 2, 2, 5, last], "<u8").tobytes())
        assert first_and_second()[1] is None
    (tmp_path / "late.offsets").write_bytes(np.array([0, 2, 2, 5], "<u8").tobytes())
    assert first_and_second()[1] is None


@pytest.mark.parametrize(("made", "late", "fitting"), [
    (Representations(rows(2)), None, True),
    (Representations(rows(2)), RAGGED, False),
    (Representations(rows(2), rows(3), np.array([1, 2])), None, False),
    (Representations(rows(2), rows(3), np.array([1, 2])), RAGGED, True),
    (Representations(rows(2), rows(3), np.array([1, 2])), LateRows(3, None), False),
    (Representations(rows(2), rows(3), np.array([1, 1])), RAGGED, False),
    (Representations(rows(2), rows(3), np.array([4, -1])), RAGGED, False),
    (Representations(rows(2), rows(3), np.array([3])), RAGGED, False),
    (Representations(rows(2), rows(3), np.array([1, 2])), FIXED, False),
    (Representations(rows(1), rows(3), np.array([3])), FIXED, True),
])  # fmt: skip
def test_what_a_model_makes_must_be_what_it_says(made: Representations, late: LateRows, fitting: bool) -> None:
    assert made.fits(late) == fitting


@pytest.mark.parametrize("late", [FIXED, RAGGED], ids=["fixed", "ragged"])
def test_damage_to_the_block_of_a_generation_is_refused(tmp_path: Path, late: LateRows) -> None:
    built = build(HashEncoder(late=late), pool(5), tmp_path, BuildOptions())
    path = tmp_path / "generations" / built.generation
    Generation.open(path).close()
    for name in sorted(each.name for each in path.glob("late.*")):
        content = (path / name).read_bytes()
        for damaged in (content[:-1], content[:-1] + bytes([content[-1] ^ 1]), b""):
            (path / name).write_bytes(damaged)
            with pytest.raises(GenerationCorrupt, match=name):
                Generation.open(path)
        (path / name).unlink()
        with pytest.raises(GenerationCorrupt, match=f"{name} is missing"):
            Generation.open(path)
        if name == "late.bin":
            Generation.open(path, needs_matrix=False).close()
        (path / name).write_bytes(content)
    (path / "late.more").touch()
    with pytest.raises(GenerationCorrupt, match=r"late\.more is not in the manifest"):
        Generation.open(path)
