"""A request to /rerank tells its dialect; documents in, places out."""

from typing import Any

import numpy as np
import pytest

from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Truncation
from polyrank.service.errors import DialectUnknown, HeaderInvalid
from polyrank.service.http.compat import cohere, tei
from polyrank.service.http.compat.reranked import (
    DIALECTS,
    CompatRerankIn,
    Document,
    Reranked,
    dialect_of,
    dialect_of_header,
    document_of,
    placed,
    search_units,
)

TEXTS, DOCUMENTS = {"texts": ["a"]}, {"documents": ["a"]}


def body(fields: dict[str, Any]) -> CompatRerankIn:
    return CompatRerankIn.model_validate({"query": "q", **fields})


@pytest.mark.parametrize(("fields", "dialect"), [
    (TEXTS, "tei"), (TEXTS | {"top_n": 1}, "tei"), (TEXTS | {"documents": None, "top_k": 1}, "tei"),
    (DOCUMENTS, "cohere"), (DOCUMENTS | {"texts": None}, "cohere"), (DOCUMENTS | {"top_k": 3}, "voyage"),
    (DOCUMENTS | {"top_k": None}, "voyage"), (DOCUMENTS | {"top_k": 3, "top_n": None}, "voyage"),
    (DOCUMENTS | {"top_k": 3, "top_n": 0}, "cohere"),
])  # fmt: skip
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


def documents(count: int) -> list[Document]:
    return [Document(f"t{at}") for at in range(count)]


def test_places_are_by_score_and_equal_ones_as_sent() -> None:
    scores = np.array([1, 3, 2, 3, 1], np.float32)
    places = placed(documents(5), scores, None, raw_scores=True)
    assert [(each.index, each.score) for each in places] == [(1, 3.0), (3, 3.0), (2, 2.0), (0, 1.0), (4, 1.0)]
    assert [each.document.text for each in places] == ["t1", "t3", "t2", "t0", "t4"]


def test_scores_that_saturate_are_still_in_order() -> None:
    places = placed(documents(3), np.array([40, 60, 50], np.float32), None, raw_scores=False)
    assert [each.index for each in places] == [1, 2, 0]
    assert [each.score for each in places] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("limit", "count"), [(None, 3), (1, 1), (3, 3), (9, 3)])
def test_at_most_so_many(limit: int | None, count: int) -> None:
    assert len(placed(documents(3), np.zeros(3, np.float32), limit, raw_scores=False)) == count


def test_a_document_is_read_by_its_text_its_rank_fields_or_its_first_string() -> None:
    sent = {"id": "x", "n": 3, "title": "T", "body": "B"}
    assert document_of("plain", 0, [], 9).text == "plain"
    assert document_of(sent, 0, [], 9).text == "T"
    assert document_of(sent, 0, ["body", "missing", "n", "title"], 9).text == "B\nT"
    assert document_of({**sent, "text": "X"}, 0, [], 9).text == "X"
    assert document_of({**sent, "text": "X"}, 0, ["missing"], 9).text == "X"
    assert document_of({"text": ""}, 0, [], 9).text == ""
    assert document_of({"image": "http://a/b.png", "caption": "C"}, 0, [], 9).text == "C"


def test_ids_and_metadata_come_back_where_there_are_any() -> None:
    assert document_of({"text": "a", "id": 0, "metadata": {"k": [1]}}, 0, [], 9).echo == {
        "id": 0,
        "metadata": {"k": [1]},
    }
    assert document_of({"text": "a", "id": None, "other": 1}, 0, [], 9).echo == {}


@pytest.mark.parametrize("sent", [{"id": "x"}, {"text": None}, {"text": 3, "list": ["a"]}, {"image": "http://a/b.png"}])
def test_a_document_without_text_is_refused_by_its_place(sent: dict) -> None:
    with pytest.raises(InvalidInput, match=r"documents\.7: holds no text"):
        document_of(sent, 7, [], 99)


def test_fields_that_are_together_too_long_are_refused_before_they_are_joined() -> None:
    sent: dict = {"a": "x" * 5, "b": "y" * 4}
    assert document_of(sent, 0, ["a", "b"], 9).text == "xxxxx\nyyyy"
    with pytest.raises(InvalidInput, match=r"documents\.3: has 9 characters; at most 8 "):
        document_of(sent, 3, ["a", "b"], 8)


def reranked(with_documents: bool = False, cut: Truncation | None = None) -> Reranked:
    sent = [Document("a", {"id": "x"}), Document("b")]
    places = placed(sent, np.array([0, 1], np.float32), None, raw_scores=True)
    return Reranked("m", places, 2, 9, cut or Truncation(), with_documents, "r")


def test_a_document_that_was_not_asked_for_is_absent_in_every_dialect() -> None:
    assert cohere.answer(reranked(), "2")["results"] == [
        {"index": 1, "relevance_score": 1.0},
        {"index": 0, "relevance_score": 0.0, "id": "x"},
    ]
    assert cohere.answer(reranked(), "1", plain_documents=True)["results"] == cohere.answer(reranked(), "2")["results"]
    assert cohere.voyage_answer(reranked())["data"] == cohere.answer(reranked(), "2")["results"]
    assert tei.answer(reranked()) == [{"index": 1, "score": 1.0}, {"index": 0, "score": 0.0}]


def test_a_document_has_the_dialects_type() -> None:
    asked = reranked(with_documents=True)
    assert cohere.answer(asked, "2")["results"][0]["document"] == {"text": "b"}
    assert cohere.answer(asked, "1", plain_documents=True)["results"][0]["document"] == "b"
    assert cohere.voyage_answer(asked)["data"][0]["document"] == "b"
    assert tei.answer(asked)[0]["text"] == "b"


def test_tokens_units_and_cuts_are_told() -> None:
    answer = cohere.answer(reranked(cut=Truncation(tokens=4, candidates=1)), "1")
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    assert answer["meta"]["tokens"] == {"input_tokens": 9, "output_tokens": 0}
    assert answer["meta"]["api_version"] == {"version": "1"}
    assert answer["meta"]["warnings"] == ["truncated: the query lost 4 tokens", "truncated: 1 documents lost their end"]
    assert cohere.voyage_answer(reranked())["usage"] == {"total_tokens": 9}
    assert [search_units(count) for count in (0, 1, 100, 101)] == [0, 1, 1, 2]
