"""Records of facts as JSON with a checksum of their own, read strictly.

What is missing, unknown or flipped is noticed.
"""

import dataclasses
from collections.abc import Callable, Mapping
from hashlib import sha256
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import orjson

from polyrank.model.options import without_none

T = TypeVar("T")


def sealed(body: Mapping[str, Any]) -> bytes:
    """Write fields as JSON, with the sha256 of the others among them."""
    return _dumped({**body, "sha256": sha256(_dumped(body)).hexdigest()})


def unsealed(content: bytes, format_version: int) -> dict[str, Any]:
    """Read what `sealed` wrote in this format, without the field "format_version", which says so.

    Raises ValueError if it is of another format, or its checksum does not fit.
    """
    body = orjson.loads(content)
    if not isinstance(body, dict):
        raise ValueError("is no JSON object")
    version = body.get("format_version")
    # First of all: another format may differ in everything else.
    if type(version) is not int or version < 1:
        raise ValueError(f"format_version must be {format_version}")
    if version != format_version:
        older = "older", "build again, into another directory"  # nothing knows what else an older store holds
        age, do = ("newer", "upgrade polyrank") if version > format_version else older
        raise ValueError(f"format {version} is {age} than this polyrank reads ({format_version}); {do}")
    body.pop("sha256", None)
    if content != sealed(body):
        raise ValueError("its checksum does not fit its content")
    del body["format_version"]
    return body


def _dumped(body: Mapping[str, Any]) -> bytes:
    return orjson.dumps(body, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def record(
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
        return record(kind, value, name)
    if get_origin(kind) is dict:
        return {key: _typed(get_args(kind)[1], each, key) for key, each in exactly(dict, value, name).items()}
    if get_origin(kind) is list:
        return [_typed(get_args(kind)[0], each, name) for each in exactly(list, value, name)]
    return exactly(kind, value, name)


def exactly(kind: Any, value: object, name: str) -> Any:
    """The value, if it is of exactly this type: True is no int, 1 is no float. Raises ValueError."""
    if type(value) is not kind:
        raise ValueError(f"{name} must be of type {getattr(kind, '__name__', kind)}")
    return value
