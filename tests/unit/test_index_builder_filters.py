from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrank.index_builder.generation import filters
from polyrank.index_builder.generation.candidates import CandidateTable, CandidateWriter
from polyrank.index_builder.generation.filters import (
    MOST_DOTS,
    matching_places,
    matching_rows,
    names_of,
    reading,
    values_of,
)
from polyrank.index_builder.pool.rows import Candidate


def table(path: Path, *metadata: dict[str, Any]) -> CandidateTable:
    with CandidateWriter(path / "t") as writer:
        for i, each in enumerate(metadata):
            writer.add(Candidate(str(i), "x", each))
    return CandidateTable(path / "t")


VALUES: list[Any] = [1, 1.0, True, "1", None, False, 0, [1, "a", 1], ["a", None], {"b": 1}, [], "", [[1]], 2**60 + 1]


@pytest.mark.parametrize(("values", "rows"), [
    ([1], [0, 1, 7]), ([1.0], [0, 1, 7]), ([True], [2]), (["1"], [3]), ([None], [4, 8]), ([False], [5]),
    ([0], [6]), (["a"], [7, 8]), ([""], [11]), ([2**60], []), ([2**60 + 1], [13]), (["no such"], []),
    ([], []), (["a", 0, "1", "a"], [3, 6, 7, 8]), ([{"b": 1}], []), (1, [0, 1, 7]), (None, [4, 8]),
    ({"gte": 0}, [0, 1, 6, 7, 13]), ({"gt": 0, "lte": 1}, [0, 1, 7]), ({"gt": 2**60, "lt": 2**60 + 2}, [13]),
    ({"gte": ""}, [3, 7, 8, 11]), ({"gt": "", "lt": "a"}, [3]), ({"gte": 2, "lt": 1}, []),
    ({"gt": -(10**400), "lt": 0.5}, [6]), (10**400, []), ({"exists": True}, list(range(14))),
    ({"exists": False}, []), ({"exists": True, "gte": "b"}, []), ({"exists": False, "gte": 0}, []),
])  # fmt: skip
def test_what_a_field_may_be_asked(tmp_path: Path, values: Any, rows: list[int]) -> None:
    found = matching_rows(table(tmp_path, *({"f": value} for value in VALUES)), {"f": values})
    assert found.dtype == np.int64
    assert found.tolist() == rows


def test_dots_lead_into_objects_and_a_key_that_holds_them_goes_first(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"address": {"city": "Oslo", "at": {"lat": 59.9}}}, {"address": {"city": "Bergen"}},
        {"address.city": "Oslo"}, {"address.city": "Bergen", "address": {"city": "Oslo"}},
        {"address": "Oslo"}, {"address": [{"city": "Bergen"}, {"city": ["Oslo", "Moss"]}, "Oslo", {}]},
        {"address": {"at.lat": 60}}, {"city": "Oslo"}, {"address": {"city": {}}},
    ]  # fmt: skip
    pool = table(tmp_path, *rows)
    for filter_, found in [
        ({"address.city": "Oslo"}, [0, 2, 5]),
        ({"address.city": ["Moss", "Bergen"]}, [1, 3, 5]),
        ({"address.city": {"exists": True}}, [0, 1, 2, 3, 5, 8]),
        ({"address.city": {"exists": False}}, [4, 6, 7]),
        ({"$not": {"address.city": "Oslo"}}, [1, 3, 4, 6, 7, 8]),
        ({"address.at.lat": {"gte": 59, "lt": 61}}, [0, 6]),
        ({"address": "Oslo"}, [4, 5]),
        ({"city": "Oslo"}, [7]),
        ({"address.": "Oslo"}, []),
        ({".city": "Oslo"}, []),
        ({".": 1}, []),
    ]:
        assert matching_rows(pool, filter_).tolist() == found, filter_
        assert matching_places(rows, filter_).tolist() == found, filter_


def test_the_letters_of_a_nested_key_may_need_escapes(tmp_path: Path) -> None:
    pool = table(tmp_path, {"o": {'a "b" \\ é': 1}}, {"o": {'x.a "b" \\ é': 1}})
    assert matching_rows(pool, {'o.a "b" \\ é': 1}).tolist() == [0]
    assert matching_rows(pool, {'o.x.a "b" \\ é': 1}).tolist() == [1]


def test_a_name_with_very_many_dots_is_that_of_a_key() -> None:
    nested: Any = 1
    for _ in range(MOST_DOTS + 2):
        nested = {"a": nested}
    deep, deeper = ".".join("a" * (MOST_DOTS + 1)), ".".join("a" * (MOST_DOTS + 2))
    rows: list[dict[str, Any]] = [nested, {deeper: 1}]
    assert [bool(values_of(each, deep)) for each in rows] == [True, False]
    assert [bool(values_of(each, deeper)) for each in rows] == [False, True]
    assert deep in set(names_of(nested))
    assert deeper not in set(names_of(nested))
    assert matching_places(rows, {"." * 60_000: 1}).tolist() == []


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """The parts of a table that are read, and what was looked for."""
    parts: list[tuple[int, str]] = []
    read = CandidateTable.metadata

    def watched(self: CandidateTable, part: int, containing: str = "") -> list[tuple[int, str]]:
        parts.append((part, containing))
        return read(self, part, containing)

    monkeypatch.setattr(CandidateTable, "metadata", watched)
    return parts


def test_a_field_is_read_once_whoever_asks(tmp_path: Path, reads: list[tuple[int, str]]) -> None:
    pool = table(tmp_path, *({"f": i % 5} for i in range(5000)))
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda i: matching_rows(pool, {"f": [i % 5]}), range(40)))
    assert all((rows == np.arange(i % 5, 5000, 5)).all() for i, rows in enumerate(found))
    assert reads == [(part, containing) for containing in ("", '"f":') for part in range(3)]


def test_what_was_found_goes_with_its_table(tmp_path: Path) -> None:
    before = len(filters._tables)
    pool = table(tmp_path, {"f": 1})
    matching_rows(pool, {"f": [1]})
    assert len(filters._tables) == before + 1
    del pool
    assert len(filters._tables) == before


def test_fields_of_any_name_and_at_any_depth_are_told_apart(tmp_path: Path) -> None:
    odd = 'a "quoted" \\ é \n field'
    pool = table(tmp_path, {odd: 1}, {"o": {odd: 1}}, {"x": f'"{odd}":1'}, {"y": odd}, {odd: [1]})
    assert matching_rows(pool, {odd: [1]}).tolist() == [0, 4]
    assert matching_rows(pool, {"quoted": [1]}).tolist() == []


def unknown(count: int, first: int = 0) -> dict[str, Any]:
    return {"$or": [{f"no{n}": 1} for n in range(first, first + count)]}


def test_fields_that_no_row_has_cost_no_reading(tmp_path: Path, reads: list[tuple[int, str]]) -> None:
    pool = table(tmp_path, *({"f": i} for i in range(5000)))
    assert matching_rows(pool, unknown(64)).tolist() == []
    assert len(reads) == pool.parts, "the names of fields are read once"
    assert matching_rows(pool, unknown(64, 64)).tolist() == []
    assert len(matching_rows(pool, {"$not": unknown(64)})) == 5000
    assert len(reads) == pool.parts


def test_where_there_are_too_many_names_to_keep_them_each_is_looked_for_once(
    tmp_path: Path, reads: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "_MOST_NAMES", 10)
    pool = table(tmp_path, *({f"f{i}": i} for i in range(3000)))
    for _ in range(3):
        assert matching_rows(pool, {"f2999": {"exists": True}}).tolist() == [2999]
        assert matching_rows(pool, {"no": 1}).tolist() == []
    assert [containing for _, containing in reads] == ["", *['"f2999":'] * 2, *['"no":'] * 2]
    for i in range(30):
        assert matching_rows(pool, {f"no{i}": 1}).tolist() == []
    assert matching_rows(pool, {"no": 1, "f7": 7}).tolist() == []
    assert matching_rows(pool, {"f7": 7}).tolist() == [7]


def test_what_one_caller_leaves_the_next_one_continues(tmp_path: Path, reads: list[tuple[int, str]]) -> None:
    pool = table(tmp_path, *({"f": i % 2} for i in range(9000)))
    for _ in range(4):
        steps = reading(pool, {"f": 1})
        next(steps), next(steps)
    assert matching_rows(pool, {"f": 1}).tolist() == list(range(1, 9000, 2))
    assert len(reads) == 2 * pool.parts
    assert list(reading(pool, {"f": 0})) == []


DATES: list[Any] = [
    "2026-11-28T12:30:00Z", "2026-11-28T12:30:00.250Z", "2026-11-28T13:30:00+01:00", "2026-11-28 12:30",
    "2026-11-28", "31.10.2026", "2026-11-27T23:30:00-02:00", ["2025-01-01", "n/a"], 1795869000,
]  # fmt: skip


@pytest.mark.parametrize(("bounds", "rows"), [
    ({"gte": "2026-11-28T12:30:00Z"}, [0, 1, 2, 3]),
    ({"gt": "2026-11-28T12:30:00Z"}, [1]),
    ({"gte": "2026-11-28T12:30:00Z", "lte": "2026-11-28T14:30+02:00"}, [0, 2, 3]),
    ({"gte": "2026-11-28"}, [0, 1, 2, 3, 4, 6]),  # no 31.10.2026, which is before it
    ({"lte": "2026-11-28"}, [0, 1, 2, 3, 4, 6, 7]),  # the whole day
    ({"gt": "2026-11-28"}, []),
    ({"lt": "2026-11-28"}, [7]),
    ({"gte": "2026-11-28", "lt": "2026-11-29", "exists": True}, [0, 1, 2, 3, 4, 6]),
    ({"gt": "2026-11-28T12:30:00Z", "gte": "2026-11-28", "lt": "2026-11-28T12:30:01Z"}, [1]),
    ({"gt": "2027-01-01", "lt": "2026-01-01"}, []),
    ({"gte": "3"}, [5, 7]),  # no time: by code point
])  # fmt: skip
def test_dates_and_times_are_instants(tmp_path: Path, bounds: dict[str, Any], rows: list[int]) -> None:
    metadata = [{"f": value} for value in DATES]
    assert matching_rows(table(tmp_path, *metadata), {"f": bounds}).tolist() == rows
    assert matching_places(metadata, {"f": bounds}).tolist() == rows


def test_a_time_equals_its_own_text_alone() -> None:
    metadata = [{"f": value} for value in DATES]
    assert matching_places(metadata, {"f": "2026-11-28T12:30:00Z"}).tolist() == [0]
