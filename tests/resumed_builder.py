"""A builder to be killed in the middle of encoding, and started again: without torch, in chunks of 16 candidates.

Run as a script it is a nursery: it imports everything once and forks a builder for each JSON line of standard input,
{"root": …, "pool": rows, "salt": …, "kill": [stage, which of its announcements] or null, "seconds": of each chunk}. On
standard output come lines: "pid <pid>" of a new builder, "encode <first row>" before it encodes a chunk, "resumed
<rows>" when it has published, and "dead <exit status>".
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fakes import EVIDENCE, HashEncoder, pool
from nursery import tell

from polyrank.index_builder.building.encoding import ChunkTexts, EncodedChunk, encoded_by
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.generation import candidates, words
from polyrank.model.representations import LateRows

CHUNK = 16
ENCODER = HashEncoder(dim=32, longest=7, evidence=EVIDENCE, late=LateRows(8, None))  # cuts some texts


def run(order: dict[str, Any]) -> None:
    """Build, and be killed where the order says so."""
    announced: Counter[str] = Counter()
    encoded = encoded_by(ENCODER)

    def vectors(chunks: Iterator[ChunkTexts], _on_done: Callable[[int], None]) -> Iterator[EncodedChunk]:
        for chunk in chunks:
            tell("encode", chunk.start)
            time.sleep(order["seconds"])
            yield from encoded(iter([chunk]), lambda _done: None)

    def progress(stage: str, _done: int, _total: int | None) -> None:
        announced[stage] += 1
        if [stage, announced[stage]] == order["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)

    rows = pool(order["pool"], order["salt"])
    built = build(ENCODER, rows, Path(order["root"]), BuildOptions(index="hnsw"), progress=progress, vectors=vectors)
    tell("resumed", built.resumed)


def main() -> None:
    """Fork a builder for each line of input."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            tell("pid", os.getpid())
            run(json.loads(line))
            os._exit(0)
        tell("dead", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    candidates.BATCH_ROWS = words._TEXTS_AT_ONCE = CHUNK
    main()
