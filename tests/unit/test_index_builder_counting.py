"""The stage of a build that counts words: what is streamed equals the table of all texts, to the bit."""

from pathlib import Path

import numpy as np
import pytest
from fakes import EVIDENCE, HashEncoder

from polyrank.index_builder.build import counting
from polyrank.index_builder.build.pipeline import build
from polyrank.index_builder.generation import candidates
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.lexical.table import WordTable
from polyrank.model.lexical.words import Statistics

SOME = ["lamp", "Desk!", "a", "the", "v2.3", "?", "über", *(f"ord-{n}-x" for n in range(90))]
SHARES = 1 / np.arange(1, len(SOME) + 1)  # the first are common, the last are rare


def texts(count: int, seed: int = 0) -> list[str]:
    """Some of them equal, and some without a word."""
    chance = np.random.default_rng(seed)
    return [" ".join(chance.choice(SOME, chance.integers(1, 7), p=SHARES / SHARES.sum())) for _ in range(count)]


def pool_of(given: list[str]) -> list[Candidate]:
    return [Candidate(f"c{at}", text, {}) for at, text in enumerate(given)]


def assert_equal(found: WordTable, expected: WordTable) -> None:
    for part, other in ((found, expected), (found.statistics, expected.statistics)):
        for name, array in other.arrays().items():
            assert part.arrays()[name].dtype == array.dtype, name
            np.testing.assert_array_equal(part.arrays()[name], array, name)


@pytest.mark.parametrize(("batch", "letters"), [(8192, 1 << 20), (16, 1 << 20), (16, 40), (100, 1)])
def test_however_it_is_cut_the_table_is_that_of_all_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int, letters: int
) -> None:
    monkeypatch.setattr(candidates, "BATCH_ROWS", batch)
    monkeypatch.setattr(counting, "_TEXTS_AT_ONCE", batch + 1)
    monkeypatch.setattr(counting, "_LETTERS_AT_ONCE", letters)
    given = texts(100)
    opened = GenerationStore(tmp_path).open(build(HashEncoder(evidence=EVIDENCE), pool_of(given), tmp_path).generation)
    assert opened.words is not None
    expected = WordTable.of(given, Statistics.of(given))
    assert_equal(opened.words.table, expected)
    assert 0 < len(expected.keys) < len(expected.statistics.keys), "common words are left out"
    assert opened.words.evidence.config == EVIDENCE


@pytest.mark.parametrize("given", [["?"], ["", "..."], ["lamp"]])
def test_a_pool_with_hardly_any_words(tmp_path: Path, given: list[str]) -> None:
    opened = GenerationStore(tmp_path).open(build(HashEncoder(evidence=EVIDENCE), pool_of(given), tmp_path).generation)
    assert opened.words is not None
    assert_equal(opened.words.table, WordTable.of(given, Statistics.of(given)))


def test_progress_tells_each_row_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_TEXTS_AT_ONCE", 16)
    told: list[tuple[str, int, int | None]] = []
    encoder = HashEncoder(evidence=EVIDENCE)
    generation = build(encoder, pool_of(texts(40)), tmp_path, progress=lambda *each: told.append(each)).generation
    assert [each for each in told if each[0] == "words"] == [("words", n, 80) for n in (0, 16, 32, 40, 56, 72, 80)]
    assert list(dict.fromkeys(stage for stage, _, _ in told))[:3] == ["read", "words", "encode"]
    assert GenerationStore(tmp_path).manifest(generation).build.seconds["words"] > 0


def test_a_model_that_counts_no_words_has_none(tmp_path: Path) -> None:
    stages: list[str] = []
    generation = build(
        HashEncoder(), pool_of(texts(9)), tmp_path, progress=lambda stage, *_: stages.append(stage)
    ).generation
    opened = GenerationStore(tmp_path).open(generation)
    assert (opened.words, "words" in stages, (opened.path / "words").exists()) == (None, False, False)
