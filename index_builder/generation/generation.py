"""A part of a generation, opened and checked: vectors, ids, candidates, index and words, which belong together.

    <id>/manifest.json   manifest.py
    <id>/model/          the checkpoint
    <id>/                the files of the part, if it is the only one
    <id>/parts/<n>/      those of each of several

Each of several parts also holds `order.bin`, the place of each row in the whole pool. Equal scores are ordered by it,
so an answer does not depend on the number of parts.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import file_digest
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import GenerationCorrupt, GenerationNotFound
from polyrank.index_builder.generation.candidates import (
    CANDIDATES_FILE,
    TEXTS_FILE,
    CandidateTable,
    KnownTexts,
    TextIndex,
)
from polyrank.index_builder.generation.manifest import MANIFEST_FILE, PARTS, FileEntry, Manifest, part_directory
from polyrank.index_builder.generation.words import Words, evidence_of, open_words
from polyrank.index_builder.index.faiss_index import CandidateIndex
from polyrank.index_builder.layout import TEMPORARY_PREFIX, why_not_plain
from polyrank.index_builder.vectors.local import IDS_FILE, LATE_FILE, MATRIX_FILE, LocalEmbeddings, late_files
from polyrank.model.errors import CheckpointInvalid, shortage_in
from polyrank.model.inputs import open_input, read_input
from polyrank.model.representations import LateRows, Representations

INDEX_FILE = "index.faiss"
ORDER_FILE = "order.bin"
MODEL_DIRECTORY = "model"

# What a replica need not hold, because Redis does.
_IN_REDIS = {MATRIX_FILE, LATE_FILE}


@dataclass(frozen=True, eq=False)
class Generation:
    """An open part of a generation, usually its only one; it never changes, and several threads may read it."""

    path: Path
    whole: Manifest
    manifest: Manifest
    model_directory: Path  # the checkpoint of the model that made the vectors
    candidates: CandidateTable
    texts: TextIndex
    embeddings: LocalEmbeddings  # vectors by row, and rows by id
    index: CandidateIndex | None  # None if the matrix is scanned instead
    words: Words | None  # None if words do not count for the model
    # The place of each row in the pool, (N,), ascending; None: it is the only part, and a row's number is its place.
    order: NDArray[np.int64] | None = None

    @property
    def id(self) -> str:
        return self.manifest.id

    @classmethod
    def open(cls, path: Path, part: int = 0, *, verify: bool = True, needs_matrix: bool = True) -> "Generation":
        """Open and check a part, given by its number, of the generation in a directory.

        Names, sizes and counts are always checked; with `verify`, also the sha256 of every file, and the values of
        candidates. With `needs_matrix`, a generation whose matrix is missing is refused.

        Raises:
            GenerationNotFound: there is no such directory.
            GenerationCorrupt: a file is missing, unexpected, of another size or content, or the files do not fit
                together.
        """
        whole = read_manifest(path)
        manifest, directory = whole.of_part(part), path / whole.directory(part)
        try:
            _check_part(directory, manifest, verify, needs_matrix)
            generation = cls._mapped(directory, whole, manifest, path / MODEL_DIRECTORY)
            if verify:
                generation.candidates.check()
            return generation
        # pyarrow's errors are ValueErrors. An OSError means that a file cannot be read.
        except (OSError, ValueError, CheckpointInvalid) as error:
            message = f"part {whole.parts[part].name}: {error}" if len(whole.parts) > 1 else str(error)
            raise shortage_in(error) or GenerationCorrupt(manifest.id, message) from error

    @classmethod
    def _mapped(cls, path: Path, whole: Manifest, manifest: Manifest, model: Path) -> "Generation":
        embeddings = LocalEmbeddings(path, manifest.dim, manifest.dtype, manifest.late, manifest.id)
        candidates = CandidateTable(path / CANDIDATES_FILE)
        texts, index = TextIndex(path, candidates), None
        counts = {IDS_FILE: embeddings.count(), CANDIDATES_FILE: len(candidates), TEXTS_FILE: len(texts)}
        if manifest.index.factory is not None:
            index = CandidateIndex.load(path / INDEX_FILE, manifest.index)
            counts[INDEX_FILE] = index.count
            if index.dim != manifest.dim:
                raise ValueError(f"{INDEX_FILE} is of dimension {index.dim}, the manifest says {manifest.dim}")
        for name, count in counts.items():
            if count != manifest.count:
                raise ValueError(f"{name} is of {count} candidates, the manifest says {manifest.count}")
        evidence = evidence_of(model)
        words = open_words(path, evidence, manifest.count) if evidence else None
        order = None if manifest.is_whole else np.fromfile(path / ORDER_FILE, np.dtype("<i8"))
        if order is not None and (len(order) != manifest.count or not (order[:-1] < order[1:]).all() or order[0] < 0):
            raise ValueError(f"{ORDER_FILE} does not hold {manifest.count} places in ascending order")
        return cls(path, whole, manifest, model, candidates, texts, embeddings, index, words, order)

    def close(self) -> None:
        """Drop the maps of the files; arrays that were taken from them stay valid."""
        self.embeddings.close()


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of the generation in a directory.

    Raises:
        GenerationNotFound: there is no such directory.
        GenerationCorrupt: the manifest is missing or damaged, or the directory is a link.
    """
    generation_id = path.name.removeprefix(TEMPORARY_PREFIX)
    if why := why_not_plain(path, is_directory=True):
        raise GenerationCorrupt(generation_id, f"{path} {why}")
    if not path.is_dir():
        raise GenerationNotFound(f"no generation {generation_id} in {path.parent.parent}")
    try:
        content = read_input(path / MANIFEST_FILE)
    except FileNotFoundError as error:
        raise GenerationCorrupt(generation_id, f"{MANIFEST_FILE} is missing") from error
    except OSError as error:
        raise shortage_in(error) or GenerationCorrupt(generation_id, f"{MANIFEST_FILE}: {error.strerror}") from error
    return Manifest.from_json(content, generation_id)


def describe_files(
    path: Path, known_files: Mapping[str, Mapping[str, FileEntry]] = MappingProxyType({})
) -> dict[str, FileEntry]:
    """Describe the files in a generation's directory for its manifest; `known_files`, by their folder, are not read."""
    entries = {f"{folder}{name}": entry for folder, files in known_files.items() for name, entry in files.items()}
    paths = sorted(_files(path).items())
    return {name: entries.get(name) or FileEntry(sha256_of(file), file.stat().st_size) for name, file in paths}


def sha256_of(path: Path) -> str:
    """Return the digest of a file, in hexadecimal digits."""
    with open_input(path) as file:
        return file_digest(file, "sha256").hexdigest()


def check_beside_parts(path: Path, manifest: Manifest, *, verify: bool = True) -> None:
    """Check the files of a generation that belong to none of its parts alone; errors as `Generation.open`."""
    if len(manifest.parts) == 1:
        return
    own = tuple(f"{part_directory(part)}/" for part in range(len(manifest.parts)))
    try:
        files = {name: file for name, file in _files(path).items() if not name.startswith(own)}
        expected = {name: entry for name, entry in manifest.files.items() if not name.startswith(f"{PARTS}/")}
        if missing := set(expected) - set(files):
            raise ValueError(f"{min(missing)} is missing")
        _check_files(files, _empty_directories(path) - {name.rstrip("/") for name in own}, expected, verify)
    except (OSError, ValueError) as error:
        raise shortage_in(error) or GenerationCorrupt(manifest.id, str(error)) from error


def _check_part(path: Path, manifest: Manifest, verify: bool, needs_matrix: bool) -> None:
    files, expected = _files(path), manifest.files
    required = {MATRIX_FILE, IDS_FILE, CANDIDATES_FILE, TEXTS_FILE} | late_files(manifest.late)
    required |= {INDEX_FILE} if manifest.index.factory else set()
    required |= set() if manifest.is_whole else {ORDER_FILE}
    missing = (set(expected) | required) - set(files)
    if missing <= _IN_REDIS and not needs_matrix:
        expected = {name: entry for name, entry in expected.items() if name not in missing}
    elif missing:
        only = "; a replica without it can be served with --vectors redis" if missing <= _IN_REDIS else ""
        raise ValueError(f"{min(missing)} is missing{only}")
    _check_files(files, _empty_directories(path), expected, verify)


def _check_files(files: dict[str, Path], empty: set[str], expected: dict[str, FileEntry], verify: bool) -> None:
    if extra := sorted((set(files) | empty) - set(expected)):
        raise ValueError(f"{extra[0]} is not in the manifest")
    for name, entry in expected.items():
        size = files[name].stat().st_size
        if size != entry.bytes:
            raise ValueError(f"{name} has {size} bytes, the manifest says {entry.bytes}")
        if verify and sha256_of(files[name]) != entry.sha256:
            raise ValueError(f"the sha256 of {name} differs from the manifest's")


def _files(path: Path) -> dict[str, Path]:
    """Every file below the directory but the manifest, by relative path; links and devices raise ValueError."""
    files = {}
    for folder, folders, names in os.walk(path, onerror=_raise):
        for entry in map(Path(folder).joinpath, [*folders, *names]):
            if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
                raise ValueError(f"{entry.relative_to(path)} is not a plain file")
            if entry.is_file():
                files[entry.relative_to(path).as_posix()] = entry
    files.pop(MANIFEST_FILE, None)
    return files


def _empty_directories(path: Path) -> set[str]:
    """The empty directories below the directory, by relative path; others show in the paths of their files."""
    walk = os.walk(path, onerror=_raise)
    return {Path(folder).relative_to(path).as_posix() for folder, folders, names in walk if not folders + names}


def _raise(error: OSError) -> None:
    raise error  # by default `os.walk` leaves out a directory that it cannot read


class StoredTexts:
    """Looks texts up in the generations of some directories, the first of which counts; a `FindTexts`.

    It opens neither their indexes nor their words.
    """

    def __init__(self, paths: Sequence[Path], dim: int, dtype: str, late: LateRows | None) -> None:
        self._paths, self._dim, self._dtype, self._late = paths, dim, dtype, late

    @cached_property
    def _opened(self) -> list[tuple[TextIndex, LocalEmbeddings]]:
        return [
            (
                TextIndex(path, CandidateTable(path / CANDIDATES_FILE)),
                LocalEmbeddings(path, self._dim, self._dtype, self._late),
            )
            for path in self._paths
        ]

    def __call__(self, texts: Sequence[str]) -> KnownTexts:
        """Return which texts there are, and what was made of them."""
        open_, places, parts = np.arange(len(texts)), [np.empty(0, np.int64)], []
        for index, embeddings in self._opened:
            rows = index.first_rows([texts[at] for at in open_.tolist()])
            if (rows >= 0).any():
                places.append(open_[rows >= 0])
                parts.append(embeddings.representations(rows[rows >= 0]))
                open_ = open_[rows < 0]
        positions = np.concatenate(places)
        if not parts:
            return KnownTexts(positions, Representations.none(self._dim, self._late))
        return KnownTexts(np.sort(positions), Representations.join(parts).take(np.argsort(positions)))
