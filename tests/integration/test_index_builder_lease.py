"""One builder at a time over several hosts, by a real Redis; and none that was overtaken publishes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from fakes import HashEncoder, assert_whole, pool
from leased_builder import COUNT, LEASE_SECONDS, lock_of_another_host
from redis_process import RedisProcess, vector_keys
from waiting import until

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.errors import BuildBusy, BuildError, LeaseLost, StoreUnavailable
from polyrank.index_builder.store import locks, switch
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.locks import Lease, leased

REPOSITORY = Path(__file__).parents[2]
Take = Callable[[str], Lease]


@pytest.fixture
def take(tmp_path: Path, redis_tcp_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Take]:
    """Takes leases of one store for builders on machines of any name."""
    taken = []

    def taking(machine: str) -> Lease:
        monkeypatch.setattr(locks, "_machine", lambda: machine)
        taken.append(Lease(tmp_path, redis_tcp_url))
        return taken[-1]

    yield taking
    for each in taken:
        each.release()


@pytest.fixture
def client(redis_tcp_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_tcp_url) as client:
        yield client


def lease_key(root: Path) -> str:
    return f"pe:{{{(root / 'ID').read_text().strip()}}}:lease"


def test_one_machine_at_a_time(take: Take, tmp_path: Path, client: Any) -> None:
    first = take("a")
    assert 29_000 < client.pttl(lease_key(tmp_path)) <= 30_000
    with pytest.raises(BuildBusy, match="another machine, or ended there without a word less than 30 s ago"):
        take("b")
    first.check()
    first.release()
    assert not client.exists(lease_key(tmp_path))
    assert take("b").number == first.number + 1
    assert (tmp_path / "FENCE").read_text() == f"{first.number + 1}\n"


def test_who_has_the_lock_of_the_machine_needs_not_wait_for_a_dead_builder_of_it(take: Take) -> None:
    first, second = take("a"), take("a")
    second.check()
    with pytest.raises(LeaseLost):
        first.check()


def test_a_lease_is_renewed_until_it_is_released(take: Take, tmp_path: Path, client: Any, monkeypatch) -> None:
    monkeypatch.setattr(locks, "LEASE_SECONDS", 5.0)  # a busy machine may stand still for some of them
    monkeypatch.setattr(locks, "RENEW_SECONDS", 0.05)
    held = take("a")
    for _ in range(3):
        time.sleep(0.2)
        until(lambda: client.pttl(lease_key(tmp_path)) > 4850)
    held.release()
    time.sleep(0.1)
    assert not client.exists(lease_key(tmp_path))


@pytest.mark.parametrize("loss", ["lease", "everything"])
def test_a_lease_that_redis_lost_goes_on_as_long_as_nobody_took_another(
    take: Take, tmp_path: Path, client: Any, loss: str
) -> None:
    first = take("a")
    client.delete(lease_key(tmp_path)) if loss == "lease" else client.flushall()
    first.check()
    with pytest.raises(BuildBusy):
        take("b")
    client.delete(lease_key(tmp_path)) if loss == "lease" else client.flushall()
    second = take("b")
    assert second.number == first.number + 1, "also where Redis does not know the last one"
    for _ in range(2):
        with pytest.raises(LeaseLost, match="has taken over: this one was paused or cut off"):
            first.check()
        second.release()  # the lease is free, and yet not the first one's any more


def test_the_release_of_a_lost_lease_leaves_the_next_one_alone(take: Take, tmp_path: Path, client: Any) -> None:
    first = take("a")
    client.delete(lease_key(tmp_path))
    second = take("b")
    first.release()
    second.check()
    assert client.exists(lease_key(tmp_path))


def test_the_store_has_the_last_word_where_redis_is_silent(tmp_path: Path, redis_process: RedisProcess) -> None:
    held = Lease(tmp_path, redis_process.url)
    redis_process.kill()
    held.check()
    (tmp_path / "FENCE").write_text(f"{held.number + 1}\n")
    with pytest.raises(LeaseLost):
        held.check()
    held.release()
    with pytest.raises(StoreUnavailable):
        Lease(tmp_path, redis_process.url)


@pytest.mark.parametrize("content", ["?", "", "-3", "1e3", str(2**53), "9" * 5000])
def test_a_damaged_fence_is_told(take: Take, tmp_path: Path, content: str) -> None:
    (tmp_path / "FENCE").write_text(content)
    with pytest.raises(BuildError, match=r"FENCE is damaged; remove it"):
        take("a")


@pytest.mark.parametrize(
    "content", ["garbage", "", "-3", "1e3", "nan", "0x10", str(2**53), "9" * 15, "9" * 5000, ["a", "list"]]
)
def test_a_damaged_fence_in_redis_is_told_with_how_to_reset_it(
    take: Take, tmp_path: Path, client: Any, content: str | list[str]
) -> None:
    before = take("a")
    before.release()
    fence = lease_key(tmp_path).replace(":lease", ":fence")
    if isinstance(content, list):
        client.delete(fence)
        client.rpush(fence, *content)
    else:
        client.set(fence, content)
    with pytest.raises(BuildError) as refused:
        take("a")
    message = str(refused.value)
    assert (len(message.splitlines()), len(message) < 300) == (1, True)
    command = message.split("redis-cli ")[1]
    client.execute_command(*command.replace("'", "").split())
    assert take("a").number == before.number + 1


def test_stores_have_leases_of_their_own(tmp_path: Path, redis_tcp_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_machine", lambda: os.urandom(4).hex())
    for name in "ab":
        (tmp_path / name).mkdir()
    with leased(tmp_path / "a", redis_tcp_url) as one, leased(tmp_path / "b", redis_tcp_url) as other:
        assert one is not None
        assert other is not None
        assert (tmp_path / "a" / "ID").read_text() != (tmp_path / "b" / "ID").read_text()


def test_a_store_has_one_name_whoever_asks_first(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as threads:
        assert len(set(threads.map(lambda _: locks._identity(tmp_path), range(64)))) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["ID"]


def test_who_is_overtaken_hears_that_and_not_what_came_of_it(take: Take, tmp_path: Path, redis_tcp_url: str) -> None:
    def overtaken() -> None:
        with leased(tmp_path, redis_tcp_url):
            take("a")  # the same machine: it takes over
            raise FileNotFoundError("embeddings.bin")

    take("a").release()
    with pytest.raises(LeaseLost) as caught:
        overtaken()
    assert isinstance(caught.value.__cause__, FileNotFoundError)


class Paused:
    """A builder in a process of its own that has stopped before a step."""

    def __init__(self, root: Path, url: str, step: str) -> None:
        environment = {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}"}
        command = [sys.executable, str(REPOSITORY / "tests" / "leased_builder.py"), str(root), url, step]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), self._process.communicate()

    def resume(self) -> tuple[int, str]:
        self._process.send_signal(signal.SIGCONT)
        _, errors = self._process.communicate(timeout=30)
        return self._process.returncode, errors


@contextmanager
def on_another_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(switch, "locked", lock_of_another_host)
        patched.setattr(locks, "try_locked", lock_of_another_host)
        patched.setattr(locks, "_machine", lambda: "this test")
        yield


def successor(root: Path, url: str, before_publishing: Callable[[], None] = lambda: None) -> str:
    def progress(stage: str, _done: int, _total: int | None) -> None:
        if stage == "rename":
            before_publishing()

    return build(
        HashEncoder(), pool(COUNT, "next-"), root, BuildOptions(index="flat", redis_url=url), progress=progress
    ).generation


def assert_alone(root: Path, client: Any, generation: str) -> None:
    """The store and Redis hold the generation, whole, and nothing of any other."""
    store = GenerationStore(root)
    assert store.ids() == [generation]
    assert store.current() == generation
    assert_whole(store.open(generation), HashEncoder(), pool(COUNT, "next-"))
    assert sorted(path.name for path in (root / "generations").iterdir()) == [generation]
    assert [path.name for path in (root / "copies").iterdir()] == [generation]
    names = ["meta", *(f"c:c{n}" for n in range(COUNT))]
    assert vector_keys(client) == sorted(f"pe:{{{generation}}}:{name}" for name in names)


@pytest.mark.parametrize("step", ["read", "encode", "redis", "rename"])
def test_a_builder_paused_beyond_its_lease_does_not_publish_over_the_next_one(
    tmp_path: Path, redis_tcp_url: str, client: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    paused = Paused(tmp_path, redis_tcp_url, step)
    with on_another_host(monkeypatch):
        with pytest.raises(BuildBusy):
            successor(tmp_path, redis_tcp_url)
        time.sleep(LEASE_SECONDS)
        built = successor(tmp_path, redis_tcp_url)
    status, errors = paused.resume()
    assert (status, errors.count("\n")) == (1, 1), errors
    assert "has taken over: this one was paused" in errors
    assert_alone(tmp_path, client, built)


def test_a_builder_that_was_overtaken_does_not_publish_before_the_next_one_either(
    tmp_path: Path, redis_tcp_url: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = Paused(tmp_path, redis_tcp_url, "rename")
    time.sleep(LEASE_SECONDS)
    ended: list[tuple[int, str]] = []
    with on_another_host(monkeypatch):
        built = successor(tmp_path, redis_tcp_url, lambda: ended.append(paused.resume()))
    assert ended[0][0] == 1
    assert "has taken over" in ended[0][1]
    assert_alone(tmp_path, client, built)


def test_a_paused_builder_does_not_activate_over_the_next_one(tmp_path: Path, redis_tcp_url: str, monkeypatch) -> None:
    paused = Paused(tmp_path, redis_tcp_url, "CURRENT")
    time.sleep(LEASE_SECONDS)
    with on_another_host(monkeypatch):
        built = successor(tmp_path, redis_tcp_url)
    status, errors = paused.resume()
    assert status == 1
    assert "what it made is not active" in errors
    assert GenerationStore(tmp_path).current() == built


def test_a_builder_without_redis_at_its_end_is_stopped_by_the_store_itself(
    tmp_path: Path, redis_process: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = Paused(tmp_path, redis_process.url, "rename")
    time.sleep(LEASE_SECONDS)
    with on_another_host(monkeypatch):
        built = successor(tmp_path, redis_process.url)
    redis_process.kill()
    status, errors = paused.resume()
    assert status == 1
    assert "has taken over" in errors
    assert GenerationStore(tmp_path).ids() == [built]


def test_a_pause_that_nobody_used_is_forgiven(tmp_path: Path, redis_tcp_url: str) -> None:
    paused = Paused(tmp_path, redis_tcp_url, "rename")
    time.sleep(2 * LEASE_SECONDS)
    assert paused.resume() == (0, "")
    store = GenerationStore(tmp_path)
    assert store.ids() == [store.current()]


def test_what_an_overtaken_builder_finished_is_neither_listed_nor_activated(take: Take, tmp_path: Path) -> None:
    earlier = build(HashEncoder(), pool(2), tmp_path, BuildOptions(activate=False)).generation
    store, held = GenerationStore(tmp_path), take("a")
    finished = store.begin(store.new_id("ab" * 32))
    (tmp_path / "FENCE").write_text(f"{held.number + 1}\n")  # where the lease in Redis is still this builder's
    with pytest.raises(LeaseLost):
        store.publish(finished, held)
    with pytest.raises(LeaseLost):
        store.make_active(store.manifest(earlier), lease=held)
    assert store.ids() == [earlier]
    assert store.current() is None
    assert finished.exists()
