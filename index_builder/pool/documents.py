"""What a row means, whichever format it comes from: an id, a text, and metadata.

`text` is the reply, `id` its name. Every other field is metadata, and the fields of an object `metadata` join them. A
null is absent. A row that has `_id` instead of `id` is of BEIR's form: its title, if any, stands in front of its text.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from polyrank.index_builder.pool.fields import Fields
from polyrank.index_builder.pool.limits import checked_id, kept_metadata
from polyrank.index_builder.pool.text import RowError, parsed
from polyrank.model.evaluation.beir import titled

MAX_TEXT_CHARACTERS = 20_000
KNOWN = ("id", "_id", "text", "title", "metadata")  # fields with a meaning of their own

_SHOWN_COLUMNS, _SHOWN_CHARACTERS = 8, 30
_NAMELESS = "its name is empty"
_OPERATOR = "its name begins with '$', as operators of filters do"
_ELSEWHERE = "'metadata' has another value of this name, which counts"


class PoolDocument(NamedTuple):
    """A row that may be a candidate; its id is None where the row has none."""

    id: str | None
    text: str
    metadata: dict[str, Any]


def column_names(names: Sequence[str]) -> list[str]:
    """Return the names of a table's columns without spaces around them, and `ID` or `Text` as those that are known.

    Where a column has the known name itself, others that differ in case keep theirs.
    """
    stripped = [name.strip() for name in names]
    missing = set(KNOWN).difference(stripped)
    return [low if (low := name.casefold()) in missing else name for name in stripped]


def shown_names(names: Sequence[str]) -> str:
    """Return the first names of a table's columns, cut, for a message."""
    shown = [repr(name[:_SHOWN_CHARACTERS]) for name in names[:_SHOWN_COLUMNS]]
    return ", ".join(shown) + (", …" if len(names) > _SHOWN_COLUMNS else "")


def document(row: object, fields: Fields) -> PoolDocument:
    """Check a row, and note what of it was left out. Raises RowError if it cannot be a candidate."""
    if isinstance(row, RowError):
        raise row
    if not isinstance(row, dict):
        raise RowError(f"the row must be an object, not {_json_name(row)}")
    given = {name: value for name, value in row.items() if value is not None}
    text, nested = given.pop("text", None), given.pop("metadata", {})
    named, title = "id", None
    if "id" not in given and "_id" in given:
        named, title = "_id", given.pop("title", "")
    candidate_id = given.pop(named, None)
    checked = _checked_text(text, title)
    metadata = _checked_metadata(given, _object(nested), fields)
    if candidate_id is not None:
        _check_id(named, candidate_id)
    fields.titled += bool(title)
    return PoolDocument(candidate_id, checked, metadata)


def _checked_text(text: object, title: object) -> str:
    if text is None:
        raise RowError("'text' is missing")
    if not isinstance(text, str):
        raise RowError(f"'text' must be a string, not {_json_name(text)}")
    if title is not None and not isinstance(title, str):
        raise RowError(f"'title' must be a string, not {_json_name(title)}")
    whole = text if title is None else titled(title, text)
    if not whole or whole.isspace():
        raise RowError("'text' is empty")
    if len(whole) > MAX_TEXT_CHARACTERS:
        raise RowError(f"'text' has {len(whole)} characters, more than {MAX_TEXT_CHARACTERS}")
    return whole


def _object(nested: object) -> dict[str, Any]:
    """Return the fields of `metadata`, which a table may hold as JSON."""
    if isinstance(nested, str):
        nested = parsed(nested.encode())
        if isinstance(nested, RowError):
            raise RowError(f"'metadata' must be an object, or a text with the JSON of one: {nested}")
    if nested is not None and not isinstance(nested, dict):
        raise RowError(f"'metadata' must be an object, not {_json_name(nested)}")
    return {name: value for name, value in (nested or {}).items() if value is not None}


def _checked_metadata(others: dict[str, Any], nested: dict[str, Any], fields: Fields) -> dict[str, Any]:
    """Join the fields beside `metadata` with those in it, which count where both have one."""
    for name in list(others):
        if not name or name.startswith("$"):
            del others[name]
            fields.leave_out(name, _OPERATOR if name else _NAMELESS)
        elif name in nested and others[name] != nested[name]:
            fields.leave_out(name, _ELSEWHERE)
    try:
        return kept_metadata({**others, **nested})
    except ValueError as error:
        raise RowError(f"'metadata': {error}") from None


def _check_id(name: str, candidate_id: object) -> None:
    if not isinstance(candidate_id, str):
        raise RowError(f"{name!r} must be a string, not {_json_name(candidate_id)}")
    try:
        checked_id(candidate_id)
    except ValueError as error:
        raise RowError(f"{name!r} {error}") from None


def _json_name(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "null")
