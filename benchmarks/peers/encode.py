"""Encoding contexts and pools: polyrank compared with sentence-transformers and its back-ends.

    python -m benchmarks.peers.encode [--data F] [--pool F [F...]] [--rounds 5]

Same texts, same cores, in turns. polyrank takes the shipped chat-poly, and the peers' weights (all-MiniLM-L6-v2: base);
either makes 64 context vectors, code attention included, where sentence-transformers makes one. A context is the last
one to six turns of a dialogue of `--data`. 500 candidates of `--pool` are encoded. Prints a table, and one JSON
object as the last line.
"""

import argparse
import sys

from benchmarks.peers import inputs
from benchmarks.peers.compare import CALL_COLUMNS, Work, compared, finish, parser_of
from benchmarks.peers.ratios import OURS

ALONE, TOGETHER, ALIKE = 20, 32, 64
SAMPLE = 500  # candidates, from the whole pool
SIDES = {
    OURS: ("encode", "auto"),
    f"{OURS}, base": ("encode-base", "auto"),
    f"{OURS}, base in float32": ("encode-base", "float32"),
}


def works(options: argparse.Namespace) -> list[Work]:
    """Return what is timed."""
    alone = [[text] for text in inputs.contexts(options.data, ALONE, options.seed)]
    together = inputs.contexts(options.data, TOGETHER, options.seed + 1)
    replies = inputs.replies(options.pool, SAMPLE)
    return [
        Work("1 context", "contexts", alone, ALONE),
        Work(f"{TOGETHER} contexts", "contexts", [together], 1),
        Work("a candidate of the pool", "candidates", [replies], len(replies)),
    ]


def main() -> int:
    options = parser_of(__doc__).parse_args()
    alike = "candidates", inputs.replies(options.pool, ALIKE)
    return finish("encode", compared("encode", SIDES, works(options), (1, 2), options, alike), CALL_COLUMNS, options)


if __name__ == "__main__":
    sys.exit(main())
