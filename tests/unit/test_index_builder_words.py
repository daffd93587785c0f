"""The words of a generation: counted in a stream they are the table of all texts; and what is refused of them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import EVIDENCE, HashEncoder, pool
from numpy.typing import NDArray

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.errors import GenerationCorrupt
from polyrank.index_builder.generation import candidates
from polyrank.index_builder.generation import words as module
from polyrank.index_builder.generation.generation import Generation, describe_files
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.model.lexical.table import WordTable
from polyrank.model.lexical.words import Statistics
from polyrank.model.text.assembly import Conversation

COUNT = 80
SOME = ["lamp", "Desk!", "a", "the", "v2.3", "?", "über", *(f"ord-{n}-x" for n in range(90))]
SHARES = 1 / np.arange(1, len(SOME) + 1)  # the first are common, the last are rare


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("built")
    return GenerationStore(root).path(build(HashEncoder(evidence=EVIDENCE), pool(COUNT), root).generation)


@pytest.fixture
def path(built: Path, tmp_path: Path) -> Path:
    """A generation whose files may be changed."""
    return Path(shutil.copytree(built, tmp_path / "generations" / built.name))


def rewrite_manifest(path: Path) -> None:
    """Let the manifest state the files as they are."""
    manifest = Manifest.from_json((path / "manifest.json").read_bytes(), path.name)
    (path / "manifest.json").write_bytes(replace(manifest, files=describe_files(path)).to_json())


def put(array: NDArray[Any], at: int, value: int) -> NDArray[Any]:
    changed = array.copy()
    changed[at] = value
    return changed


def test_the_words_are_opened_with_the_evidence_of_the_model(path: Path) -> None:
    words = Generation.open(path).words
    assert words.evidence.config == EVIDENCE
    assert len(words.table) == words.table.statistics.texts == COUNT
    said = Conversation.of("text 7")
    values = words.evidence.values(said, words.table)
    assert np.argmin(values) == 7, "it was said already"
    other = words.evidence.values(said, WordTable.of(["text 7", "something else entirely"], words.table.statistics))
    assert other[0] == values[7]
    assert other[1] not in values


MISFITS: dict[str, tuple[str, Callable[[NDArray[Any]], NDArray[Any]], str]] = {
    "a row beyond the count": ("rows", lambda a: put(a, 5, COUNT), "is not within 0..79"),
    "a negative row": ("rows", lambda a: put(a, 5, -1), "is not within 0..79"),
    "fewer rows than entries": ("rows", lambda a: a[:-1], r"has the shape \(79,\), and \(80,\) would fit"),
    "fewer weights than rows": ("weights", lambda a: a[:-1], "has the shape"),
    "weights of another type": ("weights", lambda a: a.astype(np.float64), "holds float64, not float32"),
    "keys out of order": ("keys", lambda a: a[::-1].copy(), "is not in ascending order"),
    "keys in two dimensions": ("keys", lambda a: a.reshape(1, -1), "is not in ascending order"),
    "a weight that is no number": ("weights", lambda a: put(a, 5, np.nan), "holds what is no number"),
    "a column without end": ("columns", lambda a: np.full_like(a, -np.inf), "holds what is no number"),
    "a negative total": ("statistics-totals", lambda a: put(a, 1, -1), "is not within 0"),
    "more texts with a word than there are": (
        "statistics-frequencies",
        lambda a: put(a, 0, COUNT + 1),
        "is not within 0..80",
    ),
    "fewer starts than keys": ("starts", lambda a: a[:-1], "has the shape"),
    "starts that begin before the entries": ("starts", lambda a: put(a, 0, -1), "is not within 0..0"),
    "starts out of order": ("starts", lambda a: put(a, 2, 0), "is not in ascending order"),
    "columns of fewer rows": ("columns", lambda a: a[:, 1:], "has the shape"),
    "more columns than there are": ("columns", lambda a: np.concatenate([a, a]), "has the shape"),
    "texts out of order": ("texts", lambda a: a[::-1].copy(), "is not in ascending order"),
    "fewer texts": ("texts", lambda a: a[1:], "has the shape"),
    "a text's row beyond the count": ("texts_rows", lambda a: put(a, 0, COUNT), "is not within 0..79"),
    "fewer rows of texts": ("texts_rows", lambda a: a[1:], "has the shape"),
    "one total": ("statistics-totals", lambda a: a[:1], "has the shape"),
    "counted keys out of order": ("statistics-keys", lambda a: a[::-1].copy(), "is not in ascending order"),
    "fewer frequencies than keys": ("statistics-frequencies", lambda a: a[1:], "has the shape"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_files_that_do_not_fit_each_other_are_refused(path: Path, misfit: str) -> None:
    name, change, reason = MISFITS[misfit]
    file = path / "words" / f"{name}.npy"
    np.save(file, change(np.load(file)))
    rewrite_manifest(path)
    with pytest.raises(GenerationCorrupt, match=rf"words/{name}\.npy {reason}"):
        Generation.open(path)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"anything else"])
def test_what_is_no_array_is_refused(path: Path, content: bytes) -> None:
    (path / "words" / "rows.npy").write_bytes(content)
    rewrite_manifest(path)
    with pytest.raises(GenerationCorrupt, match=r"words/rows\.npy: ") as caught:
        Generation.open(path)
    assert "\n" not in str(caught.value)


def test_objects_are_never_unpickled(path: Path) -> None:
    np.save(path / "words" / "rows.npy", np.array([{}] * COUNT))
    rewrite_manifest(path)
    with pytest.raises(GenerationCorrupt, match=r"words/rows\.npy: "):
        Generation.open(path)


def test_a_model_that_counts_words_needs_them(path: Path) -> None:
    shutil.rmtree(path / "words")
    rewrite_manifest(path)
    with pytest.raises(GenerationCorrupt) as caught:
        Generation.open(path)
    assert caught.value.reason == "its model counts words, and words/keys.npy is missing; build it again"


@pytest.mark.parametrize("evidence", [{"version": 99}, {"weights": {"of tomorrow": 1.0}}, "much"])
def test_evidence_that_cannot_be_read_is_refused(path: Path, evidence: object) -> None:
    file = path / "model" / "polyrank.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "evidence": evidence}))
    rewrite_manifest(path)
    with pytest.raises(GenerationCorrupt, match=r"polyrank\.json: .*evidence"):
        Generation.open(path)


def test_a_generation_without_words_opens_as_it_was(path: Path) -> None:
    """One whose model was made before there was evidence."""
    shutil.rmtree(path / "words")
    file = path / "model" / "polyrank.json"
    config = json.loads(file.read_text())
    del config["evidence"]
    file.write_text(json.dumps(config))
    rewrite_manifest(path)
    assert Generation.open(path).words is None
    file.unlink()
    rewrite_manifest(path)
    assert Generation.open(path).words is None


def test_words_stay_here_if_the_matrix_does_not(path: Path, built: Path) -> None:
    """As on a replica that reads vectors from Redis."""
    (path / "embeddings.bin").unlink()
    opened = Generation.open(path, needs_matrix=False)
    assert not opened.embeddings.has_matrix
    values, whole = (
        Snapshot.of(each).word_values(Conversation.of("text 7")) for each in (opened, Generation.open(built))
    )
    assert values.own.values.tobytes() == whole.own.values.tobytes()


def test_the_arrays_stay_on_the_disk(path: Path) -> None:
    words = Generation.open(path).words
    for array in (*words.table.arrays().values(), words.table.statistics.keys):
        assert isinstance(array.base, np.memmap)
        assert not array.flags.writeable


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
def test_however_it_is_cut_the_table_is_that_of_all_texts(tmp_path, monkeypatch, batch: int, letters: int) -> None:
    monkeypatch.setattr(candidates, "BATCH_ROWS", batch)
    monkeypatch.setattr(module, "_TEXTS_AT_ONCE", batch + 1)
    monkeypatch.setattr(module, "_LETTERS_AT_ONCE", letters)
    given = texts(100)
    opened = GenerationStore(tmp_path).open(build(HashEncoder(evidence=EVIDENCE), pool_of(given), tmp_path).generation)
    expected = WordTable.of(given, Statistics.of(given))
    assert_equal(opened.words.table, expected)
    assert 0 < len(expected.keys) < len(expected.statistics.keys), "common words are left out"
    assert opened.words.evidence.config == EVIDENCE


@pytest.mark.parametrize("given", [["?"], ["", "..."], ["lamp"]])
def test_a_pool_with_hardly_any_words(tmp_path: Path, given: list[str]) -> None:
    opened = GenerationStore(tmp_path).open(build(HashEncoder(evidence=EVIDENCE), pool_of(given), tmp_path).generation)
    assert_equal(opened.words.table, WordTable.of(given, Statistics.of(given)))


def test_progress_tells_each_row_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TEXTS_AT_ONCE", 16)
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
