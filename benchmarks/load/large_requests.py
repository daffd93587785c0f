"""One large request, sent again until it is answered, beside somebody who asks for little.

    python -m benchmarks.load.large_requests [--texts FILE] [--count 5000] [--times 6] [--url URL]

The large request brings `--count` texts that the server has never seen, and has the server's longest time. Another
caller asks for rankings of the generation and of a few new texts, one after the other. Prints what each attempt was
answered and how long it took, the times of the other caller, and one JSON object as the last line.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
from benchmarks.load.drive import add_options, serving, store_of, table
from benchmarks.timing import machine

from polyrank.index_builder.pool.rows import Candidate, read_pool

CONTEXT = "my parcel should have been here on monday, where is it?"
FEW = 5  # new texts of each second small request
PAUSE_SECONDS = 0.1


def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send one request; returns status, seconds and what was said."""
    began = time.perf_counter()
    headers = {"Content-Type": "application/json"}
    try:
        with urlopen(Request(f"{url}/rank", json.dumps(body).encode(), headers), timeout=120) as response:
            status, told = response.status, f"{len(json.load(response)['results'])} results"
    except HTTPError as error:
        status, told = error.code, json.load(error)["detail"]
    return {"status": status, "seconds": round(time.perf_counter() - began, 2), "said": told}


@contextmanager
def somebody_else(url: str) -> Iterator[list[dict[str, Any]]]:
    """Let another caller ask for little during the block; yields the list that its answers go to."""
    answers: list[dict[str, Any]] = []
    done = threading.Event()

    def call() -> None:
        for number in count():
            texts = [f"we will look into order {number}, part {part}" for part in range(FEW)]
            own = {"candidates": texts} if number % 2 else {}
            answers.append(ask(url, {"context": f"{CONTEXT} {number}", "top_k": 3, **own}))
            if done.wait(PAUSE_SECONDS):
                return

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield answers
    finally:
        done.set()
        thread.join()


def new_texts(path: Path, wanted: int) -> list[str]:
    """Return different texts; where a file holds too few, numbers make more of them."""
    texts = list(dict.fromkeys(row.text for row in read_pool([path]) if isinstance(row, Candidate)))
    return [texts[at] if at < len(texts) else f"{texts[at % len(texts)]} {at}" for at in range(wanted)]


def measure(url: str, texts: list[str], times: int) -> dict[str, Any]:
    """Send everything; returns the object that is printed."""
    ask(url, {"context": CONTEXT, "candidates": ["let me check"]})
    with somebody_else(url) as others:
        attempts = [ask(url, {"context": CONTEXT, "candidates": texts}) for _ in range(times)]
    seconds = [each["seconds"] for each in others if each["status"] == 200]
    return {
        "machine": machine(),
        "texts": len(texts),
        "letters": sum(map(len, texts)),
        "attempts": [{"attempt": 1 + at, **each} for at, each in enumerate(attempts)],
        "others": len(others),
        "others_unanswered": len(others) - len(seconds),
        "others_p50_s": round(float(np.percentile(seconds, 50)), 3),
        "others_p99_s": round(float(np.percentile(seconds, 99)), 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--texts", type=Path, help="pool file of the texts to send; default: --pool, numbered")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--times", type=int, default=6)
    parser.add_argument("--url", help="of a server that runs already; default: one on a core of its own")
    options = parser.parse_args()
    texts = new_texts(options.texts or options.pool, options.count)
    if options.url:
        found = measure(options.url, texts, options.times)
    else:
        with store_of(options) as store, serving(store) as server:
            found = measure(server.url, texts, options.times)
    print(table(found["attempts"], ("attempt", "status", "seconds", "said")))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
