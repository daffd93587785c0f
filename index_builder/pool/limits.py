"""What the id and the metadata of a candidate may be: the same for pools, updates and builds by HTTP."""

import math
from typing import Any

import orjson

MAX_ID_CHARS = 1024
MAX_DEPTH = 100  # orjson writes 254 levels, and an answer puts metadata below three of its own
MAX_METADATA_BYTES = 65_536


def check_id(candidate_id: str) -> None:
    """Raise ValueError if the id is empty or too long."""
    if not 1 <= len(candidate_id) <= MAX_ID_CHARS:
        raise ValueError(f"must have 1 to {MAX_ID_CHARS} characters, not {len(candidate_id)}")


def check_metadata(metadata: dict[str, Any]) -> None:
    """Raise ValueError if a store cannot keep the metadata as it is, or if it is too large."""
    for key, value in metadata.items():
        if key.startswith("$"):
            raise ValueError(f"the key {key[:80]!r} begins with '$', as operators of filters do")
        try:
            check_value(value)
        except ValueError as error:
            raise ValueError(f"{key[:80]!r}: {error}") from None
    if len(orjson.dumps(metadata)) > MAX_METADATA_BYTES:
        raise ValueError(f"must be at most {MAX_METADATA_BYTES} bytes of JSON")


def check_value(value: object) -> None:
    """Raise ValueError if JSON or a store cannot keep the value as it is.

    It must not hold NaN, an infinity, a whole number beyond 64 bits, or lists and objects nested too deep.
    """
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise ValueError(f"must not be nested deeper than {MAX_DEPTH} levels")
        level = [inner for outer in level for inner in _inside(outer)]
        depth += 1


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
