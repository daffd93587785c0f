"""What all models of requests share: null is absent, and what a filter may hold."""

import json
import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from polyrank.service import app  # noqa: F401  (loads the models of every route)
from polyrank.service.api.fields import MAX_CONDITIONS, MAX_DEPTH, MAX_VALUES, In, checked_filter
from polyrank.service.api.requests import RankIn, TurnIn

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    schemas: dict[str, Any] = json.loads((REPOSITORY / "docs" / "openapi.json").read_text())["components"]["schemas"]
    return schemas


LEAST: dict[str, dict[str, Any]] = {
    "TurnIn": {"text": "a"}, "CandidateIn": {"text": "a"}, "RerankIn": {}, "ExpectIn": {}, "SaidIn": {"context": "a"},
    "RankIn": {"context": "a"}, "ExplainIn": {"context": "a", "candidates": ["b"]}, "ClassifyIn": {"texts": ["a"]},
    "BatchIn": {"requests": [{"context": "a"}]}, "PoolCandidateIn": {"text": "a"}, "IndexIn": {"pool": "p"},
    "CandidatesIn": {"candidates": [{"text": "a"}]}, "DeleteIn": {"ids": ["a"]}, "ActivateIn": {"generation": "g"},
    "CompatRerankIn": {"query": "a", "documents": ["b"]}, "EmbedIn": {"inputs": "a"}, "TokenizeIn": {"inputs": "a"},
    "SentencesIn": {"source_sentence": "a", "sentences": ["b"]}, "Cutting": {}, "ComparingIn": {},
    "SimilarityIn": {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, "EmbeddingsIn": {"input": "a"},
    "CohereEmbedIn": {"texts": ["a"]}, "EventIn": {"ranking_id": "r", "kind": "none_good", "event_id": "e"},
    "FeedbackIn": {"events": [{"ranking_id": "r", "kind": "none_good", "event_id": "e"}]},
}  # fmt: skip


def models(base: type[In] = In) -> dict[str, type[In]]:
    found = {inner.__name__: inner for inner in base.__subclasses__()}
    return {**found, **{name: each for inner in found.values() for name, each in models(inner).items()}}


MODELS = {name: each for name, each in models().items() if each.model_fields}


def optional(model: type[In]) -> list[str]:
    return [name for name, field in model.model_fields.items() if not field.is_required()]


def test_every_model_of_a_request_is_tried() -> None:
    assert set(MODELS) == set(LEAST)


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name, each in MODELS.items() for field in optional(each)]
)
def test_null_is_absent(name: str, field: str) -> None:
    model, least = MODELS[name], LEAST[name]
    whole = model.model_validate_json(json.dumps(least | {field: least.get(field)}))
    assert whole == model.model_validate_json(json.dumps(least))


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name, each in MODELS.items() for field in optional(each)]
)
def test_the_description_says_so(described: dict[str, Any], name: str, field: str) -> None:
    if name in ("SaidIn", "Cutting"):  # what others begin with
        return
    schema = described[name]["properties"][field]
    assert {"type": "null"} in schema.get("anyOf", ()) or schema.keys() <= {"title", "default", "description"}


def test_all_of_them_may_be_null_at_once() -> None:
    nulls = dict.fromkeys(optional(RankIn))
    assert RankIn.model_validate_json(json.dumps({"context": "a", **nulls})) == RankIn(context="a")
    beside = {"context": "a", "candidates": [{"id": "b", "text": None}], **dict.fromkeys(("filter", "exact"))}
    assert RankIn.model_validate_json(json.dumps(beside)).model_fields_set == {"context", "candidates"}


def test_a_required_field_that_is_null_is_missing() -> None:
    with pytest.raises(ValidationError) as caught:
        RankIn.model_validate_json('{"context": null}')
    assert caught.value.errors()[0]["type"] == "missing"


def test_an_unknown_field_is_refused_whatever_it_holds() -> None:
    with pytest.raises(ValidationError):
        RankIn.model_validate_json('{"context": "a", "topk": null}')


def test_nulls_that_say_something_stay() -> None:
    filter_ = {"topic": None, "$or": [{"lang": [None, "en"]}]}
    assert RankIn.model_validate_json(json.dumps({"context": "a", "filter": filter_})).filter == filter_
    assert TurnIn.model_validate_json('{"role": "assistant", "content": null}').said().text == ""


def nested(depth: int) -> dict[str, Any]:
    return {"$not": nested(depth - 1)} if depth > 1 else {"f": 1}


@pytest.mark.parametrize(("filter_", "says"), [
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
])  # fmt: skip
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


@pytest.mark.parametrize("filter_", [
    {}, {"f": None, "g": [1, True, None, "s", 1.5]}, {"f": {"exists": False}},
    {"f": {"gt": 1, "lte": 2.5, "exists": True}}, {"f": {"gte": "2026-01-01", "lt": "2027-01-01"}},
    {"$and": [{}], "$or": [{"f": 1}, {"$not": {"g": 2}}]}, {"": 1},
    {"f": 10**400, "g": {"gt": -(10**400), "lt": 1.5}}, nested(MAX_DEPTH),
    {f"f{n}": n for n in range(MAX_CONDITIONS)}, {"f": [1] * MAX_VALUES},
])  # fmt: skip
def test_what_is_one_stays_as_it_is(filter_: dict[str, Any]) -> None:
    assert checked_filter(filter_) == filter_


def test_now_is_one_time_throughout_a_filter() -> None:
    before = datetime.now(UTC)
    bounds = {"gte": "now-7d", "lt": "now"}
    filter_ = {
        "at": bounds,
        "$or": [{"$not": {"until": {"lt": "now"}}}, {"name": "now"}],
        "n": {"gt": 1, "exists": True},
    }
    found = checked_filter(filter_)
    now = datetime.fromisoformat(found["at"]["lt"])
    assert before <= now <= datetime.now(UTC)
    assert found == {
        "at": {"gte": (now - timedelta(days=7)).isoformat(), "lt": now.isoformat()},
        "$or": [{"$not": {"until": {"lt": now.isoformat()}}}, {"name": "now"}],
        "n": {"gt": 1, "exists": True},
    }
    assert bounds == {"gte": "now-7d", "lt": "now"}


@pytest.mark.parametrize(("bounds", "says"), [
    ({"gte": "2026-11-01", "lt": "2026-12"}, "at: '2026-12' is no date or time as another bound is"),
    ({"gte": "now-7d", "lt": "tomorrow"}, "at: 'tomorrow' is no date or time as another bound is"),
    ({"gte": "now", "lt": 5}, "at: bounds must be finite numbers, or strings, all of one kind"),
    ({"gte": "now-999999w"}, "at: now-999999w is before the year 1 or after 9999"),
])  # fmt: skip
def test_bounds_beside_a_time_are_times(bounds: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        checked_filter({"at": bounds})
