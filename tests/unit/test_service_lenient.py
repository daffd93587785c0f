"""Requests of other systems' clients: lenient where the clients need it, and nowhere else."""

from typing import Any

import pytest
from pydantic import ValidationError

from polyrank.service.http.compat.openai import EmbeddingsIn
from polyrank.service.http.compat.reranked import CompatRerankIn
from polyrank.service.http.compat.tei import EmbedIn

RERANK = {"query": "q", "documents": ["a"]}


def rerank(**fields: Any) -> CompatRerankIn:
    return CompatRerankIn.model_validate({**RERANK, **fields})


def test_null_stands_for_every_optional_field_and_unknown_ones_are_ignored() -> None:
    optional = [name for name, field in CompatRerankIn.model_fields.items() if not field.is_required()]
    nulls = dict.fromkeys([each for each in optional if each != "documents"])
    assert rerank(**nulls, of_no_dialect=3).sent == ["a"]
    EmbeddingsIn.model_validate({"input": "a", "model": None, "encoding_format": None, "dimensions": None, "user": 1})
    EmbedIn.model_validate({"inputs": "a", "normalize": None, "truncate": None, "prompt_name": None})


def test_booleans_may_be_strings() -> None:
    for sent, read in (("true", True), ("True", True), ("False", False), (True, True), (False, False)):
        assert rerank(return_documents=sent).return_documents is read


@pytest.mark.parametrize("fields", [
    {"return_documents": "yes"}, {"return_documents": 1}, {"top_n": -1}, {"top_n": 1.5}, {"top_n": "3"},
    {"top_k": True}, {"query": 5}, {"query": "  "}, {"query": None}, {"documents": "a"},
    {"documents": [1]}, {"documents": [{}]}, {"documents": [{"text": "a", "metadata": {"n": 2**64}}]},
    {"documents": [{"text": "a", "metadata": float("nan")}]}, {"texts": ["b"]},
    {"rank_fields": "title"}, {"rank_fields": ["title"] * 65},
])  # fmt: skip
def test_what_is_wrong_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        rerank(**fields)


@pytest.mark.parametrize(("fields", "limit"), [
    ({}, None), ({"top_n": 0}, None), ({"top_n": 3}, 3), ({"top_k": 2}, 2),
    ({"top_n": None, "top_k": 0}, None), ({"top_n": 0, "top_k": 2}, None),
])  # fmt: skip
def test_how_many(fields: dict[str, Any], limit: int | None) -> None:
    assert rerank(**fields).limit == limit
