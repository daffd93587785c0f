"""Dialogues to train on and a pool to mine from, of a collection in BEIR's form.

    python benchmarks/beir_dialogues.py --corpus CORPUS --queries QUERIES --qrels QRELS --output FOLDER [--each 3]

A query is a context of one turn, a document judged relevant its reply; of a query's documents the `--each` best judged
are taken. FOLDER gets `dialogues.jsonl` and `pool.jsonl`, for `polyrank mine` and `polyrank train`.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from model.beir import Collection, read_collection


def dialogues(collection: Collection, each: int) -> Iterable[dict[str, Any]]:
    """A dialogue of each query with each of its best documents; the query is the dialogue that holds them together."""
    texts = dict(zip(collection.document_ids, collection.documents, strict=True))
    for name, query, judged in zip(collection.query_ids, collection.queries, collection.judgements, strict=True):
        relevant = [document for document in judged if judged[document] > 0 and texts.get(document)]
        for document in sorted(relevant, key=lambda document: -judged[document])[:each]:
            yield {"dialogue": name, "context": [query], "response": texts[document]}


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description="dialogues and a pool from a collection in BEIR's form")
    for name in ("corpus", "queries", "qrels", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--each", type=int, default=3, help="documents a query; default: 3")
    arguments = parser.parse_args()
    collection = read_collection(arguments.corpus, arguments.queries, arguments.qrels)
    arguments.output.mkdir(parents=True, exist_ok=True)
    _write(arguments.output / "dialogues.jsonl", dialogues(collection, arguments.each))
    names = zip(collection.document_ids, collection.documents, strict=True)
    _write(arguments.output / "pool.jsonl", ({"id": name, "text": text} for name, text in names if text))


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


if __name__ == "__main__":
    main()
