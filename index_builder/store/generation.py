"""One published generation, opened and checked: vectors, ids, candidates and index as one unit."""

import os
from hashlib import file_digest
from pathlib import Path

from polyrank.index_builder.errors import GenerationCorrupt, GenerationNotFound
from polyrank.index_builder.index.faiss_index import CandidateIndex
from polyrank.index_builder.store.candidates import CandidateTable
from polyrank.index_builder.store.manifest import MANIFEST_FILE, FileEntry, Manifest
from polyrank.index_builder.vectors.local import IDS_FILE, MATRIX_FILE, LocalStore

CANDIDATES_FILE = "candidates.arrow"
INDEX_FILE = "index.faiss"
MODEL_DIRECTORY = "model"
# A generation has this prefix, in the directory's name only, until it is complete and after it was removed.
TEMPORARY_PREFIX = ".tmp-"


class Generation:
    """An open generation; safe to read from several threads.

    Attributes:
        path: its directory.
        manifest: what it says of itself.
        candidates: ids, texts and metadata by row.
        store: embeddings by id and by row, ids to rows.
        index: None where scanning the matrix is the index.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        candidates: CandidateTable,
        store: LocalStore,
        index: CandidateIndex | None,
    ) -> None:
        self.path, self.manifest = path, manifest
        self.candidates, self.store, self.index = candidates, store, index

    @property
    def id(self) -> str:
        """The generation's id."""
        return self.manifest.id

    @property
    def model_directory(self) -> Path:
        """The checkpoint that made the vectors."""
        return self.path / MODEL_DIRECTORY

    @classmethod
    def open(cls, path: Path, *, verify: bool = True, needs_matrix: bool = True) -> "Generation":
        """Open and check the generation in this directory.

        Args:
            path: the directory.
            verify: read every file and compare its sha256; otherwise only names, sizes and counts are checked.
            needs_matrix: refuse it where the matrix's file is missing.

        Raises:
            GenerationNotFound: there is no such directory.
            GenerationCorrupt: a file is missing, unexpected, of another size or content, or they do not fit together.
        """
        manifest = read_manifest(path)
        try:
            _check_files(path, manifest, verify, needs_matrix)
            return cls._opened(path, manifest)
        # pyarrow's errors are ValueErrors; the file system's mean that a file cannot be read.
        except (OSError, ValueError) as error:
            raise GenerationCorrupt(manifest.id, str(error)) from error

    @classmethod
    def _opened(cls, path: Path, manifest: Manifest) -> "Generation":
        store = LocalStore(path, manifest.dim, manifest.dtype)
        candidates = CandidateTable(path / CANDIDATES_FILE)
        index = None
        counts = {IDS_FILE: store.count(), CANDIDATES_FILE: len(candidates)}
        if manifest.index.factory is not None:
            index = CandidateIndex.load(path / INDEX_FILE, manifest.index)
            counts[INDEX_FILE] = index.count
            if index.dim != manifest.dim:
                raise ValueError(f"{INDEX_FILE} is of dimension {index.dim}, the manifest says {manifest.dim}")
        for name, count in counts.items():
            if count != manifest.count:
                raise ValueError(f"{name} is of {count} candidates, the manifest says {manifest.count}")
        return cls(path, manifest, candidates, store, index)

    def close(self) -> None:
        """Let go of the maps; whoever still holds an array of them may go on using it."""
        self.store.close()


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of the generation in this directory.

    Raises:
        GenerationNotFound: there is no such directory.
        GenerationCorrupt: the manifest is missing or damaged.
    """
    generation_id = path.name.removeprefix(TEMPORARY_PREFIX)
    if not path.is_dir():
        raise GenerationNotFound(f"no generation {generation_id} in {path.parent.parent}")
    try:
        content = (path / MANIFEST_FILE).read_bytes()
    except FileNotFoundError as error:
        raise GenerationCorrupt(generation_id, f"{MANIFEST_FILE} is missing") from error
    except OSError as error:
        raise GenerationCorrupt(generation_id, f"{MANIFEST_FILE}: {error.strerror}") from error
    return Manifest.from_json(content, generation_id)


def _files(path: Path) -> dict[str, Path]:
    """Every file below the directory but the manifest, by relative path; a link or device is no file of ours."""
    found = {}
    for folder, folders, names in os.walk(path):
        for name in [*folders, *names]:
            each = Path(folder) / name
            if each.is_symlink() or not (each.is_dir() or each.is_file()):
                raise ValueError(f"{each.relative_to(path)} is not a plain file")
        found.update({(Path(folder) / name).relative_to(path).as_posix(): Path(folder) / name for name in names})
    found.pop(MANIFEST_FILE, None)
    return found


def _empty_directories(path: Path) -> set[str]:
    """Those below the directory, by relative path; every other one is known by its files."""
    walked = os.walk(path)
    return {Path(folder).relative_to(path).as_posix() for folder, folders, names in walked if not folders + names}


def describe_files(path: Path) -> dict[str, FileEntry]:
    """What the manifest of the generation in this directory has to say of its files."""
    return {name: FileEntry(_sha256(each), each.stat().st_size) for name, each in sorted(_files(path).items())}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _check_files(path: Path, manifest: Manifest, verify: bool, needs_matrix: bool) -> None:
    found, expected = _files(path), manifest.files
    required = {MATRIX_FILE, IDS_FILE, CANDIDATES_FILE} | ({INDEX_FILE} if manifest.index.factory else set())
    missing = (set(expected) | required) - set(found)
    if missing == {MATRIX_FILE} and not needs_matrix:
        expected = {name: entry for name, entry in expected.items() if name != MATRIX_FILE}
    elif missing:
        only = "; a replica without it can be served with --vectors redis" if missing == {MATRIX_FILE} else ""
        raise ValueError(f"{min(missing)} is missing{only}")
    if extra := sorted((set(found) | _empty_directories(path)) - set(expected)):
        raise ValueError(f"{extra[0]} is not in the manifest")
    for name, entry in expected.items():
        size = found[name].stat().st_size
        if size != entry.bytes:
            raise ValueError(f"{name} has {size} bytes, the manifest says {entry.bytes}")
        if verify and _sha256(found[name]) != entry.sha256:
            raise ValueError(f"the sha256 of {name} differs from the manifest's")
