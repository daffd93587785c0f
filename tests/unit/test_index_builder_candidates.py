from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from polyrank.index_builder.generation import candidates
from polyrank.index_builder.generation.candidates import CandidateTable, CandidateWriter
from polyrank.index_builder.pool.rows import Candidate


def rows(count: int) -> list[Candidate]:
    return [Candidate(f"id{i}", f"text {i} é", {"n": i, "tags": ["x", None], "o": {"a": 1.5}}) for i in range(count)]


def table(path: Path, content: list[Candidate]) -> CandidateTable:
    with CandidateWriter(path) as writer:
        for each in content:
            writer.add(each)
    return CandidateTable(path)


def test_rows_come_back_in_the_order_asked_across_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "BATCH_ROWS", 7)
    content = rows(50)
    read = table(tmp_path / "t", content)
    wanted = np.array([49, 0, 6, 7, 7, 13, 14, 48])
    assert len(read) == 50
    assert read.rows(wanted) == [content[i] for i in wanted]
    assert read.rows([]) == []
    assert [len(ids) for ids, _ in read.batches()] == [7] * 7 + [1]
    assert [pair for ids, texts in read.batches() for pair in zip(ids, texts, strict=True)] == [
        (each.id, each.text) for each in content
    ]


def test_a_batch_is_also_closed_by_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_BATCH_BYTES", 100)
    read = table(tmp_path / "t", [Candidate(str(i), "x" * 60, {}) for i in range(4)])
    assert [len(ids) for ids, _ in read.batches()] == [2, 2]


@pytest.mark.parametrize("row", [-1, 3])
def test_a_row_that_is_not_there_is_refused(tmp_path: Path, row: int) -> None:
    with pytest.raises(IndexError):
        table(tmp_path / "t", rows(3)).rows([0, row])


def test_a_file_that_was_not_finished_is_no_table(tmp_path: Path) -> None:
    def fail() -> None:
        with CandidateWriter(tmp_path / "t") as writer:
            writer.add(rows(1)[0])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with pytest.raises((ValueError, OSError)):
        CandidateTable(tmp_path / "t")


@pytest.mark.parametrize(("before", "after", "reason"), [
    ([0, 1000, 3000], [0, 1000, 2**30], "out of bounds"),
    ([0, 1000, 3000], [0, 2**30, 3000], "offset"),
    ([0, 1000, 3000], [0, -5, 3000], "offset"),
    (list(b"xxxx"), list(b"\xff\xfe\xff\xff"), "UTF8"),
])  # fmt: skip
def test_values_that_do_not_lie_in_the_file_are_found(
    tmp_path: Path, before: list[int], after: list[int], reason: str
) -> None:
    """Whoever writes into the store makes checksums that fit; to read such a row ended the process."""
    table(tmp_path / "t", [Candidate("a", "x" * 1000, {}), Candidate("b", "x" * 2000, {})]).check()
    kind = "<i4" if len(before) == 3 else "u1"
    content = (
        (tmp_path / "t").read_bytes().replace(np.array(before, kind).tobytes(), np.array(after, kind).tobytes(), 1)
    )
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        CandidateTable(tmp_path / "t").check()


def test_a_candidate_that_lacks_a_value_is_found(tmp_path: Path) -> None:
    columns = [pa.array([each], pa.string()) for each in ("a", None, "{}")]
    with pa.OSFile(str(tmp_path / "t"), "wb") as sink, pa.ipc.new_file(sink, candidates._SCHEMA) as writer:
        writer.write_batch(pa.record_batch(columns, schema=candidates._SCHEMA))
    with pytest.raises(ValueError, match="lacks a value"):
        CandidateTable(tmp_path / "t").check()


def test_other_columns_are_refused(tmp_path: Path) -> None:
    with pa.OSFile(str(tmp_path / "t"), "wb") as sink, pa.ipc.new_file(sink, pa.schema([("id", pa.string())])):
        pass
    with pytest.raises(ValueError, match="other columns"):
        CandidateTable(tmp_path / "t")
