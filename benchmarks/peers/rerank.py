"""A Cross-encoder on a context with fifty candidates of mixed length: polyrank and sentence-transformers compared.

    python -m benchmarks.peers.rerank [--data F] [--pool F [F...]] [--rounds 5]

Same transformer (all-MiniLM-L6-v2), same texts, same cores, in turns; each side has a random head. Prints a table, and
one JSON object as the last line.
"""

import sys

from benchmarks.peers import inputs
from benchmarks.peers.compare import CALL_COLUMNS, Work, compared, finish, parser_of
from benchmarks.peers.ratios import OURS

CANDIDATES = 50
SIDES = {OURS: ("rerank", "auto"), f"{OURS}, float32": ("rerank", "float32")}


def main() -> int:
    options = parser_of(__doc__).parse_args()
    work = Work("50 pairs", "pairs", [inputs.pairs(options.data, options.pool, CANDIDATES, options.seed)], 1)
    return finish("rerank", compared("rerank", SIDES, [work], [2], options), CALL_COLUMNS[:-1], options)


if __name__ == "__main__":
    sys.exit(main())
