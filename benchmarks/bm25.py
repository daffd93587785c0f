"""BM25 over a collection in BEIR's form: the baseline that a trained model must beat.

    pip install bm25s==0.3.16 PyStemmer==3.1.0
    python -m benchmarks.bm25 --corpus corpus.jsonl --queries queries.jsonl --qrels qrels.tsv

The files and the metrics are those of `polyrank evaluate --corpus`. This is Lucene's BM25 with k1 0.9 and b 0.4 (the
defaults of Anserini, from which the published figures come), lower case, English stop words and Porter's stemmer; a
document is its title, a space and its text. Documents that share no word with the query are not retrieved. Only this
script needs the two packages.
"""

import argparse
import time
from pathlib import Path

import bm25s
import numpy as np
import Stemmer

from polyrank.model.evaluation.beir import Collection, read_collection
from polyrank.model.measures import Ties, intervals, judged_values


def tokens(texts: list[str]) -> list[list[str]]:
    stemmer = Stemmer.Stemmer("porter")
    found: list[list[str]] = bm25s.tokenize(
        texts, stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False
    )
    return found


def search(collection: Collection, k1: float, b: float) -> list[Ties]:
    index = bm25s.BM25(method="lucene", k1=k1, b=b)
    index.index(tokens(list(collection.documents)), show_progress=False)
    known = set(index.vocab_dict)
    found = []
    for number, query in enumerate(tokens(list(collection.queries))):
        told = [token for token in query if token in known]
        scores = index.get_scores(told) if told else np.zeros(len(collection.documents))
        rows = np.flatnonzero(scores > 0)
        found.append(Ties.of(scores[rows], collection.gains_of(number, rows)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--queries", type=Path, required=True)
    parser.add_argument("--qrels", type=Path, required=True)
    parser.add_argument("--k1", type=float, default=0.9)
    parser.add_argument("--b", type=float, default=0.4)
    arguments = parser.parse_args()
    collection = read_collection(arguments.corpus, arguments.queries, arguments.qrels)
    began = time.perf_counter()
    found = search(collection, arguments.k1, arguments.b)
    seconds = time.perf_counter() - began
    values = judged_values(found, [collection.judged_gains(query) for query in range(len(found))])
    ends = intervals(np.column_stack(list(values.values())), np.arange(len(found)))
    print(f"BM25, k1 {arguments.k1}, b {arguments.b}: {len(found)} queries, {len(collection.documents)} documents")
    for (name, each), low, high in zip(values.items(), *ends, strict=True):
        print(f"{name:12}{each.mean():.4f} [{low:.4f}, {high:.4f}]")
    print(f"{seconds:.1f} s")


if __name__ == "__main__":
    main()
