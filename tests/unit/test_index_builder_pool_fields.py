"""What is said of a pool's fields: kinds, counts, and a bound on both."""

import pytest

from polyrank.index_builder.pool.fields import Fields


def test_each_field_has_its_kind_and_its_rows() -> None:
    fields = Fields()
    fields.count({"a": "x", "b": 1, "c": True, "d": [1], "e": {"f": 1}})
    fields.count({"a": "y", "b": 1.5, "g": 1})
    fields.count({"g": "x"})
    fields.count({"g": 2})
    assert fields.described() == {
        "fields": {
            "a": {"kind": "text", "rows": 2},
            "b": {"kind": "number", "rows": 2},
            "c": {"kind": "true/false", "rows": 1},
            "d": {"kind": "list", "rows": 1},
            "e": {"kind": "object", "rows": 1},
            "g": {"kind": "mixed", "rows": 3},
        },
        "left_out": [],
    }
    assert fields.lines() == [
        "fields: a (text, 2 rows), b (number, 2 rows), c (true/false, 1 row), d (list, 1 row), e (object, 1 row), "
        "g (mixed: number in 2 rows, text in 1 row)"
    ]


def test_a_pool_without_fields_says_so() -> None:
    assert Fields().lines() == ["fields: none besides id and text"]
    assert Fields().described() == {"fields": {}, "left_out": []}


def test_names_are_a_pools_to_choose_so_their_number_and_length_are_bounded() -> None:
    fields = Fields()
    for number in range(5000):
        fields.count({f"{number}{'x' * 500}": 1, "a": 1})
        fields.leave_out(f"${number}{'x' * 500}", "why")
    found, left = fields.lines()
    assert "a (number, 5000 rows)" in found
    assert found.endswith("… (number, 1 row) and 970 more; there are more than 1000 names")
    assert left.endswith("… (why; 1 row) and 970 more")
    assert len(found) + len(left) < 5000
    described = fields.described()
    assert (len(described["fields"]), len(described["left_out"])) == (1000, 1000)
    assert described["fields"]["a"]["rows"] == 5000


@pytest.mark.parametrize(("name", "shown"), [("a\nb\x1b[1m", r"'a\nb\x1b[1m'"), ("", "''"), ("Größe 東", "Größe 東")])
def test_no_name_reaches_a_terminal_as_anything_but_letters(name: str, shown: str) -> None:
    fields = Fields()
    fields.count({name: 1})
    fields.leave_out(name, "why")
    assert fields.lines() == [f"fields: {shown} (number, 1 row)", f"left out: {shown} (why; 1 row)"]
