"""What words cost a ranking: `/rank` over one pool with words and without, asked in turns.

    export OMP_NUM_THREADS=1
    python -m benchmarks.words.cost --model CHECKPOINT --pool POOL --data DIALOGUES [--size 31000] [--rounds 300]

Two servers with equal vectors hold the first `--size` candidates of POOL; one of them counts words. Each round sends
the next context of DIALOGUES, with its persona, to both, in an order that alternates. The table shows what a caller
waits, and the server's own times by stage; differences are taken within a round. Below it stands what words took in the
build, and on the disk. (benchmarks/scan.py words compares the search alone.)
"""

import argparse
import http.client
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from benchmarks.serving import served
from benchmarks.timing import machine
from benchmarks.words.stores import two_stores

from polyrank.index_builder.generation.words import WORDS_DIRECTORY
from polyrank.index_builder.pool.rows import Candidate, read_pool
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.errors import InvalidInput, RankingError
from polyrank.model.text.dialogues import read_dialogues

GOAL_MS = 2.0  # more than without words, at most
WARM_ROUNDS = 20
WITH, WITHOUT = "words", "vectors alone"
WAIT = "a caller's wait"

Times = dict[str, list[float]]
"""Milliseconds by what took them, one for each round."""


class Size(NamedTuple):
    """What words take in a build (seconds) and on the disk (bytes for each candidate)."""

    seconds: float
    bytes_each: float


def bodies(data: Path) -> list[bytes]:
    """Return a request for each context of a file."""
    conversations = [each.conversation for each in read_dialogues(data)]
    return [
        json.dumps(
            {
                "context": [turn.text for turn in each.turns],
                "persona": list(each.persona),
                "timeout_ms": 10_000,
            }
        ).encode()
        for each in conversations
    ]


def in_rounds(urls: Mapping[str, str], asked: Iterator[bytes], rounds: int) -> dict[str, Times]:
    """Send each body to all servers, in an order that alternates; returns the times of each server."""
    connections = {name: http.client.HTTPConnection(urlsplit(url).netloc, timeout=60) for name, url in urls.items()}
    took: dict[str, Times] = {name: defaultdict(list) for name in urls}
    for number, body in enumerate(islice(asked, WARM_ROUNDS + rounds)):
        for name in list(urls)[:: -1 if number % 2 else 1]:
            found = _times(connections[name], body)
            if number >= WARM_ROUNDS:
                for what, each in found.items():
                    took[name][what].append(each)
    for connection in connections.values():
        connection.close()
    return took


def _times(connection: http.client.HTTPConnection, body: bytes) -> dict[str, float]:
    """Send a request; returns the caller's milliseconds and those of the server's stages."""
    began = time.perf_counter()
    connection.request("POST", "/rank", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    took = (time.perf_counter() - began) * 1000
    if response.status != 200:
        sys.exit(f"a request failed: {answer.decode(errors='replace')[:300]}")
    return {WAIT: took, **json.loads(answer)["timings_ms"]}


def size_of(store: Path) -> Size:
    """Return what words took in the build of a store's generation."""
    opened = GenerationStore(store)
    [generation], _ = opened.open_to_serve()
    with closing(generation):
        held = sum(each.stat().st_size for each in (generation.path / WORDS_DIRECTORY).iterdir())
        return Size(generation.manifest.build.seconds["words"], held / generation.manifest.count)


def print_table(took: Mapping[str, Times]) -> dict[str, float]:
    """Print p50 by server and the differences; returns p50 of the differences."""
    print("| p50, ms | with words | without | difference | middle half |\n| --- | --- | --- | --- | --- |")
    medians = {}
    for what in took[WITH]:
        own, other = (np.array(took[side][what]) for side in (WITH, WITHOUT))
        low, medians[what], high = np.percentile(own - other, [25, 50, 75]).tolist()
        halves = [f"{np.median(each):.2f}" for each in (own, other)]
        print(f"| {what} | {halves[0]} | {halves[1]} | {medians[what]:+.2f} | {low:+.2f} to {high:+.2f} |")
    return medians


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Build, serve and ask; returns the median differences in milliseconds."""
    rows = [row for row in read_pool([arguments.pool]) if isinstance(row, Candidate)][: arguments.size]
    if len(rows) < arguments.size:
        raise InvalidInput(f"{arguments.pool}: {arguments.size} candidates are needed, and there are {len(rows)}")
    asked = cycle(bodies(arguments.data))
    with two_stores(arguments.model, rows) as stores:
        size = size_of(stores.with_words)
        with served(stores.with_words) as one, served(stores.without) as other:
            took = in_rounds({WITH: one.url, WITHOUT: other.url}, asked, arguments.rounds)
    print(machine(), f"{len(rows)} candidates, {arguments.rounds} rounds")
    medians = print_table(took)
    met = "met" if medians[WAIT] <= GOAL_MS else "missed"
    print(f"words cost {medians[WAIT]:+.2f} ms; the goal of {GOAL_MS:+.1f} ms at most is {met}")
    print(f"a build took {size.seconds:.2f} s for words; they have {size.bytes_each:.0f} bytes a candidate")
    return medians


def main(given: Sequence[str] | None = None) -> Any:
    """Print the table, or in one line why there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="CHECKPOINT", help="it counts words")
    parser.add_argument("--pool", type=Path, required=True, help="as `polyrank build` takes it")
    parser.add_argument("--data", type=Path, required=True, help="dialogues whose contexts are asked")
    parser.add_argument("--size", type=int, default=31_000, help="candidates")
    parser.add_argument("--rounds", type=int, default=300)
    try:
        return measure(parser.parse_args(given))
    except RankingError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
