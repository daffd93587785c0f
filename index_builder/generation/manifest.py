"""What a generation says of itself and of its parts: `manifest.json`, read strictly.

A manifest carries a sha256 of its own content and one of every other file, so that every flipped byte is noticed, and
so is what is missing or unknown.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import orjson

from polyrank.index_builder.errors import GenerationCorrupt
from polyrank.index_builder.generation.slots import ALL, SLOTS, Slots
from polyrank.index_builder.index.choice import IndexSpec
from polyrank.index_builder.vectors.local import DTYPES
from polyrank.index_builder.vectors.redis import MAX_DIM
from polyrank.model.options import without_none
from polyrank.model.representations import LateRows

FORMAT_VERSION = 5
MANIFEST_FILE = "manifest.json"
PARTS = "parts"

T = TypeVar("T")

_TIMES = ("p50_ms", "p99_ms")
_RECALL: dict[str, type] = {
    "recall@10": float,
    "recall@100": float,
    "of": str,
    "probes": str,
    "count": int,
    "p50_ms": float,
    "p99_ms": float,
    "min_recall": float,
}


@dataclass(frozen=True, slots=True)
class ModelReference:
    """The model that made the vectors; the generation holds a copy of it.

    `languages`: those that it learnt, ISO 639-1; empty: that is not known.
    """

    name: str
    architecture: str
    fingerprint: str
    languages: list[str]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What a file must be."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class BuildStats:
    """How the build went."""

    seconds: dict[str, float]  # by stage, of the last attempt, as is `candidates_per_second`
    candidates_per_second: float
    rejected: int
    truncated: int
    attempts: int  # builds that worked on the vectors; all but the last were killed


@dataclass(frozen=True, slots=True)
class PartEntry:
    """A part of a generation; `first_slot`, `end_slot`: its range of slots, without the end."""

    first_slot: int
    end_slot: int
    count: int
    index: IndexSpec
    recall: dict[str, float | int | str | None]

    @property
    def slots(self) -> Slots:
        return Slots(self.first_slot, self.end_slot)

    @property
    def name(self) -> str:
        """What it is called in messages and metrics."""
        return self.slots.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The facts of a generation."""

    id: str
    created_at: str  # ISO 8601, UTC
    model: ModelReference
    backend: str  # with the precision, what ran the model over the pool (polyrank.model.inference.runners.Runner);
    precision: str  # others make vectors that are close to these, not equal
    dim: int
    dtype: str
    count: int
    # Of the last update that the pool can reflect; the generation receives later ones when it becomes active.
    revision: int
    order_end: int  # rows that updates add have their places in the pool from here on
    index: IndexSpec
    # Of the retrieval path against a scan, see `measuring.Recall`, and what was asked for ("min_recall"). It is that of
    # the part with the lowest recall, and so is `index`.
    recall: dict[str, float | int | str | None]
    # How many texts of a sample look to be in each language; empty where the model names none of its own.
    languages: dict[str, int]
    files: dict[str, FileEntry]  # by path within the generation, all but the manifest
    build: BuildStats
    parts: list[PartEntry]  # by their slots, ascending; together they have all of them
    late: LateRows | None = None  # what the model keeps of each candidate for a second stage; None: it has none

    @property
    def min_recall(self) -> float:
        return float(self.recall["min_recall"] or 0.0)

    @property
    def format_version(self) -> int:
        return FORMAT_VERSION

    @property
    def is_whole(self) -> bool:
        """Whether its first part has every slot."""
        return self.parts[0].slots == ALL

    def directory(self, part: int) -> str:
        """Where the files of a part, given by its number, lie within the generation; "" if it is the only one."""
        return "" if len(self.parts) == 1 else part_directory(part)

    def of_part(self, part: int) -> "Manifest":
        """The facts of a part, given by its number, as if it were a generation: counts, index and files are its own."""
        if len(self.parts) == 1:
            return self
        own, within = self.parts[part], f"{self.directory(part)}/"
        return dataclasses.replace(
            self,
            count=own.count,
            index=own.index,
            recall=own.recall,
            files={name.removeprefix(within): each for name, each in self.files.items() if name.startswith(within)},
            parts=[own],
        )

    def to_json(self) -> bytes:
        return sealed({"format_version": FORMAT_VERSION, **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, content: bytes, generation: str) -> "Manifest":
        """Read the content of `manifest.json` of the generation with this id.

        Raises GenerationCorrupt if anything is missing, unknown, of another type or out of bounds, the manifest is of
        another generation or another format, or its checksum does not fit.
        """
        try:
            body = unsealed(content)
            readers = {"index": _index, "recall": _recall, "parts": _parts}
            manifest = _record(cls, body, "manifest", readers)
            _check_bounds(manifest, generation)
        except (ValueError, KeyError) as error:
            raise GenerationCorrupt(generation, f"{MANIFEST_FILE}: {error}") from error
        return manifest


def _check_bounds(manifest: Manifest, generation: str) -> None:
    if manifest.id != generation:
        raise ValueError(f"is that of generation {manifest.id}")
    if not 1 <= manifest.dim <= MAX_DIM:
        raise ValueError(f"dim {manifest.dim} is not within 1..{MAX_DIM}")
    if manifest.dtype not in DTYPES:
        raise ValueError(f"dtype {manifest.dtype!r} is not one of {', '.join(DTYPES)}")
    _check_parts(manifest)
    if manifest.order_end < manifest.count:
        raise ValueError(f"order_end {manifest.order_end} is less than count")
    if manifest.revision < 0:
        raise ValueError(f"revision {manifest.revision} is negative")
    if any(entry.bytes < 0 for entry in manifest.files.values()):
        raise ValueError("a file has a negative size")
    if (late := manifest.late) is not None and not all(1 <= each <= MAX_DIM for each in (late.dim, late.count or 1)):
        raise ValueError(f"late is not of 1..{MAX_DIM} components and rows")


def _check_parts(manifest: Manifest) -> None:
    if any(part.count < 1 for part in manifest.parts):
        raise ValueError("a part has no candidate")
    if sum(part.count for part in manifest.parts) != manifest.count:
        raise ValueError(f"count {manifest.count} is not that of its parts")
    ends = [0, *(part.end_slot for part in manifest.parts)]
    if [part.first_slot for part in manifest.parts] != ends[:-1] or ends[-1] != SLOTS or sorted(set(ends)) != ends:
        raise ValueError("its parts do not have every slot once")


def _index(value: object) -> IndexSpec:
    try:
        spec = _record(IndexSpec, value, "index")
    except ValueError:
        spec = None
    if spec is None or (spec.kind == "exact") != (spec.factory is None):
        raise ValueError(
            "index must be a kind, a factory (none if exact), what was asked for, whole-numbered params, and times if "
            "measured"
        )
    return spec


def part_directory(part: int) -> str:
    """Where the files of a part lie within a generation of several, given by its number."""
    return f"{PARTS}/{part}"


def _parts(value: object) -> list[PartEntry]:
    readers = {"index": _index, "recall": _recall}
    return [_record(PartEntry, each, "parts", readers) for each in _exactly(list, value, "parts")]


def _recall(value: object) -> dict[str, Any]:
    recall = _exactly(dict, value, "recall")
    if set(recall) != set(_RECALL):
        raise ValueError(f"recall must be {', '.join(_RECALL)}")
    untimed = dict.fromkeys(_TIMES, NoneType) if recall["count"] == 0 else {}
    return {name: _exactly(kind, recall[name], name) for name, kind in {**_RECALL, **untimed}.items()}


def sealed(body: Mapping[str, Any]) -> bytes:
    """Write fields as JSON, with the sha256 of the others among them."""
    return _dumped({**body, "sha256": sha256(_dumped(body)).hexdigest()})


def unsealed(content: bytes) -> dict[str, Any]:
    """Read what `sealed` wrote in this format, without the field "format_version", which says so.

    Raises ValueError if it is of another format, or its checksum does not fit.
    """
    body = orjson.loads(content)
    if not isinstance(body, dict):
        raise ValueError("is no JSON object")
    version = body.get("format_version")
    # First of all: another format may differ in everything else.
    if type(version) is not int or version < 1:
        raise ValueError(f"format_version must be {FORMAT_VERSION}")
    if version != FORMAT_VERSION:
        older = "older", "build again, into another directory"  # nothing knows what else an older store holds
        age, do = ("newer", "upgrade polyrank") if version > FORMAT_VERSION else older
        raise ValueError(f"format {version} is {age} than this polyrank reads ({FORMAT_VERSION}); {do}")
    body.pop("sha256", None)
    if content != sealed(body):
        raise ValueError("its checksum does not fit its content")
    del body["format_version"]
    return body


def _dumped(body: Mapping[str, Any]) -> bytes:
    return orjson.dumps(body, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def _record(
    cls: type[T], value: object, where: str, readers: Mapping[str, Callable[[object], object]] | None = None
) -> T:
    """Read a dataclass from a JSON object with exactly its fields; `readers` read those whose type does not say enough.

    `where` names the object in messages. Raises ValueError if a field is missing, unknown or of another type.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object")
    kinds = get_type_hints(cls)
    if missing := sorted(set(kinds) - set(value)):
        raise ValueError(f"{missing[0]} is missing")
    if unknown := sorted(set(value) - set(kinds)):
        raise ValueError(f"{unknown[0]} is unknown")
    readers = readers or {}
    return cls(
        **{
            name: readers[name](value[name]) if name in readers else _typed(kind, value[name], name)
            for name, kind in kinds.items()
        }
    )


def _typed(kind: Any, value: object, name: str) -> Any:
    """Read a value of a dataclass's, a dictionary's, a list's or a plain type, or None where that is another choice."""
    if isinstance(kind, UnionType) and NoneType in get_args(kind):
        return None if value is None else _typed(without_none(kind), value, name)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _record(kind, value, name)
    if get_origin(kind) is dict:
        return {key: _typed(get_args(kind)[1], each, key) for key, each in _exactly(dict, value, name).items()}
    if get_origin(kind) is list:
        return [_typed(get_args(kind)[0], each, name) for each in _exactly(list, value, name)]
    return _exactly(kind, value, name)


def _exactly(kind: Any, value: object, name: str) -> Any:
    """The value, if it is of exactly this type: True is no int, 1 is no float. Raises ValueError."""
    if type(value) is not kind:
        raise ValueError(f"{name} must be of type {getattr(kind, '__name__', kind)}")
    return value
