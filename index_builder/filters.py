"""Which rows have this metadata: equality, or any of several values, on top-level fields.

Equality is JSON's, and strict: `true` is not 1, 1 is 1.0, null matches only an explicit null. A list in the metadata
matches when any of its elements does; objects never match. The rows of a field's values are found in one pass over the
table when the field is first asked for, and kept as long as the table lives.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import orjson
from numpy.typing import NDArray

from index_builder.candidates import CandidateTable

_Key = tuple[bool, Any]  # whether the value is a boolean (Python's True equals 1), and the value

_postings: "WeakKeyDictionary[CandidateTable, dict[str, _Postings]]" = WeakKeyDictionary()
_lock = Lock()


def matching_rows(table: CandidateTable, conditions: Mapping[str, Sequence[Any]]) -> NDArray[np.int64]:
    """The rows that hold, for every field, one of its values; ascending, (N,). No condition: every row."""
    rows: NDArray[np.int64] | None = None
    for field, values in conditions.items():
        found = _of_field(table, field).rows(values)
        rows = found if rows is None else np.intersect1d(rows, found, assume_unique=True)
    return np.arange(len(table), dtype=np.int64) if rows is None else rows


def _of_field(table: CandidateTable, field: str) -> "_Postings":
    with _lock:  # also keeps two requests from making the same pass
        fields = _postings.setdefault(table, {})
        if field not in fields:
            fields[field] = _Postings(table, field)
        return fields[field]


class _Postings:
    """The rows of each value of one field: 8 bytes a row, and one dictionary entry a distinct value."""

    def __init__(self, table: CandidateTable, field: str) -> None:
        codes: dict[_Key, int] = {}
        row_codes, rows = array("q"), array("q")
        for row, metadata in enumerate(table.metadata()):
            for key in _keys(orjson.loads(metadata).get(field, {})):
                row_codes.append(codes.setdefault(key, len(codes)))
                rows.append(row)
        by_code = np.frombuffer(row_codes, np.int64) if row_codes else np.empty(0, np.int64)
        order = np.argsort(by_code, kind="stable")
        self._rows = np.frombuffer(rows, np.int64)[order] if rows else np.empty(0, np.int64)
        self._starts = np.searchsorted(by_code[order], np.arange(len(codes) + 1))
        self._codes = codes

    def rows(self, values: Sequence[Any]) -> NDArray[np.int64]:
        found = {self._codes[key] for value in values for key in _keys(value) if key in self._codes}
        parts = [self._rows[self._starts[code] : self._starts[code + 1]] for code in found]
        if len(parts) == 1:
            return np.unique(parts[0])
        return np.unique(np.concatenate([np.empty(0, np.int64), *parts]))


def _keys(value: Any) -> Iterator[_Key]:
    """What the value is found under: itself, each element of a list, or (an object) nothing."""
    for element in value if isinstance(value, list) else [value]:
        if not isinstance(element, list | dict):
            yield isinstance(element, bool), element
