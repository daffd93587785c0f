"""Updates without HTTP: what is encoded, written, served and acknowledged, here and beside other processes."""

import asyncio
import errno
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from service_fakes import WordRanker, asked, brute_force, build_store, load, only_part, pool, rank
from updated import LiveStore

from polyrank.index_builder.building.compaction import compact
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.service.changes import updating
from polyrank.service.errors import NotReady, Overloaded, RevisionNotReached
from polyrank.service.scheduling.stages import Journey


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build_store(tmp_path / "store", pool(20))
    return tmp_path / "store"


@pytest.fixture
def here(root: Path):
    opened = LiveStore(root)
    yield opened
    opened.close()


@pytest.fixture
def there(root: Path, here: LiveStore):
    """Another server on the same store."""
    opened = LiveStore(root)
    yield opened
    opened.close()


def encoded(live: LiveStore, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The texts of each call of the model from now on."""
    calls: list[list[str]] = []

    ranker = live.serving.ranker
    tokenize = ranker.tokenize_candidates

    def watched(texts: list[str]) -> tuple[list[list[int]], int]:
        calls.append(list(texts))
        return tokenize(texts)

    monkeypatch.setattr(ranker, "tokenize_candidates", watched)
    return calls


def test_what_was_served_before_stays_as_it_was(here: LiveStore) -> None:
    before = here.serving
    ranked = rank(before, asked(top_k=100))
    here.upsert(Candidate("new", "w1 w2 w3"), Candidate("c1", "w1 w2 w3"))
    here.delete("c2")
    assert [each.id for each in rank(before, asked(top_k=100)).places] == [each.id for each in ranked.places]
    assert before.ranker is here.serving.ranker, "nothing is loaded anew"
    assert only_part(before).scan is only_part(here.serving).scan


def test_a_text_that_stays_as_it_is_keeps_its_vector(here: LiveStore, monkeypatch: pytest.MonkeyPatch) -> None:
    here.upsert(Candidate("new", "w5"))
    calls = encoded(here, monkeypatch)
    old = here.texts()
    here.upsert(Candidate("c1", old["c1"], {"now": 1}), Candidate("new", "w5", {"now": 2}))
    assert calls == []
    assert [
        each.metadata
        for each in only_part(here.serving).snapshot.candidates(only_part(here.serving).snapshot.rows(["c1", "new"]))
    ] == [{"now": 1}, {"now": 2}]
    here.upsert(Candidate("c1", old["c1"]), Candidate("c2", "w39"), Candidate("x", old["c1"]), Candidate("new", "w6"))
    assert calls == [["w39", "w6"]], "the one that equals c1 has its vector"
    assert list(here.texts())[-4:] == ["c1", "c2", "x", "new"]
    ranked = rank(here.serving, asked(top_k=100))
    assert [(each.id, pytest.approx(each.vector, abs=1e-5)) for each in ranked.places] == brute_force(
        here.serving, "w1 w2 w3", 100
    )


def test_a_removed_one_that_comes_back_has_the_vector_of_an_equal_text(here: LiveStore, monkeypatch) -> None:
    text = here.texts()["c1"]
    here.delete("c1")
    calls = encoded(here, monkeypatch)
    here.upsert(Candidate("c1", text))
    assert calls == []


@pytest.mark.slow
def test_updates_from_many_threads_of_two_servers_get_a_revision_each(here: LiveStore, there: LiveStore) -> None:
    done = threading.Event()

    def follow(live: LiveStore) -> None:
        while not done.is_set():
            live.live.follow_current()
            live.live.take_over()

    def write(n: int) -> int:
        return (here, there)[n % 2].upsert(Candidate(f"n{n % 10}", f"w{n}")).revision

    with ThreadPoolExecutor(10) as threads:
        followers = [threads.submit(follow, live) for live in (here, there)]
        revisions = list(threads.map(write, range(60)))
        done.set()
        for each in followers:
            each.result()
    assert sorted(revisions) == list(range(1, 61))
    for live in (here, there):
        live.live.take_over()
    assert here.texts() == there.texts()
    again = GenerationStore(here.store.root)
    opened = again.open(again.current() or "")
    snapshot = again.snapshots([opened])[0]
    assert {each.id: each.text for each in snapshot.candidates(snapshot.matching({}))} == here.texts()


def test_an_update_meets_a_switch_by_another_process(here: LiveStore, root: Path) -> None:
    first = here.serving.generation.id
    here.upsert(Candidate("a", "w1"))
    second = build_store(root, pool(10, "d"), ranker=WordRanker(3))

    def follow() -> None:
        time.sleep(0.1)
        here.live.follow_current()

    follower = threading.Thread(target=follow)
    follower.start()
    done = here.upsert(Candidate("b", "w2"))
    follower.join()
    assert (done.generation, done.revision) == (second, 2)
    ranked = rank(here.serving, asked("w2", top_k=100))
    assert [(each.id, pytest.approx(each.vector, abs=1e-5)) for each in ranked.places] == brute_force(
        here.serving, "w2", 100
    ), "its vector is that of the model that is served now"
    here.live.rollback()
    assert here.serving.generation.id == first
    assert "b" not in here.texts()
    assert here.upsert(Candidate("c", "w3")).revision == 3


def test_what_was_encoded_is_kept_while_a_switch_is_waited_for(here: LiveStore, root: Path, monkeypatch) -> None:
    calls = encoded(here, monkeypatch)
    ranker, switched = here.serving.ranker, list[str]()
    watched = ranker.tokenize_candidates

    def switching(texts: list[str]) -> tuple[list[list[int]], int]:
        if not switched:  # another process switches after this one has looked
            switched.append(build_store(root, pool(10, "d")))
            follower.start()
        return watched(texts)

    follower = threading.Timer(0.1, here.live.follow_current)
    monkeypatch.setattr(ranker, "tokenize_candidates", switching)
    done = here.upsert(Candidate("a", "w1"))
    follower.join()
    assert ([done.generation], done.revision, calls) == (switched, 1, [["w1"]])
    assert "a" in here.texts()


@pytest.fixture
def collected(root: Path, here: LiveStore):
    """Another server, after the generation that is served here was compacted elsewhere and collected with its log."""
    before = here.serving.generation.id
    second = build_store(root, pool(20))
    here.live.follow_current()
    here.upsert(Candidate("a", "w1"))
    compact(root)
    assert here.store.gc(keep=2) == [second]
    assert here.store.ids()[0] == before
    assert not (root / "log" / f"{second}.log").exists()
    opened = LiveStore(root)
    yield opened
    opened.close()


def test_an_update_reaches_the_successor_of_what_was_collected(here: LiveStore, collected: LiveStore) -> None:
    follower = threading.Timer(0.1, here.live.follow_current)
    follower.start()
    done = here.upsert(Candidate("b", "w2"))
    follower.join()
    assert (done.generation, done.revision) == (collected.serving.generation.id, 2)
    assert list(here.texts())[-2:] == ["a", "b"]


def test_a_revision_of_the_successor_of_what_was_collected_is_waited_for(here: LiveStore, collected: LiveStore) -> None:
    assert collected.upsert(Candidate("b", "w2")).revision == 2
    here.live.take_over()
    assert (here.serving.snapshot.revision, here.live.refused) == (1, {}), "it is answered from until the switch"
    with pytest.raises(RevisionNotReached):
        asyncio.run(here.updating.reached(2, Journey(time.monotonic() + 0.05)))
    follower = threading.Timer(0.1, here.live.follow_current)
    follower.start()
    assert asyncio.run(here.updating.reached(2, Journey(time.monotonic() + 60))).snapshot.revision == 2
    follower.join()


def test_updates_are_taken_over_while_a_switch_is_under_way(root: Path, there: LiveStore) -> None:
    loading, go_on = threading.Event(), threading.Event()
    wanted = build_store(root, pool(10, "d"), ranker=WordRanker(3), activate=False)

    def slow(path: str) -> object:
        if wanted in path:
            loading.set()
            assert go_on.wait(60)
        return load(path)

    with closing(LiveStore(root, slow)) as here:
        with ThreadPoolExecutor(1) as threads:
            switch = threads.submit(here.live.activate, wanted)
            try:
                assert loading.wait(60)
                assert there.upsert(Candidate("a", "w1")).revision == 1
                here.live.take_over()
                assert list(here.texts())[-1] == "a"
                assert here.upsert(Candidate("b", "w2")).revision == 2
                assert asyncio.run(here.updating.reached(2, Journey(time.monotonic()))).generation.id != wanted
            finally:
                go_on.set()
            assert switch.result().generation.id == wanted
        assert list(here.texts())[-2:] == ["a", "b"]


def test_only_so_many_updates_wait(here: LiveStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updating, "MOST_WAITING", 2)

    async def three() -> list[object]:
        changes = [asyncio.create_task(here.updating.delete([f"c{n}"])) for n in range(3)]
        await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
        held.close()
        return await asyncio.gather(*changes, return_exceptions=True)

    with ExitStack() as held:
        held.enter_context(GenerationStore(here.store.root).updates.writing())
        told = asyncio.run(three())
    assert sum(isinstance(each, Overloaded) for each in told) == 1
    assert here.serving.snapshot.revision == 2


def test_what_is_served_in_the_active_one_s_place_is_not_updated(root: Path) -> None:
    bad = build_store(root, pool(10, "d"))
    path = root / "generations" / bad / "embeddings.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with closing(LiveStore(root)) as live:
        assert live.serving.generation.id != bad
        with pytest.raises(NotReady, match=bad):
            live.upsert(Candidate("a", "w1"))
        with pytest.raises(NotReady, match=bad):
            live.delete("c1")
        assert live.serving.snapshot.revision == 0


def test_nothing_served_is_not_ready(tmp_path: Path) -> None:
    live = LiveStore(tmp_path / "new")
    with pytest.raises(NotReady):
        live.upsert(Candidate("a", "w1"))
    live.close()


async def test_a_client_that_hung_up_has_changed_nothing(here: LiveStore) -> None:
    turn, begun = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert turn.wait(10)

    holding = [asyncio.wrap_future(here.runtime.candidates.submit(hold)) for _ in range(4)]
    await asyncio.to_thread(begun.wait, 10)
    writing = asyncio.create_task(here.updating.upsert([Candidate("a", "w1")]))
    await asyncio.sleep(0.02)
    writing.cancel()
    turn.set()
    await asyncio.gather(*holding)
    with pytest.raises(asyncio.CancelledError):
        await writing
    here.live.take_over()
    assert "a" not in here.texts()
    assert here.serving.snapshot.revision == 0


def test_what_the_disk_does_not_confirm_is_not_acknowledged_and_may_turn_up(here: LiveStore, monkeypatch) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, "not confirmed")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="not confirmed"):
            here.upsert(Candidate("a", "w1"))
    here.live.take_over()
    assert "a" in here.texts()
    assert here.upsert(Candidate("b", "w1")).revision == 2


def test_closing_finishes_what_was_begun(root: Path, monkeypatch) -> None:
    live = LiveStore(root)
    fdatasync, began = os.fdatasync, threading.Event()

    def slow(descriptor: int) -> None:
        began.set()
        time.sleep(0.1)
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(lambda: asyncio.run(live.updating.upsert([Candidate("a", "w1")])))
        began.wait()
        live.updating.close()
        assert writing.result().revision == 1
    live.close()
