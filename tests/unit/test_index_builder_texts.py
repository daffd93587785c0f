"""Texts are found by their hashes, and compared."""

from pathlib import Path

import numpy as np
import pytest
from fakes import HashEncoder

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.generation import texts as module
from polyrank.index_builder.generation.generation import StoredTexts
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore

ENCODER = HashEncoder()


def stored(root: Path, *texts: str) -> Path:
    pool = [Candidate(f"c{at}", text) for at, text in enumerate(texts)]
    return GenerationStore(root).path(build(ENCODER, pool, root).generation)


def test_the_first_row_of_a_text_is_found_letter_by_letter(tmp_path: Path) -> None:
    path = stored(tmp_path, "yes", "no", "yes", "Yes", "caf\u00e9", "cafe\u0301", "")
    opened = GenerationStore(tmp_path).open(path.name)
    rows = opened.texts.first_rows(["yes", "Yes", "YES", "cafe\u0301", "caf\u00e9", "", "yes "])
    assert rows.tolist() == [0, 3, -1, 5, 4, 6, -1]
    opened.close()


def test_a_text_with_the_hash_of_another_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "hash_id", lambda text: len(text))
    path = stored(tmp_path, "one", "two", "three", "one")
    opened = GenerationStore(tmp_path).open(path.name)
    monkeypatch.setattr("polyrank.index_builder.vectors.local.hash_id", lambda text: len(text))
    assert opened.texts.first_rows(["one", "two", "three", "seven"]).tolist() == [0, -1, 2, -1]
    vectors = opened.embeddings.matrix.astype(np.float32)
    expected = np.array([ENCODER.vector(text) for text in ("one", "two", "three", "one")])
    assert np.allclose(vectors, expected, atol=2e-3)
    opened.close()


def test_of_several_generations_the_first_that_has_a_text_counts(tmp_path: Path) -> None:
    paths = [stored(tmp_path / "a", "x", "y"), stored(tmp_path / "b", "y", "z", "w")]
    known = StoredTexts(paths, ENCODER.dim, "float16", None)(["w", "none", "y", "x"])
    assert known.positions.tolist() == [0, 2, 3]
    expected = np.array([ENCODER.vector(text) for text in ("w", "y", "x")]).astype(np.float16)
    assert np.array_equal(known.made.first, expected)
    nothing = StoredTexts(paths, ENCODER.dim, "float16", None)(["none"])
    assert (nothing.positions.tolist(), len(nothing.made.first)) == ([], 0)
    assert len(StoredTexts([], ENCODER.dim, "float16", None)(["x"]).positions) == 0
