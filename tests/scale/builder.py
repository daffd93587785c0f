"""A build by encoders in chunks of 16 candidates, which waits for a line of standard input before it writes each.

Arguments: store, pool, model, cluster, number of encoders. Prints lines of JSON: {"told": line for the user},
{"append": first row, "begun": how many encoders are ready}, and at the end {"retries": …, "resumed": …}.
"""

import json
import sys
from pathlib import Path

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.generation import candidates
from polyrank.index_builder.pool.rows import read_pool
from polyrank.index_builder.scale.cluster import connected
from polyrank.index_builder.scale.encoders import Encoders
from polyrank.model.rankers.load import load_retriever

CHUNK = 16
STDOUT = sys.stdout


def say(**what: object) -> None:
    STDOUT.write(json.dumps(what) + "\n")
    STDOUT.flush()


def main(store: str, pool: str, name: str, cluster: str, count: str) -> None:
    candidates.BATCH_ROWS = CHUNK
    model = load_retriever(name)
    with connected(cluster) as ray:
        encoders = Encoders(ray, model, name, "float16", int(count), lambda line: say(told=line))

        def progress(stage: str, done: int, _total: int | None) -> None:
            if stage == "append":
                say(append=done, begun=sum(worker.begun is not None for worker in encoders._workers))
                sys.stdin.readline()

        built = build(model, read_pool([pool], Path(store)), Path(store), vectors=encoders, progress=progress)
    say(retries=encoders.retries, resumed=built.resumed)


if __name__ == "__main__":
    main(*sys.argv[1:])
