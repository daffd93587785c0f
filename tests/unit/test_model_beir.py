"""Reading a collection in BEIR's form; a bad line is named by file and line."""

import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from polyrank.model.evaluation.beir import CollectionInvalid, read_collection, read_judgements

HEADER = "query-id\tcorpus-id\tscore\n"
CORPUS = [
    {"_id": "d1", "title": "A title", "text": "and a text"},
    {"_id": "d2", "title": "", "text": "no title"},
    {"_id": "d3", "title": None, "text": "none either", "metadata": {"url": "x"}},
    {"_id": "d4", "title": "title alone", "text": ""},
]
QUERIES = [{"_id": "q2", "text": "second"}, {"_id": "q3", "text": "not judged"}, {"_id": "q1", "text": "first"}]
QRELS = HEADER + "q1\td1\t2\nq1\td3\t0\nq2\td2\t1\n"


class Files(NamedTuple):
    corpus: Path
    queries: Path
    qrels: Path


def lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(tmp_path / "corpus.jsonl", tmp_path / "queries.jsonl", tmp_path / "qrels.tsv")
    for path, content in zip(made, (lines(CORPUS), lines(QUERIES), QRELS), strict=True):
        path.write_text(content)
    return made


def refused(files: Files) -> str:
    """Return the message of the refusal, without the directory; it must be one line."""
    with pytest.raises(CollectionInvalid) as caught:
        read_collection(*files)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{files.corpus.parent}/", "")


def test_documents_are_title_and_text_and_queries_those_judged(files: Files) -> None:
    collection = read_collection(*files)
    texts = ["A title and a text", "no title", "none either", "title alone"]
    documents = dict(zip(collection.document_ids, collection.documents, strict=True))
    assert documents == dict(zip(["d1", "d2", "d3", "d4"], texts, strict=True))
    files.corpus.write_text("\n".join(files.corpus.read_text().splitlines()[::-1]) + "\n")
    assert read_collection(*files) == collection, "the order of the file is nothing"
    assert (collection.query_ids, collection.queries) == (["q2", "q1"], ["second", "first"])
    assert collection.judgements == [{"d2": 1}, {"d1": 2, "d3": 0}]
    assert (collection.unknown_queries, collection.unknown_documents) == (0, 0)


def test_gains_are_the_judgements_and_nothing_below_zero(files: Files) -> None:
    files.qrels.write_text(HEADER + "q1\td1\t2\nq1\td3\t-2\n")
    collection = read_collection(*files)
    places = np.array([collection.document_ids.index(name) for name in ("d4", "d3", "d1")])
    assert collection.gains_of(0, places).tolist() == [0, 0, 2]
    assert collection.judged_rows(0).tolist() == places[[2, 1]].tolist()
    assert sorted(collection.judged_gains(0).tolist()) == [0, 2]


def test_a_query_has_a_row_of_its_own_unless_that_is_judged_to_be_right(files: Files) -> None:
    files.queries.write_text(lines([{"_id": name, "text": name} for name in ("d1", "d2", "q")]))
    files.qrels.write_text(HEADER + "d1\td3\t1\nd2\td2\t1\nq\td1\t1\n")
    collection = read_collection(*files)
    assert [collection.own_row(query) for query in range(3)] == [collection.document_ids.index("d1"), None, None]


def test_a_limit_keeps_the_first_judged_queries(files: Files) -> None:
    assert read_collection(*files, limit=1).query_ids == ["q2"]


def test_what_the_files_do_not_have_is_counted(files: Files) -> None:
    files.qrels.write_text(QRELS + "q8\td1\t1\nq9\tgone\t1\nq1\tlost\t1\n")
    collection = read_collection(*files)
    assert (collection.unknown_queries, collection.unknown_documents) == (2, 1)
    assert collection.judged_gains(1).tolist() == [2, 0, 1]


def test_compressed_files_a_bom_and_crlf(files: Files, tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl.gz"
    corpus.write_bytes(gzip.compress(files.corpus.read_bytes()))
    files.qrels.write_bytes(b"\xef\xbb\xbf" + QRELS.replace("\n", "\r\n").encode() + b"\r\n")
    assert read_collection(corpus, files.queries, files.qrels) == read_collection(
        files.corpus, files.queries, files.qrels
    )


def test_a_judgement_may_be_repeated(files: Files) -> None:
    files.qrels.write_text(QRELS + "q1\td1\t2\n")
    assert read_judgements(files.qrels) == {"q1": {"d1": 2, "d3": 0}, "q2": {"d2": 1}}


@pytest.mark.parametrize(("bad", "says"), [
    ("q1\td4", "a line must be a query, a document and a score, with tabs between"),
    ("q1 0 d4 1", "a line must be a query, a document and a score, with tabs between"),
    ("q1\t0\td4\t1", "a line must be a query, a document and a score, with tabs between"),
    ("\td4\t1", "a line must be a query, a document and a score, with tabs between"),
    ("q1\t\t1", "a line must be a query, a document and a score, with tabs between"),
    ("q1\td4\tyes", "the score must be a whole number of at most 1000000"),
    ("q1\td4\t0.5", "the score must be a whole number of at most 1000000"),
    ("q1\td4\t1000001", "the score must be a whole number of at most 1000000"),
    ("q1\td4\t" + "9" * 5000, "the score must be a whole number of at most 1000000"),
    ("q1\td1\t1", "judges 'd1' for 'q1' again, and differently"),
    ("q1\t\xff\t1", "the line is not UTF-8"),
])  # fmt: skip
def test_a_bad_judgement_is_named(files: Files, bad: str, says: str) -> None:
    files.qrels.write_bytes(QRELS.encode() + b"\n" + bad.encode("latin-1") + b"\n")
    assert refused(files) == f"qrels.tsv:6: {says}"


@pytest.mark.parametrize("header", ["q1\td1\t1\n", "query-id corpus-id score\n", "\n"])
def test_judgements_need_their_header(files: Files, header: str) -> None:
    files.qrels.write_text(header + "q2\td2\t1\n")
    line = 1 if header.strip() else 2
    assert refused(files) == f"qrels.tsv:{line}: the header must be query-id, corpus-id, score, with tabs between"


@pytest.mark.parametrize(("bad", "says"), [
    ({"text": "no name"}, "_id must be a text"),
    ({"_id": 7, "text": "a number"}, "_id must be a text"),
    ({"_id": "", "text": "empty"}, "_id must be a text"),
    ({"_id": "d9"}, "text, and title where there is one, must be texts"),
    ({"_id": "d9", "text": "x", "title": 7}, "text, and title where there is one, must be texts"),
    ({"_id": "d1", "text": "again"}, "the _id 'd1' was seen before"),
    (["d9"], "the line is not a JSON object"),
])  # fmt: skip
def test_a_bad_document_is_named(files: Files, bad: Any, says: str) -> None:
    files.corpus.write_text(lines([*CORPUS, bad]))
    assert refused(files) == f"corpus.jsonl:5: {says}"


def test_a_query_needs_a_text_only_where_it_is_judged(files: Files) -> None:
    files.queries.write_text(lines([{"_id": "q1", "text": "first"}, {"_id": "q3", "text": ""}]))
    assert read_collection(*files).query_ids == ["q1"]
    files.queries.write_text(lines([{"_id": "q1", "text": " "}]))
    assert refused(files) == "queries.jsonl: the query 'q1' has no text"


def test_files_of_different_collections(files: Files) -> None:
    files.queries.write_text(lines([{"_id": "q7", "text": "another"}]))
    assert refused(files) == "qrels.tsv: judges no query of queries.jsonl; give files of one collection"
    files.corpus.write_text("")
    assert refused(files) == "corpus.jsonl: there are no documents"
    files.qrels.unlink()
    assert refused(files) == "qrels.tsv: no such file"
