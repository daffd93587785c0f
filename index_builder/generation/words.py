"""How words count in a generation: the evidence of its model, and the inverted index of its candidates' words.

    words/<name>.npy              which rows have a word: the arrays of polyrank.model.lexical.table.WordTable
    words/statistics-<name>.npy   how common each word was in the pool when it was built: those of Statistics

The files are memory-mapped. A generation whose model counts no words has none of them.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from polyrank.index_builder.generation.candidates import CANDIDATES_FILE, CandidateTable
from polyrank.model.checkpoint.files import CONFIG_FILE, read_object
from polyrank.model.config import ModelConfig
from polyrank.model.lexical.score import LexicalScore
from polyrank.model.lexical.table import ROW_FEATURES, TableInParts, WordTable
from polyrank.model.lexical.words import Statistics

WORDS_DIRECTORY = "words"

# Texts that are counted together take 9 to 28 bytes of memory for each letter.
_LETTERS_AT_ONCE = 1 << 20
_TEXTS_AT_ONCE = 8192

_TABLE: Mapping[str, DTypeLike] = {
    "keys": np.uint64,
    "starts": np.int64,
    "rows": np.int32,
    "weights": np.float32,
    "columns": np.float32,
    "texts": np.uint64,
    "texts_rows": np.int32,
}
_STATISTICS: Mapping[str, DTypeLike] = {
    "statistics-totals": np.int64,
    "statistics-keys": np.uint64,
    "statistics-frequencies": np.int64,
}


@dataclass(frozen=True, slots=True)
class Words:
    """How words count in a generation.

    `table`: of the generation's own rows, with the statistics that hold for every other text as well.
    """

    evidence: LexicalScore
    table: WordTable


def evidence_of(model: Path) -> LexicalScore | None:
    """Return the evidence of the model in a directory; None where words do not count."""
    path = model / CONFIG_FILE
    config = read_object(path) if path.is_file() else {}
    if config.get("evidence") is None:
        return None
    model_config = ModelConfig.from_json(config)
    return None if model_config.evidence is None else LexicalScore(model_config.evidence, model_config.has_network)


def count_words(directories: Sequence[Path], statistics: Statistics | None, on_rows: Callable[[int], None]) -> None:
    """Write the words of the candidate tables of a build's parts.

    The texts are read twice, once for how common each word is, once to write every entry to its place. Memory grows
    with the distinct words, and by 12 bytes a candidate while the hashes of the texts are sorted.

    `statistics`: those by which words count; None: those of all tables together. `on_rows`: called with a number of
    rows whenever so many more were read; each row is told twice.
    """
    tables = [CandidateTable(directory / CANDIDATES_FILE) for directory in directories]
    none = Statistics.of([])
    counted = [reduce(Statistics.plus, map(Statistics.of, _pieces(table, on_rows)), none) for table in tables]
    statistics = statistics or reduce(Statistics.plus, counted)
    for directory, table, own in zip(directories, tables, counted, strict=True):
        (directory / WORDS_DIRECTORY).mkdir()
        tells = statistics.rarity(own.keys) > 0
        new_array = partial(_new_file, directory)
        files = TableInParts(own.keys[tells], own.frequencies[tells], len(table), new_array)
        for texts in _pieces(table, on_rows):
            files.add(WordTable.of(texts, statistics))
        files.finished(statistics)
        for name, array in statistics.arrays().items():
            np.save(_path(directory, f"statistics-{name}"), array)


def _pieces(table: CandidateTable, on_rows: Callable[[int], None]) -> Iterator[list[str]]:
    """Yield the texts of a table in order, some at a time, and tell of each piece when it was used."""
    piece: list[str] = []
    letters = 0
    for text in (text for _, batch in table.batches() for text in batch):
        piece.append(text)
        letters += len(text)
        if letters >= _LETTERS_AT_ONCE or len(piece) >= _TEXTS_AT_ONCE:
            yield piece
            on_rows(len(piece))
            piece, letters = [], 0
    if piece:
        yield piece
        on_rows(len(piece))


def open_words(directory: Path, evidence: LexicalScore, count: int) -> Words:
    """Open the words of a generation of `count` candidates, in its directory.

    Raises ValueError if a file is missing or no array, or the files do not fit each other or the count.
    """
    table = {name: _mapped(directory, name, dtype) for name, dtype in _TABLE.items()}
    statistics = {
        name.removeprefix("statistics-"): _mapped(directory, name, dtype) for name, dtype in _STATISTICS.items()
    }
    _check_statistics(statistics)
    _check_table(table, count)
    return Words(evidence, WordTable.from_arrays(table, Statistics.from_arrays(statistics)))


def _path(directory: Path, name: str) -> Path:
    return directory / WORDS_DIRECTORY / f"{name}.npy"


def _new_file(directory: Path, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    path = _path(directory, name)
    array = np.lib.format.open_memmap(path, "w+", dtype, shape)
    # Without this, writing to a hole in the file would kill the process if the disk is full.
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return np.asarray(array)


def _mapped(directory: Path, name: str, dtype: DTypeLike) -> NDArray[Any]:
    path = _path(directory, name)
    if not path.is_file():
        raise ValueError(f"its model counts words, and {WORDS_DIRECTORY}/{name}.npy is missing; build it again")
    try:
        array = np.asarray(np.lib.format.open_memmap(path, "r"))
    except ValueError as error:
        raise ValueError(f"{WORDS_DIRECTORY}/{name}.npy: {error}") from error
    if array.dtype != dtype:
        raise ValueError(f"{WORDS_DIRECTORY}/{name}.npy holds {array.dtype}, not {np.dtype(dtype)}")
    if array.dtype.kind == "f" and array.size and not np.isfinite([array.min(), array.max()]).all():
        raise ValueError(f"{WORDS_DIRECTORY}/{name}.npy holds what is no number")
    return array


def _check_statistics(arrays: Mapping[str, NDArray[Any]]) -> None:
    _check_shape("statistics-totals", arrays["totals"], (2,))
    _check_shape("statistics-frequencies", arrays["frequencies"], (arrays["keys"].size,))
    _check_ascending("statistics-keys", arrays["keys"], strictly=True)
    texts, words = map(int, arrays["totals"])
    _check_within("statistics-totals", arrays["totals"], 1 << 53)  # what a float tells from the next one
    _check_within("statistics-frequencies", arrays["frequencies"], min(texts, words) + 1)


def _check_table(arrays: Mapping[str, NDArray[Any]], count: int) -> None:
    _check_shape("starts", arrays["starts"], (arrays["keys"].size + 1,))
    _check_shape("rows", arrays["rows"], (int(arrays["starts"][-1]),))
    _check_shape("weights", arrays["weights"], arrays["rows"].shape)
    _check_shape("columns", arrays["columns"], (len(ROW_FEATURES), count))
    _check_shape("texts", arrays["texts"], (count,))
    _check_shape("texts_rows", arrays["texts_rows"], (count,))
    _check_ascending("keys", arrays["keys"], strictly=True)
    _check_ascending("starts", arrays["starts"], strictly=True)
    _check_ascending("texts", arrays["texts"])
    _check_within("starts", arrays["starts"][:1], 1)
    _check_within("rows", arrays["rows"], count)
    _check_within("texts_rows", arrays["texts_rows"], count)


def _check_shape(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{WORDS_DIRECTORY}/{name}.npy has the shape {array.shape}, and {shape} would fit")


def _check_ascending(name: str, array: NDArray[Any], strictly: bool = False) -> None:
    before, after = array[:-1], array[1:]
    if array.ndim != 1 or not (before < after if strictly else before <= after).all():
        raise ValueError(f"{WORDS_DIRECTORY}/{name}.npy is not in ascending order")


def _check_within(name: str, array: NDArray[Any], end: int) -> None:
    if array.size and not 0 <= array.min() <= array.max() < end:
        raise ValueError(f"{WORDS_DIRECTORY}/{name}.npy is not within 0..{end - 1}")
