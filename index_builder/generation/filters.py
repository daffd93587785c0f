"""Find the rows whose metadata match a filter: conditions on fields, evaluated exactly.

A filter is an object of which every key must hold. The name of a field asks for a value, for any value of a list, or
for an object of `gt`, `gte`, `lt`, `lte` (a range) and `exists`. `$and` and `$or` take lists of filters, `$not` takes
one. Dots lead into objects: `address.city` is the field `city` of `address`, and of each object where that is a list of
them. A key that holds the dots itself goes first.

Equality is that of JSON, and strict: `true` is not 1, 1 is 1.0, and null matches only an explicit null. A list in the
metadata matches if any of its elements does; objects never match. A range contains dates and times, numbers, or other
strings, whichever its bounds are. Dates and times, of ISO 8601, compare as instants; a day as a bound is all of it, and
as a value its beginning. Other strings compare by code point. `$not` also lets through rows without the field.

A table's names of fields are read once, and its rows once for every field that filters name; both are kept as long as
the table. So a field that no row has costs nothing. Reading is done in steps: whoever has other work to do between them
calls `reading` before `matching_rows`. What one caller leaves unfinished, the next one continues. For candidates in
memory, which are few, fields are read anew each time.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import orjson
from numpy.typing import NDArray

from polyrank.index_builder.generation.candidates import CandidateTable
from polyrank.index_builder.pool.values import Instant, instant
from polyrank.model.text.reading import Steps

_Mask = NDArray[np.bool_]
_Key = tuple[int, Any]  # (kind, value): in Python True equals 1, and None has no order

_MOST_NAMES = 100_000  # of fields are kept for a table
MOST_DOTS = 16  # a name with more is that of a key

_NULL, _BOOLEAN, _NUMBER, _STRING = range(4)
_KINDS = ("null", "true or false", "numbers", "strings")
_DATES = "dates"

_tables: "WeakKeyDictionary[CandidateTable, _Fields]" = WeakKeyDictionary()
_lock = Lock()


def matching_rows(table: CandidateTable, filter_: Mapping[str, Any]) -> NDArray[np.int64]:
    """The rows of a table that match a filter; ascending, (N,). An empty filter matches every row."""
    for _ in reading(table, filter_):
        pass
    return np.flatnonzero(_mask(len(table), _fields_of(table).postings, filter_))


def matching_places(metadata: Sequence[Mapping[str, Any]], filter_: Mapping[str, Any]) -> NDArray[np.int64]:
    """The places in a list of metadata that match a filter; ascending, (N,)."""

    def of_field(field: str) -> _Postings:
        postings = _Postings(len(metadata))
        rows = ((at, values_of(cells, field)) for at, cells in enumerate(metadata))
        postings.add((at, values) for at, values in rows if values)
        return postings.in_order()

    return np.flatnonzero(_mask(len(metadata), of_field, filter_))


def values_of(metadata: Mapping[str, Any], field: str) -> list[Any]:
    """The values that a name asks for: one, several where it leads through a list, none where the field is absent.

    >>> values_of({"address": {"city": "Oslo"}}, "address.city")
    ['Oslo']
    """
    if field in metadata:
        return [metadata[field]]
    values: list[Any] = []
    if 0 < field.count(".") <= MOST_DOTS:
        parts = field.split(".")
        for at in range(1, len(parts)):
            outer = metadata.get(".".join(parts[:at]))
            for inner in outer if isinstance(outer, list) else [outer]:
                if isinstance(inner, dict):
                    values += values_of(inner, ".".join(parts[at:]))
    return values


def names_of(metadata: Mapping[str, Any]) -> Iterator[str]:
    """The names of the fields of metadata, and of those inside them, as filters write them."""
    yield from metadata
    inside = [("", metadata, 0)]
    while inside:
        before, outer, dots = inside.pop()
        for name, value in outer.items():
            dots_now = dots + name.count(".") + 1
            if dots_now > MOST_DOTS:
                continue
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, dict):
                    yield from (f"{before}{name}.{each}" for each in inner)
                    inside.append((f"{before}{name}.", inner, dots_now))


def keys_of(value: Any) -> Iterator[_Key]:
    """The keys of a value, equal if a filter says so: of itself, or of each element of a list; an object has none."""
    for element in value if isinstance(value, list) else [value]:
        if not isinstance(element, list | dict):
            yield _kind(element), element if element is not None else 0


def kinds_of(values: Iterable[Any]) -> set[str]:
    """The kinds of values that a filter tells apart, in words; objects alone are none that it can ask for."""
    values = list(values)
    keys = (key for value in values for key in keys_of(value))
    kinds = {_DATES if _instant(key) else _KINDS[key[0]] for key in keys}
    return kinds or ({"objects"} if values else set())


def kinds_in(table: CandidateTable, field: str, removed: NDArray[np.int64]) -> set[str]:
    """The kinds of values that a field has in a table, read before, but for some rows; see `kinds_of`."""
    return _fields_of(table).postings(field).kinds(removed)


def names_in(table: CandidateTable) -> list[str]:
    """The names of the fields of a table, read before; not all of them where there are very many."""
    return _fields_of(table).names


def _instant(key: _Key) -> Instant | None:
    kind, value = key
    return instant(value) if kind == _STRING else None


def value_of(key: _Key) -> Any:
    """The value that a key is of, as a filter names it."""
    kind, value = key
    return None if kind == _NULL else value


def reading(table: CandidateTable, filter_: Mapping[str, Any]) -> Steps[None]:
    """Read what the fields of a filter hold, and pause after every part of the table."""
    fields = _fields_of(table)
    while fields.read_names(table):
        yield
    for field in _field_names(filter_):
        while fields.read(table, field):
            yield


def _field_names(filter_: Mapping[str, Any]) -> set[str]:
    names: set[str] = set()
    for key, operand in filter_.items():
        if key == "$not":
            names |= _field_names(operand)
        elif key in ("$and", "$or"):
            names = names.union(*map(_field_names, operand))
        else:
            names.add(key)
    return names


def _mask(size: int, of_field: "Callable[[str], _Postings]", filter_: Mapping[str, Any]) -> _Mask:
    matching = np.ones(size, bool)
    for key, operand in filter_.items():
        if key == "$not":
            matching &= ~_mask(size, of_field, operand)
        elif key == "$and":
            for inner in operand:
                matching &= _mask(size, of_field, inner)
        elif key == "$or":
            any_of = np.zeros(size, bool)
            for inner in operand:
                any_of |= _mask(size, of_field, inner)
            matching &= any_of
        else:
            matching &= of_field(key).mask(operand)
    return matching


def _fields_of(table: CandidateTable) -> "_Fields":
    with _lock:
        return _tables.setdefault(table, _Fields(len(table)))


class _Fields:
    """What was read of a table's fields so far; several threads may read on."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = Lock()
        self._names: set[str] = set()
        self._absent: set[str] = set()  # known only by reading, where there are too many names to keep
        self._names_read = 0  # parts
        self._postings: dict[str, _Postings] = {}
        self._unfinished: dict[str, tuple[_Postings, int]] = {}  # with the parts read

    def postings(self, field: str) -> "_Postings":
        """Return the rows of a field that has been read."""
        postings = self._postings.get(field)
        return _Postings(self._size).in_order() if postings is None else postings

    @property
    def names(self) -> list[str]:
        with self._lock:
            return list(self._names)

    def read_names(self, table: CandidateTable) -> bool:
        """Read the names of fields in one more part of the table; returns whether there was one."""
        with self._lock:
            if self._names_read == table.parts:
                return False
            for _, text in table.metadata(self._names_read):
                metadata = orjson.loads(text)
                self._names.update(names_of(metadata) if text.find("{", 1) > 0 else metadata)
            self._names_read += 1
            if len(self._names) > _MOST_NAMES:
                self._names_read = table.parts
            return True

    def read(self, table: CandidateTable, field: str) -> bool:
        """Read a field in one more part of the table; returns whether there was one."""
        with self._lock:
            may_exist = field not in self._absent if len(self._names) > _MOST_NAMES else field in self._names
            if field in self._postings or not may_exist:
                return False
            postings, part = self._unfinished.pop(field, (_Postings(self._size), 0))
            if part < table.parts:
                postings.add(_cells(table, part, field))
                self._unfinished[field] = postings, part + 1
                return True
            self._keep(field, postings)
            return False

    def _keep(self, field: str, postings: "_Postings") -> None:
        if postings.in_order().has_rows:
            self._postings[field] = postings
            return
        if len(self._absent) >= _MOST_NAMES:  # requests may name any number
            self._absent.clear()
        self._absent.add(field)


def _cells(table: CandidateTable, part: int, field: str) -> Iterator[tuple[int, list[Any]]]:
    """Yield the rows of a part that have the field, with its values."""
    is_nested, last = "." in field, field.rpartition(".")[2]
    end = orjson.dumps(last).decode()[is_nested:]  # of the key, with more before it where that holds dots itself
    for row, metadata in table.metadata(part, containing=f"{end}:"):
        if values := values_of(orjson.loads(metadata), field):
            yield row, values


class _Postings:
    """The rows of one field by value, in the order of the values.

    Takes 16 bytes a row, of a date or a time 32, and a key a distinct value.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._numbers: dict[_Key, int] = {}
        self._begins: dict[int, int] = {}  # of the numbers of dates and times
        self._unordered = array("q"), array("q"), array("q")  # numbers of values, their rows; rows that have the field

    def add(self, cells: Iterable[tuple[int, list[Any]]]) -> None:
        """Take in rows, which ascend, and their values."""
        numbers, rows, present = self._unordered
        for row, values in cells:
            present.append(row)
            for key in chain.from_iterable(map(keys_of, values)):
                number = self._numbers.setdefault(key, count := len(self._numbers))
                if number == count and (time := _instant(key)):
                    self._begins[number] = time.begin
                numbers.append(number)
                rows.append(row)

    def in_order(self) -> "_Postings":
        """Sort what was taken in, which must come before any question; returns itself."""
        numbers, rows, self._present = (np.array(each, np.int64) for each in self._unordered)
        self._values = sorted(self._numbers)
        place = np.empty(len(self._numbers), np.int64)
        place[[self._numbers[key] for key in self._values]] = np.arange(len(self._numbers))
        places = place[numbers]
        order = np.argsort(places, kind="stable")
        self._rows = rows[order]
        self._starts = np.searchsorted(places[order], np.arange(len(self._numbers) + 1))
        is_time, begins = np.zeros(len(self._numbers), bool), np.zeros(len(self._numbers), np.int64)
        time_numbers = list(self._begins)
        is_time[time_numbers], begins[time_numbers] = True, list(self._begins.values())
        numbers, rows = numbers[is_time[numbers]], rows[is_time[numbers]]
        order = np.argsort(begins[numbers], kind="stable")
        self._times, self._rows_in_time = begins[numbers][order], rows[order]
        self._numbers, self._begins, self._unordered = {}, {}, (array("q"), array("q"), array("q"))
        return self

    @property
    def has_rows(self) -> bool:
        return len(self._present) > 0

    def kinds(self, removed: NDArray[np.int64]) -> set[str]:
        """The kinds of the values of all but some rows, as `kinds_of` names them."""
        of_kinds = {name: self._slice(self._first(kind), self._first(kind + 1)) for kind, name in enumerate(_KINDS)}
        strings, dates = (np.bincount(rows, minlength=self._size) for rows in (of_kinds["strings"], self._rows_in_time))
        of_kinds |= {"strings": np.flatnonzero(strings > dates), _DATES: self._rows_in_time}
        kinds = {name for name, rows in of_kinds.items() if not np.isin(rows, removed).all()}
        return kinds or ({"objects"} if not np.isin(self._present, removed).all() else set())

    def _first(self, kind: int) -> int:
        return bisect_left(self._values, (kind,))

    def mask(self, operand: Any) -> _Mask:
        if not isinstance(operand, Mapping):
            ends = ((bisect_left(self._values, key), bisect_right(self._values, key)) for key in set(keys_of(operand)))
            return self._mask_of(self._slice(*each) for each in ends)
        bounds = {name: bound for name, bound in operand.items() if name != "exists"}
        matching = self._mask_of([self._between(**bounds)]) if bounds else np.ones(self._size, bool)
        if "exists" in operand:
            matching &= self._mask_of([self._present]) == operand["exists"]
        return matching

    def _mask_of(self, slices: Iterator[NDArray[np.int64]] | list[NDArray[np.int64]]) -> _Mask:
        mask = np.zeros(self._size, bool)
        for rows in slices:
            mask[rows] = True
        return mask

    def _between(self, gt: Any = None, gte: Any = None, lt: Any = None, lte: Any = None) -> NDArray[np.int64]:
        bounds = [bound for bound in (gt, gte, lt, lte) if bound is not None]
        times = [instant(bound) if isinstance(bound, str) else None for bound in (gt, gte, lt, lte)]
        if sum(time is not None for time in times) == len(bounds):
            return self._between_times(*times)
        kind = _kind(bounds[0])
        first, end = self._first(kind), self._first(kind + 1)
        if gt is not None:
            first = max(first, bisect_right(self._values, (kind, gt)))
        if gte is not None:
            first = max(first, bisect_left(self._values, (kind, gte)))
        if lt is not None:
            end = min(end, bisect_left(self._values, (kind, lt)))
        if lte is not None:
            end = min(end, bisect_right(self._values, (kind, lte)))
        return self._slice(first, max(first, end))

    def _between_times(
        self, gt: Instant | None, gte: Instant | None, lt: Instant | None, lte: Instant | None
    ) -> NDArray[np.int64]:
        lower = [bound for bound in (gt and gt.end, gte and gte.begin) if bound is not None]
        upper = [bound for bound in (lt and lt.begin, lte and lte.end) if bound is not None]
        first = np.searchsorted(self._times, max(lower)) if lower else 0
        return self._rows_in_time[first : np.searchsorted(self._times, min(upper)) if upper else None]

    def _slice(self, first: int, end: int) -> NDArray[np.int64]:
        return self._rows[self._starts[first] : self._starts[end]]


def _kind(value: Any) -> int:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return _BOOLEAN
    return _STRING if isinstance(value, str) else _NUMBER
