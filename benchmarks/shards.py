"""What a shard costs beside a search in one's own process, what a shard that stalls costs, and answers of many parts.

    python -m benchmarks.shards --cluster HOST:PORT [--rows 31000] [--codes 64] [--calls 400]

Prints JSON. A hash takes the place of the model. The cluster is started as in docs/scale.md; one node with two
processors is enough.

`one shard`: the whole pool is one part, which a shard holds on one thread. Its answers are compared with those of a
search in this process over the same rows, in turns. `one of four stalls`: four shards hold the part, and one of them is
stopped for 0.4 s in every 2. Calls come one after the other; with hedges and without, against a time in which
nothing stalls. `many parts`: an answer needs S parts and takes as long as the slowest of S times that one shard was
measured to take, drawn with replacement: of the calm times, and of those while one of four stalls. A hedge after the
95th percentile takes the faster of two.
"""

import argparse
import asyncio
import json
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.build_memory import HashEncoder
from numpy.typing import NDArray

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.scale.cluster import connected
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.model.errors import RankingError
from polyrank.model.search.scan import prepare
from polyrank.model.text.assembly import Conversation
from polyrank.service.caching.vectors import MatrixVectors
from polyrank.service.live.serving import Searchable
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking import retrieval
from polyrank.service.ranking.local_part import part_found
from polyrank.service.ranking.parts import PoolQuery
from polyrank.service.ranking.retrieval import PoolSearch
from polyrank.service.ranking.values import RankRequest
from polyrank.service.scale.asking import Asking
from polyrank.service.scale.calls import AskedQuery, Holding
from polyrank.service.scale.ray_shards import RayShards
from polyrank.service.scale.remote_part import Calls
from polyrank.service.scale.replicas import Replicas
from polyrank.service.scheduling.stages import Journey

DIM, REPLICAS = 384, 4
STALL_SECONDS, EVERY_SECONDS = 0.4, 2.0
PARTS, DRAWN = (1, 2, 4, 8, 16, 32, 64), 20_000
Codes = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Figures:
    """Milliseconds."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: NDArray[np.float64]) -> "Figures":
        return cls(*(round(float(each) * 1000, 2) for each in np.percentile(seconds, [50, 90, 99])))


class Sharded:
    """Asks shards that hold the pool as one part."""

    def __init__(self, ray: Any, root: Path, made: Manifest, replicas: int, hedge_s: float = 0.0) -> None:
        metrics = Metrics()
        self._asking = Asking(metrics, hedge_s)
        self._calls = Calls(self._asking, Holding(made.id, made.parts[0].name))
        self._replicas = Replicas(RayShards(ray, str(root), 1), self._asking, metrics, replicas)
        failed = [reply.error for own in self._replicas.prepare(made).values() for reply in own if reply.error]
        if failed:
            sys.exit(f"a shard cannot be prepared: {failed[0]}")

    async def ask(self, request: RankRequest, codes: Codes) -> None:
        found = await self._calls.search(AskedQuery(0, PoolQuery(request, with_candidates=True), codes), math.inf)
        assert found.candidates, "so few come along"

    async def close(self) -> None:
        await self._asking.close()
        await asyncio.to_thread(self._replicas.close)


def asked() -> RankRequest:
    return RankRequest(conversation=Conversation(()))


def searched_here(part: Searchable) -> Callable[[Codes], object]:
    def ask(codes: Codes) -> object:
        search = PoolSearch(part, asked(), codes, Journey())
        [among] = retrieval.search([search], 1)
        return part_found(search, among, with_candidates=True)

    return ask


@contextmanager
def opened(root: Path) -> Iterator[Searchable]:
    store = GenerationStore(root)
    generation = store.open(str(store.current()))
    vectors = MatrixVectors(generation, lambda *_: None)
    yield Searchable(Snapshot.of(generation), vectors, prepare(vectors.matrix(), "cpu", with_bytes=True))
    generation.close()


async def one_shard(sharded: Sharded, here: Callable[[Codes], object], codes: list[Codes]) -> dict[str, Any]:
    """Time both in turns; the ratio is that of the two times of a context."""
    loop, took = asyncio.get_running_loop(), []
    for at, each in enumerate(codes):
        began = time.perf_counter()
        await loop.run_in_executor(None, here, each)
        between = time.perf_counter()
        await sharded.ask(asked(), each)
        if at >= 10:  # the first ones warm up
            took.append((between - began, time.perf_counter() - between))
    own, by_shard = np.array(took).T
    quartiles = [round(float(each), 3) for each in np.percentile(by_shard / own, [50, 25, 75])]
    return {"here": Figures.of(own), "by_shard": Figures.of(by_shard), "ratio": quartiles}


async def timed(sharded: Sharded, codes: list[Codes]) -> NDArray[np.float64]:
    took = []
    for each in codes:
        began = time.perf_counter()
        await sharded.ask(asked(), each)
        took.append(time.perf_counter() - began)
    return np.array(took)


@contextmanager
def stalling(pid: int) -> Iterator[None]:
    """Stop a process for STALL_SECONDS in every EVERY_SECONDS, during the block."""
    ends = threading.Event()

    def stall() -> None:
        while not ends.wait(EVERY_SECONDS - STALL_SECONDS):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STALL_SECONDS)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stall)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def shard_pids() -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if each.read_bytes().startswith(b"ray::ShardActor"):
                found.append(int(each.parent.name))
    return sorted(found)


async def one_of_four_stalls(
    ray: Any, root: Path, made: Manifest, codes: list[Codes]
) -> dict[str, NDArray[np.float64]]:
    """Return the seconds of all answers, by what happens meanwhile."""
    found = {}
    for name, hedge_s in (("hedged", 0.0), ("unhedged", math.inf)):
        before = set(shard_pids())
        sharded = Sharded(ray, root, made, REPLICAS, hedge_s)
        [stalled, *_] = [each for each in shard_pids() if each not in before]
        await timed(sharded, codes[:50])  # so that the 95th percentile is known
        if "calm" not in found:
            found["calm"] = await timed(sharded, codes)
        with stalling(stalled):
            found[name] = await timed(sharded, codes)
        await sharded.close()
    return found


def many_parts(seconds: NDArray[np.float64], seed: int) -> list[dict[str, Any]]:
    """Draw answers of several parts from the times of one."""
    draw, hedge_at = np.random.default_rng(seed), float(np.percentile(seconds, 95))
    found = []
    for parts in PARTS:
        first = draw.choice(seconds, (DRAWN, parts))
        second = np.where(first > hedge_at, hedge_at + draw.choice(seconds, (DRAWN, parts)), math.inf)
        without, hedged = (Figures.of(each.max(axis=1)) for each in (first, np.minimum(first, second)))
        found.append({"parts": parts, "unhedged": without, "hedged": hedged})
    return found


async def measured(ray: Any, directory: Path, given: argparse.Namespace) -> dict[str, Any]:
    draw = np.random.default_rng(given.seed)
    pool = [Candidate(f"c{at}", f"reply {at} of the pool", {}) for at in range(given.rows)]
    model, options = HashEncoder(DIM, counts_words=False), BuildOptions(index="exact")
    made = build(model, pool, directory / "parts", options, parts=1).manifest
    build(model, pool, directory / "whole", options)
    codes = [draw.standard_normal((given.codes, DIM)).astype(np.float32) for _ in range(given.calls)]
    codes = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in codes]
    with opened(directory / "whole") as part:
        sharded = Sharded(ray, directory / "parts", made, 1)
        alone = await one_shard(sharded, searched_here(part), codes)
        await sharded.close()
    stalls = await one_of_four_stalls(ray, directory / "parts", made, codes)
    return {
        "one_shard": alone,
        "one_of_four_stalls": {name: Figures.of(seconds) for name, seconds in stalls.items()},
        "many_parts": {name: many_parts(stalls[name], given.seed) for name in ("calm", "unhedged")},
    }


def main() -> None:
    """Print the figures, or in one line why there are none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="auto")
    parser.add_argument("--rows", type=int, default=31_000)
    parser.add_argument("--codes", type=int, default=64)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as directory, connected(given.cluster) as ray:
            found = asyncio.run(measured(ray, Path(directory), given))
    except RankingError as error:
        parser.exit(1, f"{error}\n")
    print(json.dumps(found, default=lambda each: {name: getattr(each, name) for name in each.__slots__}, indent=1))


if __name__ == "__main__":
    main()
