"""What generations and cached texts cost in Redis: memory, and time to load, fetch and remove them.

    python -m benchmarks.redis_memory [--count 100000] [--dims 384 768] [--rounds 2000]

Starts a real redis-server for each dimension. A fetch asks for 100 random candidates; fetches go on in a thread while
the generation is removed. Vectors are random, because their values do not matter to Redis.
"""

import argparse
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import cast

import numpy as np
import redis
from benchmarks.redis_server import redis_server
from benchmarks.timing import wall_seconds
from numpy.typing import NDArray

from polyrank.index_builder.redis_client import Seal, connect
from polyrank.index_builder.vectors.redis import RedisEmbeddings, StoredVectors, drop_generation

GENERATION = "20260101T000000000000-0123abcd"
FINGERPRINT = "0123abcd" * 8
BATCH = 8192
ASKED = 100
TIMEOUT_SECONDS = 5.0


def used_bytes(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return cast(dict[str, int], client.info("memory"))["used_memory"]


def load(store: StoredVectors, names: list[str], vectors: NDArray[np.float16]) -> float:
    """Write all vectors; returns the rate."""
    began = time.perf_counter()
    for start in range(0, len(names), BATCH):
        store.put_many(names[start : start + BATCH], vectors[start : start + BATCH])
    return len(names) / (time.perf_counter() - began)


def fetch_seconds(store: StoredVectors, names: list[str], go_on: Callable[[int], bool]) -> list[float]:
    """Fetch for as long as `go_on` of the number of fetches is true; returns the seconds of each."""
    chance, seconds = random.Random(0), list[float]()
    while go_on(len(seconds)):
        seconds.append(wall_seconds(partial(store.get_many, chance.sample(names, ASKED))))
    return seconds


def described(seconds: list[float]) -> str:
    p50, p99, longest = (float(each) * 1000 for each in np.quantile(seconds, [0.5, 0.99, 1.0]))
    return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, longest {longest:.2f} ms of {len(seconds)}"


def measure(url: str, count: int, dim: int, rounds: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(count, dim)).astype(np.float16)
    names = [f"candidate-{n}" for n in range(count)]
    with closing(RedisEmbeddings(url, GENERATION, dim, "float16", TIMEOUT_SECONDS)) as copy:
        before = used_bytes(url)
        rate = load(copy, names, vectors)
        copy.commit()
        each = (used_bytes(url) - before) / count
        print(f"D = {dim}: {each:.0f} bytes a candidate, {each - 2 * dim:.0f} more than its vector")
        print(f"  loaded at {rate:,.0f} candidates a second")
        fetch_seconds(copy, names, lambda done: done < 100)
        print(f"  {ASKED} of them fetched: {described(fetch_seconds(copy, names, lambda done: done < rounds))}")
        removed, during = threading.Event(), []
        reader = threading.Thread(
            target=lambda: during.extend(fetch_seconds(copy, names, lambda _: not removed.is_set()))
        )
        reader.start()
        took = wall_seconds(partial(drop_generation, url, GENERATION))
        removed.set()
        reader.join()
        print(f"  removed in {took:.2f} s; fetches meanwhile: {described(during)}")
    texts = [f"{n:064x}" for n in range(count)]
    with closing(connect(url, TIMEOUT_SECONDS)) as client:
        before = used_bytes(url)
        load(
            StoredVectors(client, Seal(url), f"pe:t:{{{FINGERPRINT}}}:", dim, "float16", lifetime_seconds=86_400),
            texts,
            vectors,
        )
        print(f"  a cached text: {(used_bytes(url) - before) / count:.0f} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--dims", type=int, nargs="+", default=[384, 768])
    parser.add_argument("--rounds", type=int, default=2000)
    arguments = parser.parse_args()
    print(f"{arguments.count} candidates, float16, {os.cpu_count()} cores")
    for dim in arguments.dims:
        with redis_server() as url:
            measure(url, arguments.count, dim, arguments.rounds)


if __name__ == "__main__":
    main()
