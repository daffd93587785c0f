"""Updates of a pool in parts: what a server and its shards know of them, and another server on the same store."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from service_fakes import WordRanker, asked, pool
from shards_in_process import ServedParts, ServedPool

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.errors import GenerationCorrupt
from polyrank.index_builder.generation.slots import slots_of
from polyrank.index_builder.pool.rows import Candidate
from polyrank.model.errors import Shortage
from polyrank.service.changes import updating
from polyrank.service.errors import NotReady, RevisionNotReached, ShardsMissing
from polyrank.service.scale.replica_choice import STRIKE_SECONDS
from polyrank.service.scheduling.stages import Journey

POOL = pool(60)


def cut(root: Path, prefix: str = "c", activate: bool = True, parts: int = 3) -> str:
    """Build a pool, whole or into parts; returns its id."""
    options = BuildOptions(index="exact", activate=activate)
    return build(WordRanker(), pool(60, prefix), root, options, parts=parts).generation


@pytest.fixture
def root(tmp_path: Path) -> Path:
    cut(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture(params=[(1, ServedPool), (3, ServedPool), (3, ServedParts)], ids=["one", "three", "shards"])
def one(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServedPool]:
    """A server over one part or three in its process, or over three that shards hold."""
    parts, served = request.param
    cut(tmp_path / "pool", parts=parts)
    made: ServedPool = served(tmp_path / "pool")
    yield made
    made.close()


@pytest.fixture
def other(one: ServedPool) -> Iterator[ServedPool]:
    """Another server on the same store."""
    made = type(one)(one.store.root)
    yield made
    made.close()


@pytest.fixture
def here(root: Path) -> Iterator[ServedParts]:
    made = ServedParts(root)
    yield made
    made.close()


def ids(served: ServedPool, text: str = "w1 w2 w3", k: int = 100) -> list[str | None]:
    [found] = served.rank(asked(text, top_k=k))
    assert (found.degraded, found.searched) == ([], None)
    return [place.id for place in found.places]


def test_a_server_takes_over_what_another_one_wrote(one: ServedPool, other: ServedPool) -> None:
    one.upsert(Candidate("new", "w1 w2 w3"))
    before = other.serving
    assert "new" not in ids(other)
    other.live.take_over()
    assert "new" in ids(other)
    assert before.snapshot.revision == 0
    assert other.delete("new").revision == 2, "it reads before it writes"
    reached = one.updated(lambda updating: updating.reached(2, Journey(time.monotonic() + 10)))
    assert reached.snapshot.revision == 2
    assert "new" not in ids(one)
    with pytest.raises(RevisionNotReached):
        one.updated(lambda updating: updating.reached(3, Journey(time.monotonic() + 0.1)))


def test_a_text_that_stays_as_it_is_keeps_its_vector(here: ServedParts, monkeypatch: pytest.MonkeyPatch) -> None:
    here.upsert(Candidate("new", "w5"))
    calls: list[list[str]] = []
    ranker, tokenize = here.serving.ranker, here.serving.ranker.tokenize_candidates

    def watched(texts: list[str]) -> tuple[list[list[int]], int]:
        calls.append(list(texts))
        return tokenize(texts)

    monkeypatch.setattr(ranker, "tokenize_candidates", watched)
    texts = [each.text for each in POOL]
    only = next(each for each in POOL if texts.count(each.text) == 1)
    here.upsert(replace(only, metadata={"now": 1}), Candidate("new", "w5", {"now": 2}), Candidate("other", only.text))
    assert calls == []
    lost = here.serving.generation.manifest.parts[slots_of([only.id])[0] * 3 // 4096].name
    for part in {lost, here.serving.generation.manifest.parts[slots_of(["other"])[0] * 3 // 4096].name}:
        for replica in here.shards.of(part):
            replica.lost = True
    here.upsert(only)
    assert calls == [[only.text]], "it is encoded where its part does not answer"


def test_parts_whose_shards_do_not_see_an_update_are_missing_until_they_do(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(root, elsewhere)
    served = ServedParts(root, shards_root=elsewhere)
    served.upsert(Candidate("new", "w1 w2 w3"))
    with pytest.raises(ShardsMissing):
        ids(served)
    part = served.serving.generation.manifest.parts[0].name
    assert served.value("shard_calls_total", part=part, result="behind") == 1
    shutil.copytree(root / "log", elsewhere / "log", dirs_exist_ok=True)
    time.sleep(STRIKE_SECONDS)
    assert "new" in ids(served)
    served.close()


def test_what_is_searched_is_counted_with_updates(here: ServedParts) -> None:
    part = here.serving.generation.manifest.parts[1]
    of_part = [each for each in (c.id for c in POOL) if part.first_slot <= slots_of([each])[0] < part.end_slot]
    here.delete(*of_part[2:])
    for replica in here.shards.of(part.name):
        replica.lost = True
    [found] = here.rank(asked())
    assert found.searched == pytest.approx(1 - 2 / here.serving.snapshot.count)


def test_damage_in_the_log_is_told_and_what_was_served_stays(one: ServedPool, other: ServedPool) -> None:
    one.upsert(Candidate("new", "w1 w2 w3"))
    before = ids(one)
    one.upsert(Candidate("newer", "w1 w2 w3"))
    log = one.store.root / "log" / f"{one.serving.generation.manifest.id}.log"
    content = bytearray(log.read_bytes())
    whole = bytes(content)
    content[-5] ^= 1
    log.write_bytes(content)
    for _ in range(2):
        other.live.take_over()
    assert other.serving.snapshot.revision == 0
    assert "is damaged" in other.live.refused[other.serving.generation.manifest.id]
    assert "new" not in ids(other)
    with pytest.raises(GenerationCorrupt, match="is damaged"):
        other.upsert(Candidate("more", "w1"))
    log.write_bytes(whole)
    other.live.take_over()
    assert other.live.refused == {}
    assert len(ids(other)) == len(before) + 1


def test_a_switch_comes_between_an_update_and_its_writing(one: ServedPool, other: ServedPool) -> None:
    second = cut(one.store.root, "n", activate=False, parts=len(one.serving.parts))
    other.live.activate(second)
    one.live.refused = {second: "it is damaged"}
    with pytest.raises(NotReady, match="is not served here"):
        one.upsert(Candidate("new", "w1"))
    one.live.refused = {}
    one.live.follow_current()
    assert one.upsert(Candidate("new", "w1")).generation == second


@pytest.fixture
def behind(here: ServedParts, root: Path) -> tuple[ServedParts, str]:
    """A server whose shards are lost at the switch to another generation, with the id of that."""
    second = cut(root, "n")
    for replica in here.shards.replicas.values():
        replica.lost = True
    with pytest.raises(Shortage):
        here.live.follow_current()
    return here, second


def test_an_update_waits_for_shards_that_are_lost_at_a_switch(
    behind: tuple[ServedParts, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here, second = behind
    looks, right = 0, here.store.current

    def current() -> str | None:
        nonlocal looks
        looks += 1
        if looks == 5:  # it has waited for a while
            for replica in here.shards.replicas.values():
                replica.lost = False
            here.live.follow_current()
        return right()

    monkeypatch.setattr(here.store, "current", current)
    monkeypatch.setattr(updating, "SWITCHES_WITHIN_SECONDS", 60.0)
    assert here.upsert(Candidate("new", "w1")).generation == second
    assert looks > 5
    assert (here.live.refused, here.live.passing) == ({}, frozenset())
    assert "generation refused" not in caplog.text


def test_an_update_that_has_waited_says_what_to_do(behind: tuple[ServedParts, str], monkeypatch, caplog) -> None:
    here, second = behind
    monkeypatch.setattr(updating, "SWITCHES_WITHIN_SECONDS", 0.05)
    with pytest.raises(NotReady, match=f"{second} is not served yet: part .*: gone; send the update again"):
        here.upsert(Candidate("new", "w1"))
    with pytest.raises(Shortage):
        here.live.follow_current()
    records = [*caplog.get_records("setup"), *caplog.records]
    told = [each.levelname for each in records if each.message == "generation is not served yet"]
    assert told == ["WARNING"], "it is said once"


def test_an_update_waits_for_no_generation_that_is_damaged(here: ServedParts, root: Path, monkeypatch) -> None:
    monkeypatch.setattr(updating, "SWITCHES_WITHIN_SECONDS", 3600.0)
    matrix = here.store.path(cut(root, "n")) / "parts" / "0" / "embeddings.bin"
    matrix.write_bytes(matrix.read_bytes()[:-1])
    here.live.follow_current()
    with pytest.raises(NotReady, match=r"is not served here: .*embeddings.bin.*; activate another one"):
        here.upsert(Candidate("new", "w1"))
