"""Read a collection in BEIR's form (Thakur et al. 2021, appendix): documents, queries and graded judgements.

`corpus.jsonl` and `queries.jsonl` (also .gz, .zst) have one object a line: `_id`, `text` and, for a document, `title`.
`qrels.tsv` has the header `query-id`, `corpus-id`, `score` and one judgement a line. The text of a document is its
title, a space and its text.

Where a query is a document itself, as in ArguAna and Quora, both have one `_id`. The search leaves that document out,
as BEIR's own evaluation does; unless it is judged to be right for the query, so that both are only numbered alike.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyrank.model.errors import InvalidInput
from polyrank.model.inputs import open_input
from polyrank.model.text.folding import drawn_order
from polyrank.model.text.jsonlines import Object, read_objects, written_lines

_HEADER = ["query-id", "corpus-id", "score"]
_HIGHEST = 1_000_000

Judgements = dict[str, dict[str, int]]


class CollectionInvalid(InvalidInput):
    """A file of a collection cannot be used; the message names the file, the line and the reason."""


@dataclass(frozen=True)
class Collection:
    """Documents to search, and the queries that have judgements."""

    document_ids: Sequence[str]  # in drawn order (rankings.py), as their texts
    documents: Sequence[str]
    query_ids: Sequence[str]
    queries: Sequence[str]
    judgements: Sequence[dict[str, int]]  # for each query, the score of each judged document by its name
    unknown_queries: int = 0  # number of judged queries that the file of queries lacks
    unknown_documents: int = 0  # number of judged documents that the corpus lacks; they count as not found

    def gains_of(self, query: int, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the gains of documents for a query, all given by their places; 0 for one that is not judged."""
        judged = self.judgements[query]
        return _gains([judged.get(self.document_ids[row], 0) for row in rows.tolist()])

    def judged_rows(self, query: int) -> NDArray[np.int64]:
        """Return the places of the documents that are judged for a query and known."""
        places = (self._place_of.get(document) for document in self.judgements[query])
        return np.array([place for place in places if place is not None], np.int64)

    def own_row(self, query: int) -> int | None:
        """Return the place of the document that the query is itself; None: there is none."""
        name = self.query_ids[query]
        return None if self.judgements[query].get(name, 0) > 0 else self._place_of.get(name)

    @cached_property
    def _place_of(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.document_ids)}

    def judged_gains(self, query: int) -> NDArray[np.float64]:
        return _gains(list(self.judgements[query].values()))

    def best_document(self, query: int) -> str:
        """Return the text of the document that is judged best for a query; empty if the corpus lacks it."""
        judged = self.judgements[query]
        best = max(judged, key=judged.__getitem__)
        return self.documents[self._place_of[best]] if best in self._place_of else ""


def _gains(scores: list[int]) -> NDArray[np.float64]:
    """Judgements below 0 (spam, in TREC's files) gain nothing."""
    return np.maximum(np.array(scores, np.float64), 0.0)


def read_collection(corpus: Path, queries: Path, qrels: Path, limit: int | None = None) -> Collection:
    """Read the three files; keeps only judged queries, and of these only the first `limit`."""
    judgements = read_judgements(qrels)
    documents, texts = dict(_texts(corpus)), dict(_texts(queries))
    judged = dict(islice(((name, texts[name]) for name in texts if name in judgements), limit))
    if not documents:
        raise CollectionInvalid(f"{corpus}: there are no documents")
    if not judged:
        raise CollectionInvalid(f"{qrels}: judges no query of {queries}; give files of one collection")
    if empty := next((name for name, text in judged.items() if not text), None):
        raise CollectionInvalid(f"{queries}: the query {empty!r} has no text")
    return Collection(
        names := drawn_order(documents),
        [documents[name] for name in names],
        list(judged),
        list(judged.values()),
        [judgements[name] for name in judged],
        unknown_queries=len(judgements.keys() - texts.keys()),
        unknown_documents=len({document for query in judged for document in judgements[query]} - documents.keys()),
    )


def read_judgements(path: Path) -> Judgements:
    """Read a qrels file: query name, then document name, to score.

    Raises CollectionInvalid where the file is missing, or a line is no judgement or contradicts another.
    """
    judgements: Judgements = {}
    for place, (number, line) in enumerate(_lines(path)):
        cells = line.split("\t")
        if place == 0 and cells != _HEADER:
            raise CollectionInvalid(f"{path}:{number}: the header must be {', '.join(_HEADER)}, with tabs between")
        if place == 0:
            continue
        try:
            score = _score(cells)
        except ValueError as error:
            raise CollectionInvalid(f"{path}:{number}: {error}") from error
        query, document, _ = cells
        if judgements.setdefault(query, {}).setdefault(document, score) != score:
            raise CollectionInvalid(f"{path}:{number}: judges {document!r} for {query!r} again, and differently")
    return judgements


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    if not path.is_file():
        raise CollectionInvalid(f"{path}: no such file")
    try:
        with open_input(path) as file:
            for number, line in written_lines(file):
                yield number, line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise CollectionInvalid(f"{path}:{number}: the line is not UTF-8") from error
    except OSError as error:
        raise CollectionInvalid(f"{path}: cannot be read to its end: {error.strerror or error}") from error


def _score(cells: list[str]) -> int:
    """Return the score of a line's cells; raises ValueError with what is wrong."""
    if len(cells) != len(_HEADER) or not (cells[0] and cells[1]):
        raise ValueError("a line must be a query, a document and a score, with tabs between")
    try:
        score = int(cells[2])
    except ValueError:
        score = _HIGHEST + 1
    if abs(score) > _HIGHEST:
        raise ValueError(f"the score must be a whole number of at most {_HIGHEST}")
    return score


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """Yield names and texts of documents or queries; raises CollectionInvalid for a bad line or a repeated name."""
    names: set[str] = set()
    for number, row in read_objects(path, CollectionInvalid):
        entry = row if isinstance(row, InvalidInput) else _text(row)
        if isinstance(entry, InvalidInput):
            raise CollectionInvalid(f"{path}:{number}: {entry}")
        if entry[0] in names:
            raise CollectionInvalid(f"{path}:{number}: the _id {entry[0]!r} was seen before")
        names.add(entry[0])
        yield entry


def _text(row: Object) -> tuple[str, str] | InvalidInput:
    name, title, text = row.get("_id"), row.get("title"), row.get("text")
    if not isinstance(name, str) or not name:
        return InvalidInput("_id must be a text")
    title = "" if title is None else title
    if not isinstance(title, str) or not isinstance(text, str):
        return InvalidInput("text, and title where there is one, must be texts")
    return name, titled(title, text)


def titled(title: str, text: str) -> str:
    """Return the text of a document that may have a title."""
    return f"{title} {text}".strip()
