"""Rank the same contexts with vectors from the matrix and from Redis: ids and scores must agree, damage be noticed.

    python -m benchmarks.local_against_redis --pool F [F...] --data F [--model MODEL] [--count 200]

Builds the pool twice into temporary stores, without and with a real redis-server, and serves both (`--vectors local`,
`--vectors redis`). Sends the contexts to both, then damages one value in Redis and asks again. Exit status 0 only if
all answers agree and the metrics show where vectors were read.
"""

import argparse
import os
import sys
import tempfile
import urllib.request
from itertools import islice
from pathlib import Path
from typing import Any, cast

import redis
from benchmarks.http_calls import call
from benchmarks.redis_server import redis_server
from benchmarks.serving import served

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.pool.rows import read_pool
from polyrank.model.rankers.load import load_late
from polyrank.model.text.dialogues import read_dialogues


def vectors_read(url: str) -> dict[str, float]:
    """Read polyrank_cache_requests_total by tier and result."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    found = [line for line in lines if line.startswith("polyrank_cache_requests_total{")]
    return {line.split("{")[1].split("}")[0]: float(line.rsplit(" ", 1)[1]) for line in found}


def ranking(url: str, body: dict[str, Any]) -> list[tuple[str, float]]:
    return [(result["id"], result["score"]) for result in call(url, "POST", "/rank", body)["results"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=Path, nargs="+", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--count", type=int, default=200)
    arguments = parser.parse_args()
    os.environ["POLYRANK_VECTOR_CACHE_MB"] = "0"  # every answer is read anew
    ranker = load_late(arguments.model)
    dialogues = islice(read_dialogues(arguments.data), arguments.count)
    bodies = [{"context": [turn.text for turn in each.conversation.turns], "top_k": 10} for each in dialogues]
    with tempfile.TemporaryDirectory() as directory, redis_server() as redis_url:
        for name, url in (("embedded", None), ("redis", redis_url)):
            built = build(
                ranker, read_pool(arguments.pool, Path(directory)), Path(directory) / name, BuildOptions(redis_url=url)
            )
            print(f"{name}: {built.count} candidates, {built.rejected} rejected, {built.seconds:.1f} s")
        with (
            served(Path(directory) / "embedded") as (local, _, _),
            served(Path(directory) / "redis", ["--redis", redis_url, "--vectors", "redis"]) as (remote, _, _),
        ):
            before = vectors_read(remote)
            pairs = [(ranking(local, body), ranking(remote, body)) for body in bodies]
            same = sum(one == other for one, other in pairs)
            after = vectors_read(remote)
            print(f"{same} of {len(pairs)} answers have the same ids and scores")
            print("read through Redis:", {name: after[name] - before.get(name, 0) for name in after})

            best = pairs[0][0][0][0]
            client = redis.Redis.from_url(redis_url)
            key = next(iter(client.scan_iter(f"pe:*:c:{best}", count=10_000)))
            value = bytearray(cast(bytes | None, client.get(key)) or b"")
            value[20] ^= 1
            client.set(key, bytes(value))
            again = ranking(remote, bodies[0])
            corrupt = vectors_read(remote)['result="corrupt",tier="redis"']
            print(
                f"after damaging {key.decode()}: same answer {again == pairs[0][0]}, counted as corrupt {corrupt:.0f}"
            )
    return 0 if same == len(pairs) and again == pairs[0][0] and corrupt == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
