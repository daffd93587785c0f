import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from polyrank.index_builder.vectors import local as module
from polyrank.index_builder.vectors.local import EmbeddingsWriter, IdIndex, LocalEmbeddings, hash_id
from polyrank.model.representations import Representations


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
