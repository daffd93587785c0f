"""How long `/rank` over sent texts takes when they are encoded anew, and when memory or Redis holds their vectors.

    python -m benchmarks.cached_texts [--model MODEL] [--pool F] [--texts 100] [--count 20]

Serves one store three times with `polyrank serve`, the last time with a real redis-server and no cache in memory, and
sends the same texts again and again. Exit status 0 only if all answers have the same scores.
"""

import argparse
import os
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from statistics import median

from benchmarks.http_calls import call
from benchmarks.redis_server import redis_server
from benchmarks.serving import served

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.pool.rows import Candidate, read_pool
from polyrank.model.rankers.load import load_late


def ask(url: str, texts: list[str]) -> tuple[float, dict[int, float]]:
    """Rank the texts; returns the seconds that took, and the score of each text."""
    body = {"context": "hi, my parcel is late", "candidates": texts, "top_k": len(texts)}
    began = time.perf_counter()
    results = call(url, "POST", "/rank", body)["results"]
    return time.perf_counter() - began, {result["index"]: result["score"] for result in results}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="checkpoints/chat-poly")
    parser.add_argument("--pool", type=Path, default=Path("examples/support/pool.jsonl"))
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--count", type=int, default=20)
    arguments = parser.parse_args()
    rows = (row for row in read_pool([arguments.pool]) if isinstance(row, Candidate))
    texts = [row.text for row in islice(rows, arguments.texts)]
    scores = []
    with tempfile.TemporaryDirectory() as directory, redis_server() as redis_url:
        build(load_late(arguments.model), read_pool([arguments.pool]), Path(directory))
        flags_of_redis = ["--redis", redis_url]
        ways = (("encoded", 0, list[str]()), ("from memory", 64, list[str]()), ("from Redis", 0, flags_of_redis))
        for name, memory_mb, flags in ways:
            os.environ["POLYRANK_VECTOR_CACHE_MB"] = str(memory_mb)
            with served(Path(directory), flags) as (url, _, _):
                first, score = ask(url, texts)
                time.sleep(0.5)  # time for the vectors to be written
                seconds = sorted(ask(url, texts)[0] for _ in range(arguments.count))
                scores.append(score)
                scores.append(ask(url, texts)[1])
            p50, least, most = (f"{each * 1000:.0f}" for each in (median(seconds), seconds[0], seconds[-1]))
            print(f"{len(texts)} texts {name}: first {first * 1000:.0f} ms, then p50 {p50} ms ({least} to {most})")
    differ = max(abs(score[at] - scores[0][at]) for score in scores for at in scores[0])
    print(f"scores differ by {differ} at most")
    return 0 if differ < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
