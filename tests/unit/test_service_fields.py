"""What all models of requests share: null is absent."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from polyrank.service import app  # noqa: F401  (loads the models of every route)
from polyrank.service.api.fields import In
from polyrank.service.api.requests import RankIn, TurnIn

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    schemas: dict[str, Any] = json.loads((REPOSITORY / "docs" / "openapi.json").read_text())["components"]["schemas"]
    return schemas


LEAST: dict[str, dict[str, Any]] = {
    "TurnIn": {"text": "a"},
    "CandidateIn": {"text": "a"},
    "RerankIn": {},
    "ExpectIn": {},
    "SaidIn": {"context": "a"},
    "RankIn": {"context": "a"},
    "ExplainIn": {"context": "a", "candidates": ["b"]},
    "ClassifyIn": {"texts": ["a"]},
    "BatchIn": {"requests": [{"context": "a"}]},
    "PoolCandidateIn": {"text": "a"},
    "IndexIn": {"pool": "p"},
    "CandidatesIn": {"candidates": [{"text": "a"}]},
    "DeleteIn": {"ids": ["a"]},
    "ActivateIn": {"generation": "g"},
    "CompatRerankIn": {"query": "a", "documents": ["b"]},
    "EmbedIn": {"inputs": "a"},
    "TokenizeIn": {"inputs": "a"},
    "SentencesIn": {"source_sentence": "a", "sentences": ["b"]},
    "Cutting": {},
    "ComparingIn": {},
    "SimilarityIn": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "EmbeddingsIn": {"input": "a"},
    "CohereEmbedIn": {"texts": ["a"]},
}


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
