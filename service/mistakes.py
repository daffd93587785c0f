"""What pydantic finds wrong with a value, in words that say what may stand there; for requests and settings."""

from collections.abc import Mapping
from typing import Any

TYPES: Mapping[str, str] = {
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "none_required": "null",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
}
_BOUNDS: Mapping[str, str] = {
    "greater_than_equal": "must be {ge} or more",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be {le} or less",
    "less_than": "must be less than {lt}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "too_long": "must have at most {max_length} items",
    "too_short": "must have at least {min_length} items",
    "literal_error": "must be {expected}",
}


def what_is_wrong(error: Mapping[str, Any]) -> str:
    """Say what is wrong, from one error of pydantic; of a value of the wrong type pydantic's own words are returned."""
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind in _BOUNDS:
        return "must not be empty" if context.get("min_length") == 1 else _BOUNDS[kind].format(**context)
    if kind in ("missing", "extra_forbidden"):
        return "is required" if kind == "missing" else "unknown field"
    return str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "must be", 1)
