"""Searching a pool for one context: polyrank's exact scan compared with one query of FAISS's flat index.

    python -m benchmarks.peers.search [--data F] [--pool F [F...]] [--rounds 5]

Same rows, same contexts, same cores, in turns. polyrank scores every row with the 64 vectors of a context;
FAISS compares it with the one vector that the published model makes of the same text. Both return ten rows. Prints a
table, and one JSON object as the last line.
"""

import sys
from pathlib import Path

import numpy as np
from benchmarks.peers import inputs
from benchmarks.peers.compare import CALL_COLUMNS, finish, parser_of
from benchmarks.peers.contest import contest, sides
from benchmarks.peers.environments import python_of
from benchmarks.peers.goals import SEARCH_PEER
from benchmarks.peers.pools import MOST, pools_of
from benchmarks.peers.ratios import OURS, ratios, rows
from benchmarks.peers.search_worker import CODES_FILE, QUERIES_FILE, ROWS_FILE

import polyrank
from polyrank.model.text.assembly import Conversation

CONTEXTS = 100


def write_inputs(folder: Path, ranker: polyrank.VectorRanker, vectors: Path, texts: list[str]) -> None:
    """Write what the workers read: the rows as a store holds them, and the contexts in both forms."""
    np.save(folder / ROWS_FILE, np.load(vectors).astype(np.float16))
    tokens = [ranker.tokenize_context(Conversation.of(text))[0] for text in texts]
    np.save(folder / CODES_FILE, np.stack(ranker.encode_contexts(tokens)))
    np.save(folder / QUERIES_FILE, ranker.encode_candidates(ranker.tokenize_candidates(texts)[0]))


def main() -> int:
    options = parser_of(__doc__).parse_args()
    ranker, pools = pools_of(options)
    _, vectors = pools.files(MOST)
    write_inputs(vectors.parent, ranker, vectors, inputs.contexts(options.data, CONTEXTS, options.seed))
    worker = ["-m", "benchmarks.peers.search_worker"]
    commands = {
        OURS: [sys.executable, *worker, "scan", "--folder", vectors.parent],
        SEARCH_PEER: [python_of("openvino", options.cache), *worker, "flat", "--folder", vectors.parent],
    }
    found = []
    for threads in (1, 2):
        with sides(commands, threads) as competitors:
            took = contest(competitors, "search", list(range(CONTEXTS)), options.rounds)
        found += rows(took, CONTEXTS, {"work": f"a search of {MOST:,}", "threads": threads})
        print(f"{threads} threads: {ratios(took)}", file=sys.stderr, flush=True)
    return finish("search", found, CALL_COLUMNS[:-1], options)


if __name__ == "__main__":
    sys.exit(main())
