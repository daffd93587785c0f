"""How fast updates are accepted, how soon they are searchable, and how much they slow down rankings.

    python -m benchmarks.updates --pool F [F...] --data F [--model MODEL] [--seconds 10]

Serves half of the pool. Then, for each number of candidates a call, puts new candidates for so many seconds, and ranks
each call's last text at once with `min_revision`: it must be found. The same candidates follow with other metadata;
their texts need no encoding. Rankings are timed before and after all updates. Prints one JSON object a line.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

from benchmarks.serving import served
from benchmarks.timing import wall_seconds

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.pool.rows import Candidate, read_pool
from polyrank.model.rankers.load import load_vector_ranker
from polyrank.model.text.dialogues import read_dialogues

SIZES = (1, 16, 256)


def call(url: str, method: str, path: str, body: Any) -> dict[str, Any]:
    """Send a JSON body; returns the body of the answer."""
    content = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}{path}", content, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=120) as response:
        return dict(json.load(response))


def put(url: str, texts: list[str], ids: list[str], metadata: dict[str, Any]) -> tuple[float, float]:
    """Put candidates; returns the seconds until the call returns, and until a ranking has found the last text."""
    body = [{"id": each, "text": text, "metadata": metadata} for each, text in zip(ids, texts, strict=True)]
    began = time.perf_counter()
    revision = call(url, "PUT", "/index/candidates", body)["revision"]
    acknowledged = time.perf_counter() - began
    answer = call(url, "POST", "/rank", {"context": texts[-1], "min_revision": revision, "top_k": 1000})
    assert answer["revision"] >= revision
    assert ids[-1] in [each["id"] for each in answer["results"]], "acknowledged, and not searchable"
    return acknowledged, time.perf_counter() - began


def ranking_ms(url: str, contexts: list[list[str]]) -> float:
    seconds = [wall_seconds(partial(call, url, "POST", "/rank", {"context": context})) for context in contexts]
    return statistics.median(seconds) * 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=Path, nargs="+", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="checkpoints/chat-poly")
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    rows = [row for row in read_pool(arguments.pool) if isinstance(row, Candidate)]
    dialogues = islice(read_dialogues(arguments.data), 100)
    contexts = [[turn.text for turn in each.conversation.turns] for each in dialogues]
    half = len(rows) // 2  # of the pool is built; the texts of the other half are put
    with tempfile.TemporaryDirectory() as store:
        build(load_vector_ranker(arguments.model), rows[:half], Path(store))
        with served(Path(store)) as (url, _, _):
            before, numbers = ranking_ms(url, contexts), count()
            texts = (row.text for row in rows[half:])
            for size in SIZES:
                calls, again = [], []
                until = time.monotonic() + arguments.seconds
                while time.monotonic() < until and len(some := list(islice(texts, size))) == size:
                    ids = [f"new-{next(numbers)}" for _ in some]
                    calls.append(put(url, some, ids, {"again": False}))
                    again.append(put(url, some, ids, {"again": True}))
                for what, each in (("new texts", calls), ("texts unchanged", again)):
                    acknowledged, searchable = (statistics.median(seconds) for seconds in zip(*each, strict=True))
                    found = {
                        "candidates_a_call": size,
                        "what": what,
                        "calls": len(each),
                        "acknowledged_ms": round(acknowledged * 1000, 2),
                        "searchable_ms": round(searchable * 1000, 2),
                        "candidates_a_second": round(size / acknowledged, 1),
                    }
                    print(json.dumps(found), flush=True)
            after = ranking_ms(url, contexts)
            print(json.dumps({"built": half, "put": next(numbers), "rank_ms": [round(before, 2), round(after, 2)]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
