"""Filters against a row by row reading of what they say."""

import operator
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrank.index_builder.generation.candidates import CandidateTable, CandidateWriter
from polyrank.index_builder.generation.filters import matching_places, matching_rows
from polyrank.index_builder.pool.rows import Candidate
from polyrank.service.api.fields import checked_filter

pytestmark = pytest.mark.quick

numbers = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, -1.5, 2.0, 2**53 + 1, float(2**53)]))
# Of the times three are one instant, and two are less than a second after it; some texts only seem to be times.
TIMES = [
    *("2026-11-21", "2026-11-21T00:00:00Z", "2026-11-21 02:00+02:00", "2026-11-21T00:00:00.5"),
    *("2026-11-21 00:00:00,000001", "2026-11-20T23:30:00-01:00", "2026-11-20", "2026-11-22T00:00Z"),
]
NO_TIMES = ["", "a", "b", "ab", "A", "é", "21.11.2026", "2026-11-31", "2026-11", "20261121"]
strings = st.sampled_from([*NO_TIMES, *TIMES])
scalars = st.one_of(st.none(), st.booleans(), numbers, strings)
plain = st.one_of(scalars, st.lists(scalars, max_size=3), st.just({"deep": 1}))
fields = st.sampled_from(["f", "g", "f.g", "f.g.f", "g.f"])
objects = st.recursive(
    st.dictionaries(fields, plain, max_size=2),
    lambda inner: st.dictionaries(fields, st.one_of(plain, inner, st.lists(inner, max_size=2)), max_size=2),
    max_leaves=4,
)
values = st.one_of(plain, objects, st.lists(objects, max_size=2))
rows_of = st.lists(st.dictionaries(fields, values, max_size=3), min_size=1, max_size=12)

BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le
}  # fmt: skip
exists = st.fixed_dictionaries({}, optional={"exists": st.booleans()})


def bounded(kind: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    bounds = st.dictionaries(st.sampled_from(list(BOUNDS)), kind, max_size=4)
    return st.builds(lambda one, other: one | other, bounds, exists).filter(bool)


conditions = st.one_of(
    scalars,
    st.lists(scalars, min_size=1, max_size=3),
    *map(bounded, (numbers, st.sampled_from(NO_TIMES), st.sampled_from(TIMES))),
)
filters = st.recursive(
    st.dictionaries(fields, conditions, max_size=2),
    lambda inner: st.one_of(
        st.builds(lambda each: {"$not": each}, inner),
        st.builds(
            lambda key, each: {key: each}, st.sampled_from(["$and", "$or"]), st.lists(inner, min_size=1, max_size=3)
        ),
    ),
    max_leaves=5,
)


def passes(metadata: dict[str, Any], filter_: dict[str, Any]) -> bool:
    return all(holds(metadata, key, wanted) for key, wanted in filter_.items())


def holds(metadata: dict[str, Any], key: str, wanted: Any) -> bool:
    if key == "$not":
        return not passes(metadata, wanted)
    if key in ("$and", "$or"):
        return (all if key == "$and" else any)(passes(metadata, each) for each in wanted)
    if isinstance(wanted, dict):
        bounds = [(name, bound) for name, bound in wanted.items() if name != "exists"]
        found = bool(named(metadata, key))
        return found == wanted.get("exists", found) and (
            not bounds or any(within(each, bounds) for each in elements(metadata, key))
        )
    return any(same(each, value) for each in elements(metadata, key) for value in listed(wanted))


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def elements(metadata: dict[str, Any], key: str) -> list[Any]:
    return [each for value in named(metadata, key) for each in listed(value)]


def named(metadata: dict[str, Any], key: str) -> list[Any]:
    """The values under a name: of the key, else of every way to read its dots."""
    if key in metadata:
        return [metadata[key]]
    ways = [(key[:at], key[at + 1 :]) for at, letter in enumerate(key) if letter == "."]
    inner = [(each, rest) for first, rest in ways for each in listed(metadata.get(first)) if isinstance(each, dict)]
    return [value for each, rest in inner for value in named(each, rest)]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) or isinstance(other, dict):
        return False
    return (type(one) is type(other) or (is_number(one) and is_number(other))) and one == other


def within(value: Any, bounds: list[tuple[str, Any]]) -> bool:
    for name, bound in bounds:
        if not ((is_number(value) and is_number(bound)) or (isinstance(value, str) and isinstance(bound, str))):
            return False
        if bound in TIMES:
            if value not in TIMES or not BOUNDS[name](when(value), when(bound, has_passed=name in ("gt", "lte"))):
                return False
        elif not BOUNDS[name](value, bound):
            return False
    return True


def when(text: str, has_passed: bool = False) -> datetime:
    """When a day begins, or its last microsecond; times are themselves."""
    if len(text) == 10:
        text += "T23:59:59.999999" if has_passed else "T00:00"
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@settings(max_examples=cases(400))
@given(rows_of, filters)
def test_a_filter_lets_through_what_it_says(rows: list[dict[str, Any]], filter_: dict[str, Any]) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "table"
        with CandidateWriter(path) as writer:
            for number, metadata in enumerate(rows):
                writer.add(Candidate(str(number), "x", metadata))
        found = matching_rows(CandidateTable(path), checked_filter(filter_))
    assert found.tolist() == [number for number, metadata in enumerate(rows) if passes(metadata, filter_)]
    assert matching_places(rows, filter_).tolist() == found.tolist()
