"""Encoding contexts and pools: polyrank compared with sentence-transformers and its back-ends.

    python -m benchmarks.peers.encode [--data F] [--pool F] [--threads 1 2] [--rounds 5] [--against torch openvino ...]

Same texts, same cores, in turns. polyrank takes the shipped chat-poly, and the peers' weights (all-MiniLM-L6-v2: base);
either makes 64 context vectors, code attention included, where sentence-transformers makes one. A context is the last
one to six turns of a dialogue of `--data`. `--sample` candidates of `--pool` are encoded. Prints a table, and one JSON
object as the last line.
"""

import argparse
import sys

from benchmarks.peers import inputs
from benchmarks.peers.compare import CALL_COLUMNS, Work, add_variants, compared, finish, parser_of
from benchmarks.peers.ratios import OURS

ALONE, TOGETHER, ALIKE = 20, 32, 64
SIDES = {
    OURS: ("encode", "auto"),
    f"{OURS}, base": ("encode-base", "auto"),
    f"{OURS}, base in float32": ("encode-base", "float32"),
}


def works(options: argparse.Namespace) -> list[Work]:
    """Return what is timed."""
    alone = [[text] for text in inputs.contexts(options.data, ALONE, options.seed)]
    together = inputs.contexts(options.data, TOGETHER, options.seed + 1)
    replies = inputs.replies(options.pool, options.sample)
    return [
        Work("1 context", "contexts", alone, ALONE),
        Work(f"{TOGETHER} contexts", "contexts", [together], 1),
        Work("a candidate of the pool", "candidates", [replies], len(replies)),
    ]


def main() -> int:
    parser = parser_of(__doc__)
    add_variants(parser)
    parser.add_argument("--sample", type=int, default=500, help="candidates, from the whole pool; default: 500")
    options = parser.parse_args()
    alike = "candidates", inputs.replies(options.pool, ALIKE)
    return finish("encode", compared("encode", SIDES, works(options), options, alike), CALL_COLUMNS, options)


if __name__ == "__main__":
    sys.exit(main())
