"""What a generation says of itself: `manifest.json`, read strictly.

A manifest carries a sha256 of its own content, and one of every other file, so that no flipped byte goes unseen.
"""

import dataclasses
from dataclasses import dataclass
from hashlib import sha256
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import orjson

from polyrank.index_builder.errors import GenerationCorrupt
from polyrank.index_builder.index.choice import IndexSpec
from polyrank.index_builder.vectors.codec import DTYPES, MAX_DIM

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"

_TIMES = ("p50_ms", "p99_ms")
_RECALL: dict[str, type] = {
    "recall@10": float,
    "recall@100": float,
    "probes": str,
    "count": int,
    "p50_ms": float,
    "p99_ms": float,
    "min_recall": float,
}

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
D = TypeVar("D", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class ModelReference:
    """The model that made the vectors; a copy of it is in the generation."""

    name: str
    architecture: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What a file must be."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class BuildStats:
    """How the build went.

    Attributes:
        seconds: by stage, of the last attempt.
        candidates_per_second: encoded in the last attempt.
        rejected: bad rows.
        truncated: texts cut to the model's length.
        attempts: builds that worked on the vectors; all but the last were killed.
    """

    seconds: dict[str, float]
    candidates_per_second: float
    rejected: int
    truncated: int
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The facts of a generation.

    Attributes:
        id: the generation's.
        created_at: ISO 8601, UTC.
        backend: what ran the model over the pool (polyrank.model.inference). Vectors of another back-end are close to
            these, not equal.
        revision: of the last update that its pool can reflect; later ones it learns when it becomes active.
        recall: of the retrieval path against a scan, see `recall.Recall`, and what was asked for ("min_recall").
        files: by path within the generation, all but the manifest.
    """

    id: str
    created_at: str
    model: ModelReference
    backend: str
    dim: int
    dtype: str
    count: int
    revision: int
    index: IndexSpec
    recall: dict[str, float | int | str | None]
    files: dict[str, FileEntry]
    build: BuildStats

    def to_json(self) -> bytes:
        """The content of `manifest.json`."""
        body = {"format_version": FORMAT_VERSION, **dataclasses.asdict(self)}
        return _dumped({**body, "sha256": _digest(body)})

    @classmethod
    def from_json(cls, content: bytes, generation: str) -> "Manifest":
        """Read the content of `manifest.json` of the generation of that id.

        Raises:
            GenerationCorrupt: anything is missing, unknown, of another type or out of bounds, the manifest is of
                another generation or a newer format, or its checksum does not fit.
        """
        try:
            return _parsed(cls, content, generation)
        except (ValueError, KeyError) as error:
            raise GenerationCorrupt(generation, f"{MANIFEST_FILE}: {error}") from error


def _dumped(body: dict[str, Any]) -> bytes:
    return orjson.dumps(body, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def _digest(body: dict[str, Any]) -> str:
    return sha256(_dumped(body)).hexdigest()


def _parsed(cls: type[Manifest], content: bytes, generation: str) -> Manifest:
    body = orjson.loads(content)
    if not isinstance(body, dict):
        raise ValueError("is no JSON object")
    version = body.get("format_version")
    # First of all: a newer format may differ in everything else.
    if type(version) is int and version > FORMAT_VERSION:
        raise ValueError(f"format {version} is newer than this polyrank reads ({FORMAT_VERSION}); upgrade polyrank")
    if version != FORMAT_VERSION or type(version) is not int:
        raise ValueError(f"format_version must be {FORMAT_VERSION}")
    body.pop("sha256", None)
    if content != _dumped({**body, "sha256": _digest(body)}):
        raise ValueError("its checksum does not fit its content")
    del body["format_version"]
    _only(cls, body)
    manifest = cls(
        id=_as(str, body, "id"),
        created_at=_as(str, body, "created_at"),
        model=_record(ModelReference, body["model"], "model"),
        backend=_as(str, body, "backend"),
        dim=_as(int, body, "dim"),
        dtype=_as(str, body, "dtype"),
        count=_as(int, body, "count"),
        revision=_as(int, body, "revision"),
        index=_index(body["index"]),
        recall=_recall(_as(dict, body, "recall")),
        files={name: _record(FileEntry, entry, "files") for name, entry in _as(dict, body, "files").items()},
        build=_record(BuildStats, body["build"], "build"),
    )
    _check_bounds(manifest, generation)
    return manifest


def _check_bounds(manifest: Manifest, generation: str) -> None:
    if manifest.id != generation:
        raise ValueError(f"is that of generation {manifest.id}")
    if not 1 <= manifest.dim <= MAX_DIM:
        raise ValueError(f"dim {manifest.dim} is not within 1..{MAX_DIM}")
    if manifest.dtype not in DTYPES:
        raise ValueError(f"dtype {manifest.dtype!r} is not one of {', '.join(DTYPES)}")
    if manifest.count < 1:
        raise ValueError(f"count {manifest.count} is less than 1")
    if manifest.revision < 0:
        raise ValueError(f"revision {manifest.revision} is negative")
    if any(entry.bytes < 0 for entry in manifest.files.values()):
        raise ValueError("a file has a negative size")


def _index(value: object) -> IndexSpec:
    spec = (
        IndexSpec(**value) if isinstance(value, dict) and set(value) == {"kind", "factory", "asked", "params"} else None
    )
    if (
        spec is None
        or not isinstance(spec.kind, str)
        or not isinstance(spec.factory, str | None)
        or not isinstance(spec.asked, str)
        or not isinstance(spec.params, dict)
        or not all(type(number) is int for number in spec.params.values())
        or (spec.kind == "exact") != (spec.factory is None)
    ):
        raise ValueError(
            "index must be a kind, a factory (none if exact), what was asked for, and whole-numbered params"
        )
    return spec


def _recall(value: dict[str, Any]) -> dict[str, float | int | str | None]:
    if set(value) != set(_RECALL):
        raise ValueError(f"recall must be {', '.join(_RECALL)}")
    untimed = dict.fromkeys(_TIMES, NoneType) if value["count"] == 0 else {}
    return {name: _as(kind, value, name) for name, kind in {**_RECALL, **untimed}.items()}


def _record(cls: type[D], value: object, where: str) -> D:
    """A flat dataclass of ints, floats, strings and dictionaries of floats from a JSON object."""
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object")
    _only(cls, value)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.type == dict[str, float]:
            table = _as(dict, value, field.name)
            fields[field.name] = {name: _as(float, table, name) for name in table}
        else:
            fields[field.name] = _as(cast(type[Any], field.type), value, field.name)
    return cls(**fields)


def _only(cls: type, value: dict[str, Any]) -> None:
    names = {field.name for field in dataclasses.fields(cls)}
    if missing := sorted(names - set(value)):
        raise ValueError(f"{missing[0]} is missing")
    if unknown := sorted(set(value) - names):
        raise ValueError(f"{unknown[0]} is unknown")


def _as(kind: type[T], table: dict[str, Any], name: str) -> T:
    """The entry, if it is exactly of that type (True is no int, 1 is no float)."""
    value = table[name]
    if type(value) is not kind:
        raise ValueError(f"{name} must be of type {kind.__name__}")
    return value
