"""What the id and the metadata of a candidate may be: the same for pools, updates and builds by HTTP."""

import math
import re
from typing import Any, TypeVar

import orjson

MAX_ID_CHARS = 1024
MAX_DEPTH = 100  # orjson writes 254 levels, and an answer puts metadata below three of its own
MAX_METADATA_BYTES = 65_536
MAX_FIELDS = 4096  # of a row, and columns of a table: each costs time in every row
_CONTROL = r"\u0000-\u001f\u007f-\u009f\u2028\u2029"
ID_PATTERN = f"^[^{_CONTROL}]*$"  # of JSON Schema; a JSON text holds no half of a surrogate pair

_UNREADABLE = re.compile(rf"[{_CONTROL}\ud800-\udfff]")

V = TypeVar("V")


def checked_id(candidate_id: str) -> str:
    """Return the id if a path can hold it: `GET /index/candidates/{id}` reads whatever can be put.

    Raises ValueError if it is empty, too long or a name of directories, or holds a control character, a line separator
    or half a surrogate pair.
    """
    if not 1 <= len(candidate_id) <= MAX_ID_CHARS:
        raise ValueError(f"must have 1 to {MAX_ID_CHARS} characters, not {len(candidate_id)}")
    if found := _UNREADABLE.search(candidate_id):
        what = f"U+{ord(found[0]):04X} at character {found.start() + 1}"
        raise ValueError(f"must not hold control characters or line separators, as {what} is")
    if candidate_id in (".", ".."):
        raise ValueError("must be another than . and .., which programs drop from a path")
    return candidate_id


def kept_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return metadata as a store keeps them, whichever way they came.

    A null in an object is absent. A number without a fraction is a whole number (5.0 is 5, up to 2^53), because formats
    and programs write either. Keys are in order.

    Raises ValueError if a store cannot keep the metadata, or if they are too large.
    """
    if len(metadata) > MAX_FIELDS:
        raise ValueError(f"must have at most {MAX_FIELDS} fields, not {len(metadata)}")
    for key, value in metadata.items():
        if key.startswith("$"):
            raise ValueError(f"the key {key[:80]!r} begins with '$', as operators of filters do")
        try:
            check_value(value)
        except ValueError as error:
            raise ValueError(f"{key[:80]!r}: {error}") from None
    kept: dict[str, Any] = _kept(metadata)
    if len(orjson.dumps(kept)) > MAX_METADATA_BYTES:
        raise ValueError(f"must be at most {MAX_METADATA_BYTES} bytes of JSON")
    return kept


def _kept(value: Any) -> Any:
    match value:
        case str():
            return value
        case dict():
            return {key: _kept(inner) for key, inner in sorted(value.items()) if inner is not None}
        case list():
            return list(map(_kept, value))
        case float() if value.is_integer() and abs(value) <= 2**53:
            return int(value)
    return value


def check_value(value: V) -> V:
    """Return the value; raise ValueError if JSON or a store cannot keep it as it is.

    It must not hold NaN, an infinity, a whole number beyond 64 bits, or lists and objects nested too deep.
    """
    level: list[Any] = [value]
    depth = 0
    while level:
        if depth > MAX_DEPTH:
            raise ValueError(f"must not be nested deeper than {MAX_DEPTH} levels")
        level = [inner for outer in level for inner in _inside(outer)]
        depth += 1
    return value


def _inside(value: object) -> list[Any]:
    """Return the values right inside a list or an object; check a number."""
    match value:
        case dict():
            return list(value.values())
        case list():
            return value
        case float() if not math.isfinite(value):
            raise ValueError("numbers must be finite")
        case int() if not -(2**63) <= value < 2**63:
            raise ValueError("whole numbers must fit 64 bits")
    return []
