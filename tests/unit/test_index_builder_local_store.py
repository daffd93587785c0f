import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from polyrank.index_builder.vectors.local import EmbeddingsWriter, LocalEmbeddings
from polyrank.model.representations import Representations


def store(directory: Path, count: int = 100, dim: int = 4) -> LocalEmbeddings:
    with closing(EmbeddingsWriter(directory, "float16")) as writer:
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
    with closing(EmbeddingsWriter(tmp_path, "float16")) as writer:
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
    with closing(EmbeddingsWriter(tmp_path, "float16")) as writer:
        writer.put_many(["a", "a"], Representations(np.ones((2, 1), np.float32)))
        with pytest.raises(ValueError, match="same id"):
            writer.commit()
