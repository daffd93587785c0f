"""Which rows have this metadata: a filter's conditions on top-level fields, evaluated exactly.

A filter is an object; all its keys must hold. A field's name asks for a value, for any of a list, or for an object of
`gt`, `gte`, `lt`, `lte` (a range) and `exists`. `$and` and `$or` take lists of filters, `$not` takes one.

Equality is JSON's, and strict: `true` is not 1, 1 is 1.0, null matches only an explicit null. A list in the metadata
matches when any of its elements does; objects never match. A range holds numbers or strings, by its bounds' kind;
strings go by their characters' numbers, as ISO dates do. `$not` lets through what lacks the field, too.

The rows of a field's values are found in one pass over the table when the field is first asked for, and kept as long as
the table lives. A few candidates in memory are passed over each time.
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
_Key = tuple[int, Any]  # the value's kind and the value: Python's True equals 1, and None has no order

_NULL, _BOOLEAN, _NUMBER, _STRING = range(4)

_postings: "WeakKeyDictionary[CandidateTable, dict[str, _Postings]]" = WeakKeyDictionary()
_lock = Lock()


def matching_rows(table: CandidateTable, filter_: Mapping[str, Any]) -> NDArray[np.int64]:
    """The rows of a table that a filter lets through; ascending, (N,). An empty filter: every row."""
    return np.flatnonzero(_mask(len(table), partial(_of_table, table), filter_))


def matching_places(metadata: Sequence[Mapping[str, Any]], filter_: Mapping[str, Any]) -> NDArray[np.int64]:
    """The places in a list of candidates' metadata that a filter lets through; ascending, (N,)."""

    def of_field(field: str) -> _Postings:
        return _Postings(len(metadata), ((at, each[field]) for at, each in enumerate(metadata) if field in each))

    return np.flatnonzero(_mask(len(metadata), of_field, filter_))


def _mask(size: int, of_field: "Callable[[str], _Postings]", filter_: Mapping[str, Any]) -> _Mask:
    matching = np.ones(size, bool)
    for key, wanted in filter_.items():
        if key == "$not":
            matching &= ~_mask(size, of_field, wanted)
        elif key == "$and":
            for each in wanted:
                matching &= _mask(size, of_field, each)
        elif key == "$or":
            found = np.zeros(size, bool)
            for each in wanted:
                found |= _mask(size, of_field, each)
            matching &= found
        else:
            matching &= of_field(key).mask(wanted)
    return matching


def _of_table(table: CandidateTable, field: str) -> "_Postings":
    known = _postings.get(table, {}).get(field)
    if known is not None:
        return known
    with _lock:  # two requests must not both make the pass
        fields = _postings.setdefault(table, {})
        if field in fields:
            return fields[field]
        found = _Postings(len(table), _cells(table, field))
        if found:  # a field that no row has is found out quickly; its name, which may be anything, is not kept
            fields[field] = found
        return found


def _cells(table: CandidateTable, field: str) -> Iterator[tuple[int, Any]]:
    """The rows that have the field, and what they have there."""
    for row, metadata in table.metadata(containing=f"{orjson.dumps(field).decode()}:"):
        value = orjson.loads(metadata)
        if field in value:
            yield row, value[field]


class _Postings:
    """The rows of one field by value, in the values' order: 16 bytes a row, and one key a distinct value."""

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
        """The rows whose value is as wanted, (N,)."""
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
    """What the value is found under: itself, each element of a list, or (an object) nothing."""
    for element in value if isinstance(value, list) else [value]:
        if not isinstance(element, list | dict):
            yield _kind(element), element if element is not None else 0


def _kind(value: Any) -> int:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return _BOOLEAN
    return _STRING if isinstance(value, str) else _NUMBER
