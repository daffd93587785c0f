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
    matching = np.ones(len(table), bool)
    for field, values in conditions.items():
        found = np.zeros(len(table), bool)
        for rows in _of_field(table, field).rows(values):
            found[rows] = True
        matching &= found
    return np.flatnonzero(matching)


def _of_field(table: CandidateTable, field: str) -> "_Postings":
    known = _postings.get(table, {}).get(field)
    if known is not None:
        return known
    with _lock:  # two requests must not both make the pass
        fields = _postings.setdefault(table, {})
        if field in fields:
            return fields[field]
        found = _Postings(table, field)
        if found:  # a field that no row has is found out quickly; its name, which may be anything, is not kept
            fields[field] = found
        return found


class _Postings:
    """The rows of each value of one field: 8 bytes a row, and one dictionary entry a distinct value."""

    def __init__(self, table: CandidateTable, field: str) -> None:
        self._codes: dict[_Key, int] = {}
        row_codes, rows = array("q"), array("q")
        for row, metadata in table.metadata(containing=f"{orjson.dumps(field).decode()}:"):
            for key in _keys(orjson.loads(metadata).get(field, {})):
                row_codes.append(self._codes.setdefault(key, len(self._codes)))
                rows.append(row)
        by_code = np.array(row_codes, np.int64)
        order = np.argsort(by_code, kind="stable")
        self._rows = np.array(rows, np.int64)[order]
        self._starts = np.searchsorted(by_code[order], np.arange(len(self._codes) + 1))

    def __len__(self) -> int:
        return len(self._codes)

    def rows(self, values: Sequence[Any]) -> Iterator[NDArray[np.int64]]:
        for code in {self._codes[key] for value in values for key in _keys(value) if key in self._codes}:
            yield self._rows[self._starts[code] : self._starts[code + 1]]


def _keys(value: Any) -> Iterator[_Key]:
    """What the value is found under: itself, each element of a list, or (an object) nothing."""
    for element in value if isinstance(value, list) else [value]:
        if not isinstance(element, list | dict):
            yield isinstance(element, bool), element
