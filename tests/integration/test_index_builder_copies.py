"""Copies in a real Redis: gone with their generations, also later; never another store's, nor at a live one's cost."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from fakes import HashEncoder, pool
from redis_process import RedisProcess, vector_keys

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.errors import BuildBusy, StoreUnavailable
from polyrank.index_builder.redis_client import Seal
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.leftovers import Copies
from polyrank.index_builder.vectors.redis import HIT, RedisEmbeddings, StoredRows, drop_generation
from polyrank.model.representations import LateRows

pytestmark = pytest.mark.quick

DIM = 64
ENCODER = HashEncoder(dim=DIM)


@pytest.fixture
def server() -> Iterator[RedisProcess]:
    """As docker/redis.conf sets it up."""
    made = RedisProcess("--maxmemory-policy", "volatile-lfu", tcp=True)
    yield made
    made.close()


def built(root: Path, url: str | None, count: int = 5, salt: str = "") -> str:
    return build(ENCODER, pool(count, salt), root, BuildOptions(index="flat", redis_url=url)).generation


def copied(server: RedisProcess) -> dict[str, int]:
    """How many keys each generation has."""
    found: dict[str, int] = {}
    with server.client() as client:
        for key in vector_keys(client):
            if not key.startswith("pe:t:"):
                generation = key.split("{")[1].split("}")[0]
                found[generation] = found.get(generation, 0) + 1
    return found


def noted(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "copies").iterdir())


def test_a_collection_removes_copies_and_keeps_those_of_what_it_keeps(tmp_path: Path, server: RedisProcess) -> None:
    first, second = (built(tmp_path, server.url) for _ in range(2))
    assert copied(server) == {first: 6, second: 6}
    assert GenerationStore(tmp_path).gc(1, server.url) == [first]
    assert copied(server) == {second: 6}
    assert noted(tmp_path) == [second]


def test_copies_left_behind_without_redis_go_at_the_next_collection_with_it(tmp_path, server: RedisProcess) -> None:
    root, other = tmp_path / "store", tmp_path / "other"
    first, second, third = (built(root, server.url) for _ in range(3))
    theirs = built(other, server.url)
    store = GenerationStore(root)
    assert store.gc(2, None) == [first]
    assert copied(server).keys() == {first, second, third, theirs}
    building = store.begin(store.new_id("ab" * 32))  # a copy of what is being built is no orphan
    (root / "copies" / building.name.removeprefix(".tmp-")).touch()
    with store.building():
        assert store.gc(2, server.url) == []
        assert first in copied(server), "left to the next collection while somebody builds"
        assert building.exists()
    building.rmdir()
    assert store.gc(2, server.url) == []
    assert copied(server) == {second: 6, third: 6, theirs: 6}
    assert noted(root) == [second, third]


def test_what_is_no_generation_is_left_alone(tmp_path: Path, server: RedisProcess) -> None:
    built(tmp_path, server.url)
    (tmp_path / "copies" / "*").touch()
    GenerationStore(tmp_path).gc(2, server.url)
    assert len(copied(server)) == 1


def test_a_copy_that_cannot_be_removed_stays_noted(tmp_path: Path, redis_process: RedisProcess) -> None:
    first, second = (built(tmp_path, redis_process.url) for _ in range(2))
    redis_process.kill()
    with pytest.raises(StoreUnavailable):
        GenerationStore(tmp_path).gc(1, redis_process.url)
    assert noted(tmp_path) == [first, second]


def test_a_large_copy_is_removed_while_others_are_served(server: RedisProcess) -> None:
    count, generation = 30_000, "20261121T013000123456-1a2b3c4d"
    with closing(RedisEmbeddings(server.url, generation, DIM, "float16", 5)) as copy, server.client() as client:
        copy.put_many([f"c{n}" for n in range(count)], np.ones((count, DIM), np.float16))
        copy.commit()
        client.config_resetstat()
        drop_generation(server.url, generation)
        assert client.dbsize() == 0
        called = client.info("commandstats")
        # In steps: no call touches much more than a thousand keys, so none holds up the others for long.
        assert called["cmdstat_unlink"]["calls"] >= count / 1000
        assert called["cmdstat_scan"]["calls"] >= count / 2000
        assert "cmdstat_keys" not in called
        assert "cmdstat_del" not in called


class Full:
    """A Redis with a live generation and a cache of texts, and no room for a second generation."""

    def __init__(self, root: Path, server: RedisProcess, candidates: int, texts: int) -> None:
        self.root, self.server, self.candidates = root, server, candidates
        self.live = built(root, server.url, candidates)
        with server.client() as client:
            seal, of = Seal(server.url), LateRows(DIM, 1)
            cache = StoredRows(client, seal, "pe:t:{model}:", of, "float16", lifetime_seconds=3600)
            cache.put_many([f"text {n}" for n in range(texts)], np.ones((texts, DIM), np.float16))

    def limit(self, more_bytes: int) -> None:
        with self.server.client() as client:
            client.config_set("maxmemory", client.info("memory")["used_memory"] + more_bytes)

    def count_texts(self) -> int:
        with self.server.client() as client:
            return sum(1 for _ in client.scan_iter("pe:t:*", count=1000))

    def assert_live_is_whole(self) -> None:
        with closing(RedisEmbeddings(self.server.url, self.live, DIM, "float16", 5)) as copy:
            assert copy.count() == self.candidates
            assert (copy.get_many([f"c{n}" for n in range(self.candidates)]).status == HIT).all()
        assert GenerationStore(self.root).current() == self.live


def test_a_new_generation_drives_out_cached_texts_but_not_the_live_generation(tmp_path, server: RedisProcess) -> None:
    full = Full(tmp_path, server, candidates=2000, texts=6000)
    full.limit(100_000)  # a copy takes about 500 kB
    new = built(tmp_path, server.url, 2000, "new ")
    assert copied(server) == {full.live: 2001, new: 2001}
    assert full.count_texts() < 5500
    full.live = new
    full.assert_live_is_whole()


def test_a_redis_too_small_for_two_generations_fails_the_build_and_keeps_the_live_one(
    tmp_path: Path, server: RedisProcess
) -> None:
    full = Full(tmp_path, server, candidates=4000, texts=50)
    full.limit(200_000)
    with pytest.raises(StoreUnavailable, match=r"^Redis is full \(maxmemory\): give it more memory, or remove old"):
        built(tmp_path, server.url, 4000, "new ")
    assert full.count_texts() == 0, "what has a lifetime goes first"
    full.assert_live_is_whole()
    assert copied(server) == {full.live: 4001}
    assert noted(tmp_path) == [full.live]
    assert GenerationStore(tmp_path).ids() == [full.live]
    assert not list((tmp_path / "generations").glob(".*"))


def test_what_a_killed_build_has_left_can_be_removed_with_its_copy_alone(tmp_path: Path, server: RedisProcess) -> None:
    store, before = GenerationStore(tmp_path), built(tmp_path, server.url)
    stale = store.new_id("cd" * 32)
    store.begin(stale)
    began = datetime.now(UTC)
    killed = store.new_id("ef" * 32)
    (store.begin(killed) / "embeddings.bin").write_bytes(b"half")
    for each in (stale, killed):
        with closing(RedisEmbeddings(server.url, each, DIM, "float16", 5)) as copy:
            copy.put_many(["a"], np.ones((1, DIM)))
        Copies(tmp_path, server.url).note(each)
    with store.building(), pytest.raises(BuildBusy):
        store.discard_killed(began, server.url)
    store.discard_killed(began, server.url)
    assert copied(server) == {before: 6, stale: 1}
    assert noted(tmp_path) == [before, stale]
    assert [path.name for path in (tmp_path / "generations").glob(".tmp-*")] == [f".tmp-{stale}"]
