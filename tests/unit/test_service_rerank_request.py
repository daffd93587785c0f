"""Which dialect a request is in."""

from typing import Any

import pytest

from polyrank.service.errors import DialectUnknown, HeaderInvalid
from polyrank.service.http.compat.reranked import DIALECTS, CompatRerankIn, dialect_of, dialect_of_header

TEXTS, DOCUMENTS = {"texts": ["a"]}, {"documents": ["a"]}


def body(fields: dict[str, Any]) -> CompatRerankIn:
    return CompatRerankIn.model_validate({"query": "q", **fields})


@pytest.mark.parametrize(
    ("fields", "dialect"),
    [
        (TEXTS, "tei"),
        (TEXTS | {"top_n": 1}, "tei"),
        (TEXTS | {"documents": None, "top_k": 1}, "tei"),
        (DOCUMENTS, "cohere"),
        (DOCUMENTS | {"texts": None}, "cohere"),
        (DOCUMENTS | {"top_k": 3}, "voyage"),
        (DOCUMENTS | {"top_k": None}, "voyage"),
        (DOCUMENTS | {"top_k": 3, "top_n": None}, "voyage"),
        (DOCUMENTS | {"top_k": 3, "top_n": 0}, "cohere"),
    ],
)
def test_the_shape_tells(fields: dict[str, Any], dialect: str) -> None:
    assert dialect_of(body(fields), None, None) == dialect


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_setting_tells_what_the_shape_cannot_and_a_header_everything(dialect: Any) -> None:
    assert dialect_of(body(DOCUMENTS), None, dialect) == dialect
    assert dialect_of(body(DOCUMENTS | {"top_k": 1}), None, dialect) == dialect
    assert dialect_of(body(TEXTS), None, dialect) == "tei"
    for fields in (TEXTS, DOCUMENTS, DOCUMENTS | {"top_k": 1}):
        assert dialect_of(body(fields), dialect, "cohere") == dialect


def test_nothing_to_rank_is_no_dialect() -> None:
    for fields in ({}, {"texts": None}, {"documents": None}):
        with pytest.raises(DialectUnknown, match="documents"):
            dialect_of(body(fields), "tei", "voyage")


def test_the_header() -> None:
    assert dialect_of_header(None) is None
    assert dialect_of_header(" TEI ") == "tei"
    with pytest.raises(HeaderInvalid, match="tei, cohere, jina, infinity, voyage"):
        dialect_of_header("vespa")
