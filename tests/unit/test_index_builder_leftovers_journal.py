from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from polyrank.index_builder.layout import entries
from polyrank.index_builder.store.leftovers import (
    Chunk,
    Journal,
    content_digest,
    journal_of,
    read_journal,
    source_digest,
)
from polyrank.model.representations import Representations

CHUNKS = [Chunk("", 8192, 3, "ab" * 32, "cd" * 32), Chunk("parts/1", 17, 0, "01" * 32, "23" * 32)]


def test_a_later_build_begins_with_the_chunks_it_keeps(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", 2, CHUNKS[:1])
    journal.append(CHUNKS[1])
    assert read_journal(tmp_path / "j") == (2, CHUNKS)


def test_a_journal_is_never_written_over(tmp_path: Path) -> None:
    Journal(tmp_path / "j")
    with pytest.raises(FileExistsError):
        Journal(tmp_path / "j")


def test_wherever_it_breaks_off_the_lines_before_count(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", 3)
    for chunk in CHUNKS:
        journal.append(chunk)
    content = (tmp_path / "j").read_bytes()
    for length in range(len(content) + 1):
        (tmp_path / "j").write_bytes(content[:length])
        whole = content[: length + 1].count(b"\n")  # a line needs not its newline, but all of its braces
        assert read_journal(tmp_path / "j") == (3 if whole else 0, CHUNKS[: max(0, whole - 1)])


@pytest.mark.parametrize("damaged", [b"\xff\n", b"[1]\n", b"{}\n", b'{"rows": "x"}\n', b"\n"])
def test_nothing_behind_a_damaged_line_counts(tmp_path: Path, damaged: bytes) -> None:
    journal = Journal(tmp_path / "j")
    journal.append(CHUNKS[0])
    with (tmp_path / "j").open("ab") as file:
        file.write(damaged)
    journal.append(CHUNKS[1])
    assert read_journal(tmp_path / "j") == (1, CHUNKS[:1])


def test_a_missing_journal_tells_of_nothing(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "j") == (0, [])


def test_whatever_a_vector_depends_on_changes_the_source() -> None:
    given: list[tuple[str, tuple[str, str], str, list[str], list[str]]] = [
        ("m", ("torch", "float32"), "float16", ["a", "b"], ["x", "y"]),
        ("n", ("torch", "float32"), "float16", ["a", "b"], ["x", "y"]),
        ("m", ("openvino", "float32"), "float16", ["a", "b"], ["x", "y"]),
        ("m", ("torch", "bfloat16"), "float16", ["a", "b"], ["x", "y"]),
        ("m", ("torch", "float32"), "float32", ["a", "b"], ["x", "y"]),
        ("m", ("torch", "float32"), "float16", ["a", "c"], ["x", "y"]),
        ("m", ("torch", "float32"), "float16", ["a", "b"], ["x", "z"]),
        ("m", ("torch", "float32"), "float16", ["a", "b"], ["xy", ""]),
        ("m", ("torch", "float32"), "float16", ["a"], ["b", "x", "y"]),
        ("m", ("torch", "float32"), "float16", ["b", "a"], ["x", "y"]),
    ]
    assert len({source_digest(*each) for each in given}) == len(given)
    assert source_digest(*given[0]) == source_digest(*given[0])


def test_the_content_is_of_the_bytes_and_of_what_the_manifest_tells() -> None:
    vectors = np.arange(6, dtype="<f2").reshape(2, 3)
    made = Representations(vectors)
    digest = content_digest(made, 1)
    assert digest == sha256(vectors.tobytes() + b"1").hexdigest()
    assert digest != content_digest(made, 2)
    assert digest != content_digest(Representations(vectors[::-1].copy()), 1)
    two, three = (Representations(vectors, vectors, np.array(each)) for each in ([1, 1], [0, 2]))
    assert len({digest, content_digest(two, 1), content_digest(three, 1)}) == 3


def test_a_journal_lies_beside_the_directory_that_it_is_of(tmp_path: Path) -> None:
    temporary = tmp_path / ".tmp-20261121T013000123456-1a2b3c4d"
    Journal(journal_of(temporary))
    assert journal_of(temporary).parent == tmp_path
    assert entries(tmp_path).journals == [journal_of(temporary)]
