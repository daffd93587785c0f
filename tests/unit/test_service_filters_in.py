import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from polyrank.service.api.fields import MAX_CONDITIONS, MAX_DEPTH, MAX_VALUES, checked_filter


def nested(depth: int) -> dict[str, Any]:
    return {"$not": nested(depth - 1)} if depth > 1 else {"f": 1}


@pytest.mark.parametrize(
    ("filter_", "says"),
    [
        ({"$nor": []}, "$nor: is not one of $and, $or, $not"),
        ({"$and": []}, "$and: must be a list of filters, one at least"),
        ({"$or": {"f": 1}}, "$or: must be a list of filters, one at least"),
        ({"$or": [{"f": 1}, 7]}, "$or[1]: must be a filter, an object"),
        ({"$not": [{"f": 1}]}, "$not: must be a filter, an object"),
        ({"$and": [{"$not": {"f": {}}}]}, "$and[0].$not.f: give one of gt, gte, lt, lte, exists"),
        ({"f": []}, "f: a list must hold 1 to 1000 values"),
        ({"f": [1] * (MAX_VALUES + 1)}, "f: a list must hold 1 to 1000 values"),
        ({"f": [[1]]}, "f: values must be strings, finite numbers, true, false or null"),
        ({"f": math.nan}, "f: values must be strings, finite numbers, true, false or null"),
        ({"f": {"$gt": 1}}, "f.$gt: is not one of gt, gte, lt, lte, exists; write gt, without $"),
        (
            {"f": {"city": "Oslo"}},
            "f.city: is not one of gt, gte, lt, lte, exists; for the field city inside it write f.city",
        ),
        ({"f": {"city": ["Oslo"]}}, "f.city: is not one of gt, gte, lt, lte, exists"),
        ({"f": {"exists": 1}}, "f.exists: must be true or false"),
        ({"f": {"gt": None}}, "f: bounds must be finite numbers, or strings, all of one kind"),
        ({"f": {"gt": True}}, "f: bounds must be finite numbers, or strings, all of one kind"),
        ({"f": {"gt": math.inf}}, "f: bounds must be finite numbers, or strings, all of one kind"),
        ({"f": {"gt": 1, "lt": "2"}}, "f: bounds must be finite numbers, or strings, all of one kind"),
        ({f"f{n}": n for n in range(MAX_CONDITIONS + 1)}, "has more than 64 conditions"),
        ({"$and": [{}] * (MAX_CONDITIONS + 1)}, "has more than 64 conditions"),
        (nested(MAX_DEPTH + 1), "$not.$not.$not.$not.$not.$not.$not.$not: filters are nested deeper than 8"),
    ],
)
def test_what_is_no_filter_is_told_with_its_place(filter_: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        checked_filter(filter_)


@pytest.mark.parametrize(
    "wrap", [lambda many: {"$and": many}, lambda many: {"$not": {"$or": [{}, {"$and": many}]}}], ids=["", "nested"]
)
def test_conditions_are_counted_up_to_the_bound(wrap: Callable[[list[Any]], dict[str, Any]]) -> None:
    read: list[int] = []

    class Many(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            for at, each in enumerate(super().__iter__()):
                read.append(at)
                yield each

    with pytest.raises(ValueError, match="has more than 64 conditions"):
        checked_filter(wrap(Many([{}] * 21_000)))
    assert len(read) <= MAX_CONDITIONS + 1


@pytest.mark.parametrize(
    "filter_",
    [
        {},
        {"f": None, "g": [1, True, None, "s", 1.5]},
        {"f": {"exists": False}},
        {"f": {"gt": 1, "lte": 2.5, "exists": True}},
        {"f": {"gte": "2026-01-01", "lt": "2027"}},
        {"$and": [{}], "$or": [{"f": 1}, {"$not": {"g": 2}}]},
        {"": 1},
        {"f": 10**400, "g": {"gt": -(10**400), "lt": 1.5}},
        nested(MAX_DEPTH),
        {f"f{n}": n for n in range(MAX_CONDITIONS)},
        {"f": [1] * MAX_VALUES},
    ],
)
def test_what_is_one_stays_as_it_is(filter_: dict[str, Any]) -> None:
    assert checked_filter(filter_) is filter_
