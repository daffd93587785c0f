"""Which set is served: the start, switches, what is refused, and shards that lose what they hold."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from service_fakes import WordRanker, asked, pool, ranking
from shards_in_process import ServedParts, until

from polyrank.index_builder.building.compaction import move
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.errors import GenerationCorrupt, GenerationNotFound, StoreBusy
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.errors import Shortage
from polyrank.service.errors import NotReady
from polyrank.service.ranking.values import Ranked
from polyrank.service.scale import shard_holder
from polyrank.service.scale.calls import Holding


def cut(root: Path, prefix: str = "c", shards: int = 3, activate: bool = True) -> Manifest:
    options = BuildOptions(index="exact", activate=activate)
    return build(WordRanker(), pool(60, prefix), root, options, parts=shards).manifest


def damage(root: Path, made: Manifest, at: int) -> None:
    path = GenerationStore(root).path(made.id) / made.directory(at) / "embeddings.bin"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def held(served: ServedParts) -> set[str]:
    """The generations of which any shard holds a part."""
    return {holding.generation for each in served.shards.replicas.values() for holding in each.body.held()}


def prefix(found: Ranked) -> str:
    """The letter that all ids of an answer begin with."""
    [only] = {str(place.id)[0] for place in found.places}
    return only


@pytest.fixture
def first(tmp_path: Path) -> Manifest:
    return cut(tmp_path)


@pytest.fixture
def served(tmp_path: Path, first: Manifest) -> Iterator[ServedParts]:
    made = ServedParts(tmp_path, replicas=2)
    yield made
    made.close()
    assert made.shards.replicas == {}


def test_a_store_without_a_generation_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="the store holds no generation; run polyrank build"):
        ServedParts(tmp_path).live.require()
    only = cut(tmp_path, activate=False)
    served = ServedParts(tmp_path)
    with pytest.raises(NotReady, match="polyrank store activate"):
        served.live.require()
    served.store.activate(only.id)
    served.live.follow_current()
    assert served.serving.generation.manifest == only
    served.close()


def test_another_generation_is_prepared_beside_the_first_which_goes_later(
    served: ServedParts, first: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_holder, "SPARE_SECONDS", -10.0)  # as long as a request may take here
    second = cut(tmp_path, "n", activate=False)
    before = served.serving
    served.live.activate(second.id)
    assert served.store.current() == second.id
    assert (before.generation.manifest, served.serving.generation.manifest) == (first, second)
    assert held(served) == {first.id, second.id}
    served.on_shards.look()
    assert held(served) == {second.id}
    assert served.live.rollback().generation.manifest == first
    assert served.store.current() == first.id
    assert served.value("index_switches_total", result="ok") == 2
    with pytest.raises(GenerationNotFound, match="before this one"):
        served.live.rollback()


def test_a_request_ends_on_the_generation_that_it_began_with(served: ServedParts, tmp_path: Path) -> None:
    before = served.serving
    cut(tmp_path, "n")
    served.live.follow_current()
    old, new = served.run(lambda runtime: ranking(runtime, before, asked())), *served.rank(asked())
    assert (prefix(old), prefix(new)) == ("c", "n")


def test_no_answer_mixes_generations_while_they_change(tmp_path: Path) -> None:
    generations = [cut(tmp_path, name, shards).id for name, shards in (("a", 2), ("b", 3), ("c", 2))]
    served, ends = ServedParts(tmp_path), threading.Event()

    def switch() -> None:
        for at in range(12):
            served.live.activate(generations[at % 3])
        ends.set()

    switching_ = threading.Thread(target=switch)
    switching_.start()
    seen = set()
    while not ends.is_set():
        for found in served.rank(*[asked(text, top_k=20) for text in ("w1", "w2 w3", "w4")]):
            assert found.degraded == []
            seen.add(prefix(found))
    switching_.join()
    served.close()
    assert len(seen) > 1


def test_a_generation_with_a_damaged_part_never_becomes_the_active_one(
    served: ServedParts, first: Manifest, tmp_path: Path
) -> None:
    second = cut(tmp_path, "n", activate=False)
    damage(tmp_path, second, 1)
    with pytest.raises(GenerationCorrupt, match=second.parts[1].name):
        served.live.activate(second.id)
    assert (served.store.current(), served.serving.generation.manifest) == (first.id, first)
    assert held(served) == {first.id}
    assert second.id in served.live.refused
    assert served.value("index_switches_total", result="refused") == 1
    with pytest.raises(GenerationNotFound):
        served.live.activate("20260101T000000000000-00000000")


def test_a_switch_back_that_fails_leaves_requests_the_generation_that_they_began_with(
    served: ServedParts, first: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, second = served.serving, cut(tmp_path, "n", activate=False)
    served.live.activate(second.id)

    def busy(*_: object) -> None:
        raise StoreBusy(tmp_path / "pointer.lock", "another process")

    monkeypatch.setattr(served.store, "make_active", busy)
    with pytest.raises(StoreBusy):
        served.live.activate(first.id)
    found = served.run(lambda runtime: ranking(runtime, before, asked()))
    assert (prefix(found), found.degraded) == ("c", [])


def test_a_generation_that_is_served_again_is_not_dropped(
    served: ServedParts, first: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_holder, "SPARE_SECONDS", -10.0)
    second, dropped = cut(tmp_path, "n", activate=False), list[str]()
    served.live.activate(second.id)
    served.live.rollback()
    monkeypatch.setattr(served.replicas, "drop", lambda generation, _: dropped.append(generation))
    served.on_shards.look()
    assert dropped == [second.id]


def test_a_generation_that_another_process_was_faster_to_leave_is_dropped(
    served: ServedParts, first: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_holder, "SPARE_SECONDS", -10.0)
    second = cut(tmp_path, "n", activate=False)
    served.live.activate(second.id)
    served.on_shards.look()
    histories = [[first.id], []]
    monkeypatch.setattr(served.store, "history", lambda: histories.pop(0))
    monkeypatch.setattr(served.store, "go_back", lambda *_: False)
    with pytest.raises(GenerationNotFound, match="before this one"):
        served.live.rollback()
    assert held(served) == {second.id}


def test_a_shard_that_could_not_be_told_to_drop_a_generation_is_told_again(
    served: ServedParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_holder, "SPARE_SECONDS", -10.0)
    second = cut(tmp_path, "n", activate=False)
    served.live.activate(second.id)
    [one, _] = served.shards.of(second.parts[0].name)
    one.lost = True
    served.on_shards.look()
    one.lost = False
    served.on_shards.look()
    assert held(served) == {second.id}


def test_what_another_process_activates_is_followed_unless_it_is_damaged(
    served: ServedParts, first: Manifest, tmp_path: Path
) -> None:
    second = cut(tmp_path, "n")
    damage(tmp_path, second, 0)
    for _ in range(2):
        served.live.follow_current()
        assert served.serving.generation.manifest == first
    assert served.value("index_switches_total", result="refused") == 1, "it is tried once"
    third = cut(tmp_path, "m")
    served.live.follow_current()
    assert served.serving.generation.manifest == third


def test_shards_that_are_gone_for_a_while_are_no_fault_of_the_generation(
    served: ServedParts, first: Manifest, tmp_path: Path
) -> None:
    second = cut(tmp_path, "n")
    lost = served.shards.of(second.parts[0].name)
    for each in lost:
        each.lost = True
    for _ in range(2):
        with pytest.raises(Shortage, match=second.parts[0].name):
            served.live.follow_current()
    assert served.serving.generation.manifest == first
    lost[0].lost = False
    served.live.follow_current()
    assert served.serving.generation.manifest == second, "one replica of each part is enough"
    assert served.live.refused == {}


def test_a_store_that_is_not_on_the_shards_machine_may_be_mounted_later(tmp_path: Path) -> None:
    made = cut(tmp_path / "store")
    served = ServedParts(tmp_path / "store", shards_root=tmp_path / "elsewhere")
    with pytest.raises(NotReady, match="mount the store"):
        served.live.require()
    shutil.copytree(tmp_path / "store", tmp_path / "elsewhere")
    served.live.follow_current()
    assert served.serving.generation.manifest == made
    served.close()


def test_a_shard_that_was_restarted_is_given_what_it_is_to_hold(served: ServedParts, first: Manifest) -> None:
    part = first.parts[1].name
    [one, other] = served.shards.of(part)
    one.restart()
    other.lost = True
    [partial] = served.rank(asked())
    served.on_shards.look()
    until(lambda: one.body.held() == [Holding(first.id, part)])
    until(lambda: served.value("shard_struck", part=part) == 1)  # the other one
    [found] = served.rank(asked())
    assert partial.degraded == ["shards_missing"]
    assert found.degraded == [], "it is asked again at once"
    served.on_shards.look()
    assert served.value("shard_ready", part=part) == 1


def test_a_shard_that_is_restarted_during_a_switch_is_given_what_is_served_and_the_next_generation_stays(
    served: ServedParts, first: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, make_active = cut(tmp_path, "n", activate=False), served.store.make_active
    [one, other] = served.shards.of(first.parts[0].name)

    def restarted_before(*arguments: Any) -> None:
        one.restart()
        served.on_shards.look()
        until(lambda: one.body.held() == [Holding(first.id, one.part)])
        assert {each.generation for each in other.body.held()} == {first.id, second.id}
        make_active(*arguments)

    monkeypatch.setattr(served.store, "make_active", restarted_before)
    assert served.live.activate(second.id).generation.manifest == second
    assert prefix(*served.rank(asked())) == "n"
    served.on_shards.look()
    until(lambda: Holding(second.id, one.part) in one.body.held())


def test_a_shard_that_is_given_the_next_generation_is_asked_again_at_once(
    served: ServedParts, first: Manifest, tmp_path: Path
) -> None:
    """It was struck while it lacked the one before, and may be the only one that is left."""
    second = cut(tmp_path, "n", activate=False)
    part = first.parts[1].name
    one, other = served.shards.of(part)
    one.restart()
    until(lambda: prefix(*served.rank(asked())) == "c" and served.value("shard_struck", part=part) == 1)
    served.live.activate(second.id)
    assert served.value("shard_struck", part=part) == 0
    other.lost = True
    [found] = served.rank(asked())
    assert (prefix(found), found.degraded) == ("n", [])


def test_why_a_restarted_shard_cannot_load_its_part_is_logged(
    served: ServedParts, first: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(tmp_path, first, 1)
    [one, _] = served.shards.of(first.parts[1].name)
    one.restart()
    served.on_shards.look()
    until(lambda: "a shard could not prepare a generation" in caplog.messages)
    [told] = [each for each in caplog.records if each.message == "a shard could not prepare a generation"]
    assert told.fields["replica"] == one.name
    assert "embeddings.bin" in told.fields["why"]
    assert served.value("shard_ready", part=first.parts[1].name) == 1


def test_shards_of_parts_that_no_generation_has_end(
    served: ServedParts, first: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_holder, "SPARE_SECONDS", -10.0)
    move(tmp_path, 2)
    served.live.follow_current()
    assert len(served.shards.replicas) == 10
    served.on_shards.look()
    assert len(served.shards.replicas) == 4
    ready = {part.name: served.value("shard_ready", part=part.name) for part in first.parts}
    assert ready == {"0000-1365": None, "1365-2730": None, "2730-4096": None}, "they are shown no more"
    assert prefix(*served.rank(asked())) == "c"


def test_shards_of_a_generation_that_was_collected_stay_as_long_as_requests_may_need_them(
    served: ServedParts, first: Manifest, tmp_path: Path
) -> None:
    before = served.serving
    move(tmp_path, 2)
    served.live.follow_current()
    damaged = cut(tmp_path, "n", shards=2, activate=False)
    damage(tmp_path, damaged, 0)
    assert served.store.gc(keep=1) == [first.id]
    with pytest.raises(GenerationCorrupt):
        served.live.activate(damaged.id)
    found = served.run(lambda runtime: ranking(runtime, before, asked()))
    assert (prefix(found), found.degraded) == ("c", [])
