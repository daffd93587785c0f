"""Answers where parts are missing: they say so, and are refused where too much is."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import EVIDENCE
from service_fakes import DIM, WordRanker, asked, numbered, pool
from shards_in_process import LocalReplica, ServedParts

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.generation.slots import slots_of
from polyrank.model.representations import LateRows
from polyrank.service.errors import DeadlineExceeded, ShardsMissing, UnknownCandidates
from polyrank.service.ranking.engine import MOST_SENT_ALONG, Pool
from polyrank.service.ranking.values import SentCandidate
from polyrank.service.scale.calls import Reply
from polyrank.service.scheduling.forwards import Forwards
from polyrank.service.scheduling.stages import Journey

RANKER = WordRanker(evidence=EVIDENCE, late=LateRows(DIM, None))
POOL = numbered(pool(200))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedParts]:
    build(RANKER, POOL, tmp_path, BuildOptions(index="exact"), parts=4)
    made = ServedParts(tmp_path, min_searched=0.5)
    yield made
    made.close()


def ids_of(served: ServedParts, at: int) -> list[str]:
    """The ids of a part's candidates."""
    slots = served.serving.generation.manifest.parts[at].slots
    of_pool = slots_of([each.id for each in POOL]).tolist()
    return [each.id for each, slot in zip(POOL, of_pool, strict=True) if slots.first <= slot < slots.end]


def lose(served: ServedParts, *parts: int) -> None:
    for at in parts:
        for replica in served.shards.of(served.serving.generation.manifest.parts[at].name):
            replica.lost = True


def test_an_answer_without_a_part_is_that_of_the_others_and_says_so(served: ServedParts) -> None:
    request = asked("w1 w2 ord-3", top_k=30)
    [full] = served.rank(request)
    gone = set(ids_of(served, 2))
    [expected] = served.rank(replace(request, exclude_ids=tuple(gone)))
    lose(served, 2)
    [found] = served.rank(request)
    assert [(place.id, place.score) for place in found.places] == [(p.id, p.score) for p in expected.places]
    assert gone & {place.id for place in full.places}
    assert (found.exact, found.degraded) == (False, ["shards_missing"])
    assert found.searched == pytest.approx(1 - len(gone) / len(POOL))
    assert full.searched is None
    assert served.value("searched_share_sum") == pytest.approx(2 + found.searched)


def test_few_candidates_come_along_with_what_is_found_and_many_are_fetched(tmp_path: Path) -> None:
    build(WordRanker(), POOL, tmp_path, BuildOptions(index="exact"), parts=4)
    served = ServedParts(tmp_path)
    [few] = served.rank(asked(top_k=MOST_SENT_ALONG // 4))
    assert [each.calls for each in served.shards.replicas.values()] == [["search"]] * 4
    [many] = served.rank(asked(top_k=MOST_SENT_ALONG // 4 + 1))
    assert {call for each in served.shards.replicas.values() for call in each.calls} == {"search", "stored"}
    assert many.places[:-1] == few.places
    served.close()


def test_too_little_of_the_pool_is_no_answer(served: ServedParts) -> None:
    lose(served, 0, 1, 3)
    with pytest.raises(ShardsMissing, match="the shards of 3 parts do not answer") as caught:
        served.rank(asked())
    assert caught.value.searched == pytest.approx(len(ids_of(served, 2)) / len(POOL))
    lose(served, 2)
    with pytest.raises(ShardsMissing):
        served.rank(asked())


def test_where_no_shard_answers_in_time_the_time_was_over(served: ServedParts) -> None:
    for replica in served.shards.replicas.values():
        replica.stalls = 10.0
    with pytest.raises(DeadlineExceeded, match="before a shard answered"):
        served.rank(asked(), seconds=2.0)


def test_a_part_that_is_lost_after_the_search_is_missing_too(served: ServedParts, monkeypatch) -> None:
    ask = LocalReplica.ask

    async def lost_after_search(self: LocalReplica, method: str, *rest: object) -> object:
        reply = await ask(self, method, *rest)
        self.lost = method == "search" and self.part in lost
        return reply

    monkeypatch.setattr(LocalReplica, "ask", lost_after_search)
    lost = {served.serving.generation.manifest.parts[at].name for at in (0,)}
    [found] = served.rank(asked(top_k=30))
    gone = ids_of(served, 0)
    assert found.searched == pytest.approx(1 - len(gone) / len(POOL))
    assert not set(gone) & {place.id for place in found.places}
    lost |= {part.name for part in served.serving.generation.manifest.parts[1:]}
    with pytest.raises(ShardsMissing):
        served.rank(asked(top_k=30))


def test_a_part_that_stalls_when_vectors_are_fetched_leaves_time_for_the_others(
    served: ServedParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, stalled = LocalReplica.ask, served.serving.generation.manifest.parts[0].name

    async def stalls(self: LocalReplica, method: str, arguments: tuple[Any, ...], left_s: float) -> Reply:
        if self.part == stalled and method == "stored" and arguments[2].with_vectors:
            await asyncio.sleep(30.0)
        return await ask(self, method, arguments, left_s)

    monkeypatch.setattr(LocalReplica, "ask", stalls)
    [found] = served.rank(asked(top_k=30), seconds=4.0)
    assert found.degraded == ["shards_missing"]
    assert found.searched == pytest.approx(1 - len(ids_of(served, 0)) / len(POOL))
    assert not set(ids_of(served, 0)) & {place.id for place in found.places}


def test_a_second_stage_without_time_leaves_time_for_the_texts(served: ServedParts, monkeypatch) -> None:
    async def never(*_: object) -> None:
        await asyncio.sleep(30.0)

    monkeypatch.setattr(Forwards, "late", never)
    [found] = served.rank(asked(top_k=30), seconds=4.0)
    assert found.degraded == ["late_skipped_deadline"]
    assert len(found.places) == 30
    assert found.searched is None


def test_candidates_by_their_ids_without_a_part(served: ServedParts) -> None:
    here, gone = ids_of(served, 0)[0], ids_of(served, 1)[0]
    sent = (SentCandidate(here, None), SentCandidate(gone, None), SentCandidate(None, "w1 w2"))
    lose(served, 1)
    [found] = served.rank(asked(candidates=sent))
    assert sorted(place.index or 0 for place in found.places) == [0, 2]
    assert (found.degraded, found.missing_ids, found.exact) == (["shards_missing"], [gone], False)
    with pytest.raises(UnknownCandidates):
        served.rank(asked(candidates=(SentCandidate("no such id", None),)))
    with pytest.raises(ShardsMissing):
        served.rank(asked(candidates=(SentCandidate(gone, None),)))
    with pytest.raises(ShardsMissing):
        served.run(lambda runtime: Pool(runtime, served.serving, Journey()).candidate(gone))
    stored = served.run(lambda runtime: Pool(runtime, served.serving, Journey()).candidate(here))
    assert stored.id == here


def test_searches_at_the_same_time_share_calls(served: ServedParts) -> None:
    for each in served.shards.replicas.values():
        each.stalls = 0.05
    served.rank(*[asked(f"w{n}") for n in range(40)])
    calls = [each.calls.count("search") for each in served.shards.replicas.values()]
    assert max(calls) <= 6, "one call for each of two, then 16 at most in each"
