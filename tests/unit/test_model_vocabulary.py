"""Vocabularies of tiktoken: ids back to texts, and files that are none."""

import base64
import random
from pathlib import Path

import pytest

from polyrank.model.errors import InvalidInput
from polyrank.model.text import tokenizer
from polyrank.model.text.tokenizer import Vocabulary


def written(path: Path, tokens: list[bytes]) -> Path:
    lines = [b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)]
    random.Random(0).shuffle(lines)
    path.write_bytes(b"".join(lines))
    return path


def test_ids_become_the_text_that_they_were_cut_from(tmp_path: Path) -> None:
    own = Vocabulary.read(written(tmp_path / "own.tiktoken", [b"Gr", "\u00fc".encode(), b"\xc3", b"\x9f", b"e", b" "]))
    assert own.text([0, 1, 2, 3, 4]) == "Gr\u00fc\u00dfe"
    assert own.text([0, 2]) == "Gr\ufffd", "half a letter"
    with pytest.raises(InvalidInput, match="no token 6"):
        own.text([0, 6])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"no base64! 1", "is no vocabulary"),
        (b"YQ==", "is no vocabulary"),
        (b"YQ== one", "is no vocabulary"),
        (b"YQ== 1 2", "is no vocabulary"),
        (b"\xff\xfe", "is no vocabulary"),
        (b"x" * 2000, "is larger than 1000 bytes"),
    ],
)
def test_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, says: str) -> None:
    monkeypatch.setattr(tokenizer, "MOST_FILE_BYTES", 1000)
    (tmp_path / "own").write_bytes(content)
    with pytest.raises(InvalidInput, match=says):
        Vocabulary.read(tmp_path / "own")


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        Vocabulary.read(tmp_path / "own")
