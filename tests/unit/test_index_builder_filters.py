from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store import filters
from polyrank.index_builder.store.candidates import CandidateTable, CandidateWriter
from polyrank.index_builder.store.filters import matching_rows


def table(path: Path, *metadata: dict[str, Any]) -> CandidateTable:
    with CandidateWriter(path / "t") as writer:
        for i, each in enumerate(metadata):
            writer.add(Candidate(str(i), "x", each))
    return CandidateTable(path / "t")


VALUES: list[Any] = [1, 1.0, True, "1", None, False, 0, [1, "a", 1], ["a", None], {"b": 1}, [], "", [[1]], 2**60 + 1]


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        ([1], [0, 1, 7]),
        ([1.0], [0, 1, 7]),
        ([True], [2]),
        (["1"], [3]),
        ([None], [4, 8]),
        ([False], [5]),
        ([0], [6]),
        (["a"], [7, 8]),
        ([""], [11]),
        ([2**60], []),
        ([2**60 + 1], [13]),
        (["no such"], []),
        ([], []),
        (["a", 0, "1", "a"], [3, 6, 7, 8]),
        ([{"b": 1}], []),
        (1, [0, 1, 7]),
        (None, [4, 8]),
        ({"gte": 0}, [0, 1, 6, 7, 13]),
        ({"gt": 0, "lte": 1}, [0, 1, 7]),
        ({"gt": 2**60, "lt": 2**60 + 2}, [13]),
        ({"gte": ""}, [3, 7, 8, 11]),
        ({"gt": "", "lt": "a"}, [3]),
        ({"gte": 2, "lt": 1}, []),
        ({"gt": -(10**400), "lt": 0.5}, [6]),
        (10**400, []),
        ({"exists": True}, list(range(14))),
        ({"exists": False}, []),
        ({"exists": True, "gte": "b"}, []),
        ({"exists": False, "gte": 0}, []),
    ],
)
def test_what_a_field_may_be_asked(tmp_path: Path, values: Any, rows: list[int]) -> None:
    found = matching_rows(table(tmp_path, *({"f": value} for value in VALUES)), {"f": values})
    assert found.dtype == np.int64
    assert found.tolist() == rows


def test_a_field_that_is_absent_matches_nothing_not_even_null(tmp_path: Path) -> None:
    pool = table(tmp_path, {}, {"f": None}, {"g": 1})
    assert matching_rows(pool, {"f": [None]}).tolist() == [1]
    assert matching_rows(pool, {"h": [None, 1]}).tolist() == []


def test_exists_is_about_the_key_and_not_its_value(tmp_path: Path) -> None:
    pool = table(tmp_path, {}, {"f": None}, {"f": []}, {"f": {}}, {"g": {"f": 1}})
    assert matching_rows(pool, {"f": {"exists": True}}).tolist() == [1, 2, 3]
    assert matching_rows(pool, {"f": {"exists": False}}).tolist() == [0, 4]
    assert matching_rows(pool, {"h": {"exists": False}}).tolist() == [0, 1, 2, 3, 4]


def test_filters_of_filters(tmp_path: Path) -> None:
    pool = table(tmp_path, *({"two": i % 2, "n": i} for i in range(12)), {})
    assert matching_rows(pool, {"$not": {"n": {"lt": 10}}}).tolist() == [10, 11, 12]
    assert matching_rows(pool, {"$or": [{"n": 3}, {"two": 0, "n": {"gt": 7}}]}).tolist() == [3, 8, 10]
    assert matching_rows(pool, {"$and": [{"two": 1}, {"$not": {"n": [1, 3]}}], "n": {"lte": 7}}).tolist() == [5, 7]


def test_all_fields_must_match(tmp_path: Path) -> None:
    pool = table(tmp_path, *({"two": i % 2, "three": i % 3} for i in range(30)))
    assert matching_rows(pool, {"two": [1], "three": [0, 2]}).tolist() == [3, 5, 9, 11, 15, 17, 21, 23, 27, 29]
    assert matching_rows(pool, {"two": [1], "three": [7]}).tolist() == []
    assert matching_rows(pool, {}).tolist() == list(range(30))


def test_a_field_is_read_once_whoever_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    read = CandidateTable.metadata
    monkeypatch.setattr(CandidateTable, "metadata", lambda self, containing: passes.append(1) or read(self, containing))
    pool = table(tmp_path, *({"f": i % 5} for i in range(2000)))
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda i: matching_rows(pool, {"f": [i % 5]}), range(40)))
    assert all((rows == np.arange(i % 5, 2000, 5)).all() for i, rows in enumerate(found))
    assert len(passes) == 1


def test_what_was_found_goes_with_its_table(tmp_path: Path) -> None:
    before = len(filters._postings)
    pool = table(tmp_path, {"f": 1})
    matching_rows(pool, {"f": [1]})
    assert len(filters._postings) == before + 1
    del pool
    assert len(filters._postings) == before


def test_fields_of_any_name_and_at_any_depth_are_told_apart(tmp_path: Path) -> None:
    odd = 'a "quoted" \\ é \n field'
    pool = table(tmp_path, {odd: 1}, {"o": {odd: 1}}, {"x": f'"{odd}":1'}, {"y": odd}, {odd: [1]})
    assert matching_rows(pool, {odd: [1]}).tolist() == [0, 4]
    assert matching_rows(pool, {"quoted": [1]}).tolist() == []


def test_names_of_fields_that_no_row_has_are_not_kept(tmp_path: Path) -> None:
    pool = table(tmp_path, {"f": 1})
    for i in range(100):
        assert matching_rows(pool, {f"no{i}": [1]}).tolist() == []
    matching_rows(pool, {"f": [2]})
    assert list(filters._postings[pool]) == ["f"]
