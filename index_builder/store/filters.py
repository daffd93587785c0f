"""Find the rows whose metadata match a filter: conditions on top-level fields, evaluated exactly.

A filter is an object of which every key must hold. The name of a field asks for a value, for any value of a list, or
for an object of `gt`, `gte`, `lt`, `lte` (a range) and `exists`. `$and` and `$or` take lists of filters, `$not` takes
one.

Equality is that of JSON, and strict: `true` is not 1, 1 is 1.0, and null matches only an explicit null. A list in the
metadata matches if any of its elements does; objects never match. A range contains numbers or strings, whichever its
bounds are; strings compare by code point, which suits ISO dates. `$not` also lets through rows without the field.

A table is read once for every field that filters name; the rows of the field's values are then kept as long as the
table. For candidates in memory, which are few, they are found anew each time.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import orjson
from numpy.typing import NDArray

from polyrank.index_builder.store.candidates import CandidateTable

_Mask = NDArray[np.bool_]
_Key = tuple[int, Any]  # (kind, value): in Python True equals 1, and None has no order

_NULL, _BOOLEAN, _NUMBER, _STRING = range(4)

_postings: "WeakKeyDictionary[CandidateTable, dict[str, _Postings]]" = WeakKeyDictionary()
_lock = Lock()


def matching_rows(table: CandidateTable, filter_: Mapping[str, Any]) -> NDArray[np.int64]:
    """The rows of a table that match a filter; ascending, (N,). An empty filter matches every row."""
    return np.flatnonzero(_mask(len(table), partial(_of_table, table), filter_))


def matching_places(metadata: Sequence[Mapping[str, Any]], filter_: Mapping[str, Any]) -> NDArray[np.int64]:
    """The places in a list of metadata that match a filter; ascending, (N,)."""

    def of_field(field: str) -> _Postings:
        return _Postings(len(metadata), ((at, cells[field]) for at, cells in enumerate(metadata) if field in cells))

    return np.flatnonzero(_mask(len(metadata), of_field, filter_))


def _mask(size: int, of_field: "Callable[[str], _Postings]", filter_: Mapping[str, Any]) -> _Mask:
    matching = np.ones(size, bool)
    for key, wanted in filter_.items():
        if key == "$not":
            matching &= ~_mask(size, of_field, wanted)
        elif key == "$and":
            for inner in wanted:
                matching &= _mask(size, of_field, inner)
        elif key == "$or":
            found = np.zeros(size, bool)
            for inner in wanted:
                found |= _mask(size, of_field, inner)
            matching &= found
        else:
            matching &= of_field(key).mask(wanted)
    return matching


def _of_table(table: CandidateTable, field: str) -> "_Postings":
    known = _postings.get(table, {}).get(field)
    if known is not None:
        return known
    with _lock:  # two requests must not both read the table
        fields = _postings.setdefault(table, {})
        if field in fields:
            return fields[field]
        found = _Postings(len(table), _cells(table, field))
        if found:  # fields that no row has are not kept: requests may name any number, and finding none is quick
            fields[field] = found
        return found


def _cells(table: CandidateTable, field: str) -> Iterator[tuple[int, Any]]:
    """Yield the rows that have the field, with its value."""
    for row, metadata in table.metadata(containing=f"{orjson.dumps(field).decode()}:"):
        value = orjson.loads(metadata)
        if field in value:
            yield row, value[field]


class _Postings:
    """The rows of one field by value, in the order of the values. Takes 16 bytes a row, and a key a distinct value."""

    def __init__(self, size: int, cells: Iterable[tuple[int, Any]]) -> None:
        self._size = size
        numbers: dict[_Key, int] = {}
        row_numbers, rows, present = array("q"), array("q"), array("q")
        for row, value in cells:
            present.append(row)
            for key in _keys(value):
                row_numbers.append(numbers.setdefault(key, len(numbers)))
                rows.append(row)
        self._present = np.array(present, np.int64)
        self._values = sorted(numbers)
        place = np.empty(len(numbers), np.int64)
        place[[numbers[key] for key in self._values]] = np.arange(len(numbers))
        places = place[np.array(row_numbers, np.int64)]
        order = np.argsort(places, kind="stable")
        self._rows = np.array(rows, np.int64)[order]
        self._starts = np.searchsorted(places[order], np.arange(len(numbers) + 1))

    def __len__(self) -> int:
        return len(self._present)

    def mask(self, wanted: Any) -> _Mask:
        """Whether each row matches, (N,)."""
        if not isinstance(wanted, Mapping):
            return self._mask_of(self._equal(wanted))
        bounds = {name: bound for name, bound in wanted.items() if name != "exists"}
        matching = self._mask_of([self._between(**bounds)]) if bounds else np.ones(self._size, bool)
        if "exists" in wanted:
            matching &= self._mask_of([self._present]) == wanted["exists"]
        return matching

    def _mask_of(self, found: Iterator[NDArray[np.int64]] | list[NDArray[np.int64]]) -> _Mask:
        mask = np.zeros(self._size, bool)
        for rows in found:
            mask[rows] = True
        return mask

    def _equal(self, wanted: Any) -> Iterator[NDArray[np.int64]]:
        for key in set(_keys(wanted)):
            yield self._slice(bisect_left(self._values, key), bisect_right(self._values, key))

    def _between(self, gt: Any = None, gte: Any = None, lt: Any = None, lte: Any = None) -> NDArray[np.int64]:
        kind = _kind(next(bound for bound in (gt, gte, lt, lte) if bound is not None))
        first, end = bisect_left(self._values, (kind,)), bisect_left(self._values, (kind + 1,))
        if gt is not None:
            first = max(first, bisect_right(self._values, (kind, gt)))
        if gte is not None:
            first = max(first, bisect_left(self._values, (kind, gte)))
        if lt is not None:
            end = min(end, bisect_left(self._values, (kind, lt)))
        if lte is not None:
            end = min(end, bisect_right(self._values, (kind, lte)))
        return self._slice(first, max(first, end))

    def _slice(self, first: int, end: int) -> NDArray[np.int64]:
        return self._rows[self._starts[first] : self._starts[end]]


def _keys(value: Any) -> Iterator[_Key]:
    """The keys that find a value: itself, or each element of a list; an object has none."""
    for element in value if isinstance(value, list) else [value]:
        if not isinstance(element, list | dict):
            yield _kind(element), element if element is not None else 0


def _kind(value: Any) -> int:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return _BOOLEAN
    return _STRING if isinstance(value, str) else _NUMBER
