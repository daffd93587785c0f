"""The block of the second stage on disk, and what is refused of it."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from fakes import HashEncoder, pool

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.errors import GenerationCorrupt, MatrixMissing
from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.vectors.blocks import LATE_FILE, BlockReader, BlockWriter, RowBlock, each_of, fits
from polyrank.model.representations import LateRows, Representations, row_places

RAGGED, FIXED = LateRows(2, None), LateRows(2, 3)
COUNTS = np.array([2, 0, 3, 1])


def rows(count: int) -> np.ndarray:
    return np.arange(count * 2, dtype=np.float32).reshape(count, 2)


def written(directory: Path, late: LateRows, counts: np.ndarray) -> np.ndarray:
    """Put the rows of as many candidates as there are counts, in two parts."""
    made, half = rows(int(counts.sum())), len(counts) // 2
    with closing(BlockWriter(directory / LATE_FILE, late, "float16")) as writer:
        writer.put_many(made[: counts[:half].sum()], counts[:half])
        writer.sync()
        writer.put_many(made[counts[:half].sum() :], counts[half:])
    return made


@pytest.mark.parametrize(("late", "counts"), [(RAGGED, COUNTS), (FIXED, np.full(4, 3)), (RAGGED, np.zeros(4, int))])
def test_rows_are_found_by_candidate_and_in_their_order(tmp_path: Path, late: LateRows, counts: np.ndarray) -> None:
    made = written(tmp_path, late, counts)
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
def test_files_that_do_not_fit_are_refused(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    written(tmp_path, RAGGED, COUNTS)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        RowBlock(tmp_path / LATE_FILE, RAGGED, "float16", 4)


def test_a_replica_may_lack_the_rows(tmp_path: Path) -> None:
    written(tmp_path, RAGGED, COUNTS)
    (tmp_path / "late.bin").unlink()
    opened = RowBlock(tmp_path / LATE_FILE, RAGGED, "float16", 4)
    assert not opened.has_rows
    with pytest.raises(MatrixMissing):
        opened.gather(np.arange(2))


def test_what_a_killed_build_left_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    made = written(tmp_path, RAGGED, COUNTS)

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
    assert fits(made, late) == fitting


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
