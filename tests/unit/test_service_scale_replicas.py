"""Replicas that lose their part, cannot load it, or say nothing any more."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from service_fakes import WordRanker, pool
from shards_in_process import LocalReplica, LocalShards, until

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.model.errors import Shortage
from polyrank.service.observe.metrics import Metrics
from polyrank.service.scale import replicas
from polyrank.service.scale.calls import Holding, Replica, ReplicaLost, Reply
from polyrank.service.scale.replica_choice import ReplicaChoice
from polyrank.service.scale.replicas import LOAD_AGAIN_SECONDS, LONGEST_PAUSE_SECONDS, SILENT_SECONDS, Replicas


class Kept:
    """Two replicas of each of two parts, and the time, which only the test moves."""

    def __init__(self, root: Path) -> None:
        self.made: Manifest = build(WordRanker(), pool(60), root, BuildOptions(index="exact"), parts=2).manifest
        self.wanted = [Holding(self.made.id, part.name) for part in self.made.parts]
        self.shards, self.metrics, self.now = LocalShards(root), Metrics(), 1000.0
        self.replicas = Replicas(self.shards, ReplicaChoice(self.metrics), self.metrics, 2, lambda: self.now)
        self.replicas.prepare(self.made)

    def look(self) -> None:
        self.replicas.look(self.wanted, lambda: {self.made.id})

    def passed(self, seconds: float) -> bool:
        """Let time pass."""
        self.now += seconds
        return True

    def of_first_part(self) -> list[LocalReplica]:
        return self.shards.of(self.wanted[0].part)

    def ready(self) -> float | None:
        return self.metrics.registry.get_sample_value("polyrank_shard_ready", {"part": self.wanted[0].part})


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.replicas.close()
    assert made.shards.replicas == {}


class Slow:
    """Lets the calls of a method wait until it is told to go on, and counts them."""

    def __init__(self, replica: LocalReplica, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.go_on, control = 0, threading.Event(), replica.control

        def slow(method: str, arguments: tuple[Any, ...], within_s: float) -> Any:
            if method == "prepare":
                self.calls += 1
                assert self.go_on.wait(30)
            return control(method, arguments, within_s)

        monkeypatch.setattr(replica, "control", slow)


def test_nothing_waits_for_a_replica_that_loads_what_it_lost(kept: Kept, tmp_path: Path, monkeypatch) -> None:
    [one, other] = kept.of_first_part()
    slow = Slow(one, monkeypatch)
    one.restart()
    for _ in range(3):
        kept.look()
    assert (kept.ready(), slow.calls) == (1, 1)
    second = build(WordRanker(), pool(60, "n"), tmp_path, BuildOptions(index="exact"), parts=2).manifest
    replies = kept.replicas.prepare(second)
    assert [len(replies[part.name]) for part in second.parts] == [1, 2], "who loads is left out"
    assert {each.generation for each in other.body.held()} == {kept.made.id, second.id}
    slow.go_on.set()
    until(lambda: one.body.held() == [kept.wanted[0]])
    kept.look()
    assert kept.ready() == 2


def test_where_all_replicas_of_a_part_load_all_are_asked(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = [Slow(each, monkeypatch) for each in kept.of_first_part()]
    for each in kept.of_first_part():
        each.restart()
    kept.look()
    with ThreadPoolExecutor(1) as thread:
        replies = thread.submit(kept.replicas.prepare, kept.made)
        until(lambda: [one.calls for one in slow] == [2, 2])
        for one in slow:
            one.go_on.set()
    assert [reply.error for reply in replies.result()[kept.wanted[0].part]] == [None, None]


def test_no_switch_waits_for_a_replica_that_stays_silent(kept: Kept, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(replicas, "LOOK_WITHIN_SECONDS", 0.01)
    [one, _] = kept.of_first_part()
    slow = Slow(one, monkeypatch)
    second = build(WordRanker(), pool(60, "n"), tmp_path, BuildOptions(index="exact"), parts=2).manifest
    with ThreadPoolExecutor(1) as thread:
        replies = thread.submit(kept.replicas.prepare, second)
        until(lambda: slow.calls == 1)
        time.sleep(0.1)
        assert not replies.done(), "it answers what it holds, so it is waited for"
        monkeypatch.setattr(one, "control", lost)
        until(lambda: kept.passed(SILENT_SECONDS) and replies.done())
    assert [reply.kind for reply in replies.result()[second.parts[0].name]] == ["lost", ""]
    slow.go_on.set()


def lost(method: str, arguments: tuple[Any, ...], within_s: float) -> Reply:
    raise ReplicaLost("gone")


def test_a_replica_that_cannot_load_is_told_ever_less_often(kept: Kept, tmp_path: Path, monkeypatch) -> None:
    [one, _] = kept.of_first_part()
    slow = Slow(one, monkeypatch)
    slow.go_on.set()
    one.restart()
    (tmp_path / "generations").rename(tmp_path / "elsewhere")
    pauses, told = [], 0
    for _ in range(9):
        began = kept.now
        while slow.calls == told:
            kept.look()
            until(lambda: not any(each.loads for each in kept.replicas._parts[kept.wanted[0].part]))
            kept.now += LOAD_AGAIN_SECONDS
        told = slow.calls
        pauses.append(kept.now - began)
    assert pauses[1:6] == [1, 2, 4, 8, 16], "the first one came at once"
    assert max(pauses) == LONGEST_PAUSE_SECONDS
    (tmp_path / "elsewhere").rename(tmp_path / "generations")
    kept.now += LONGEST_PAUSE_SECONDS
    kept.look()
    until(lambda: one.body.held() == [kept.wanted[0]])


def test_another_replica_takes_the_place_of_a_silent_one(kept: Kept) -> None:
    [silent, other] = kept.of_first_part()
    silent.lost = True
    kept.look()
    kept.now += SILENT_SECONDS - 1
    kept.look()
    assert kept.of_first_part() == [silent, other]
    kept.now += 1
    kept.look()
    until(lambda: silent not in kept.of_first_part())
    [new, _] = kept.of_first_part()
    until(lambda: new.body.held() == [kept.wanted[0]])
    kept.look()
    assert kept.ready() == 2


def test_who_takes_the_place_of_a_silent_one_may_be_silent_for_longer(kept: Kept, monkeypatch) -> None:
    [first, _] = kept.of_first_part()
    first.lost = True
    monkeypatch.setattr(LocalReplica, "control", lambda _, *rest: lost(*rest))
    kept.look()
    kept.now += SILENT_SECONDS
    kept.look()
    until(lambda: first not in kept.of_first_part())
    [second, _] = kept.of_first_part()
    kept.look()
    kept.now += 2 * SILENT_SECONDS - 1
    kept.look()
    assert kept.of_first_part()[0] is second
    until(lambda: kept.passed(1) and kept.look() is None and kept.of_first_part()[0] is not second)


def test_one_answer_ends_the_silence(kept: Kept) -> None:
    replicas = kept.of_first_part()
    for lost in (True, False, True):
        replicas[0].lost = lost
        kept.look()
        kept.now += SILENT_SECONDS - 1
    assert kept.of_first_part() == replicas


def test_where_no_other_can_be_started_the_silent_one_stays_and_may_come_back(kept: Kept, monkeypatch, caplog) -> None:
    replicas = kept.of_first_part()

    def none(part: str, number: int) -> Replica:
        raise Shortage(f"no node for {part}/{number}")

    monkeypatch.setattr(kept.shards, "start", none)
    replicas[0].lost = True
    kept.look()
    kept.now += SILENT_SECONDS
    kept.look()
    until(lambda: "no shard can be started" in caplog.messages)
    replicas[0].lost = False
    kept.look()
    assert (kept.of_first_part(), kept.ready()) == (replicas, 2)
