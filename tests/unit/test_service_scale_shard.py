"""What a shard does with searches that share a call, and with updates."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import EVIDENCE
from service_fakes import WordRanker, asked, pool, pool_query

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.generation.slots import slots_of
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.update_log import Update, UpdateLog
from polyrank.index_builder.vectors.encoder import encode_texts
from polyrank.index_builder.vectors.local import rounded_all
from polyrank.model.search.scan import product
from polyrank.model.search.scan.plain import Status
from polyrank.model.text.assembly import Conversation
from polyrank.service.ranking import retrieval
from polyrank.service.ranking.parts import Wanted
from polyrank.service.scale.calls import AskedQuery, Holding, Reply
from polyrank.service.scale.shard import Body

SECONDS = 0.03  # that a search of an index takes here


def test_searches_of_an_index_that_share_a_call_are_timed_one_by_one(tmp_path: Path, monkeypatch) -> None:
    ranker, body = WordRanker(), Body(str(tmp_path))
    made = build(ranker, pool(300), tmp_path, BuildOptions(index="flat"), parts=1).manifest
    holding = Holding(made.id, made.parts[0].name)
    body.prepare(holding)
    tokens, _ = ranker.tokenize_context(Conversation.of("w1 w2"))
    query = AskedQuery(0, pool_query(asked()), ranker.encode_contexts([tokens])[0])
    search = retrieval._indexed

    def slow(*arguments: Any) -> Any:
        time.sleep(SECONDS)
        return search(*arguments)

    monkeypatch.setattr(retrieval, "_indexed", slow)
    for found in body.search(holding, [query] * 16, [float("inf")] * 16):
        assert (found.plan, found.reduced) == ("index", False)
    # Half of the time left is enough for one search, and for no sixteen.
    [found] = body.search(holding, [query], [16 * SECONDS])
    assert not found.reduced
    last = body.search(holding, [query] * 16, [16 * SECONDS] * 16)[-1]
    assert last.reduced, "those before it have left it little time"


def test_a_scan_that_a_timing_refused_is_taken_up_without_a_restart(tmp_path: Path, monkeypatch) -> None:
    shard = Shard(tmp_path)
    before, scan = shard.best(0), shard.body._held[shard.holding].at(0).scan
    monkeypatch.setattr(scan, "status", Status("stored rows", "it was slow", is_fallback=True, is_timed=True))
    monkeypatch.setitem(product._timed_again_at, shard.ranker.dim, time.monotonic() + 60)
    assert shard.body.held() == [shard.holding]
    assert shard.body._held[shard.holding].at(0).scan is scan, "it is not timed again yet"
    monkeypatch.setitem(product._timed_again_at, shard.ranker.dim, math.inf)
    assert shard.body.held() == [shard.holding]
    assert shard.body._held[shard.holding].search_status.kind == "bytes"
    assert shard.best(0) == before
    assert shard.found(shard.update(shard.own[0]), shard.own[0]) == [shard.own[0]]


class Shard:
    """A shard that holds a part of a generation whose log is written here."""

    def __init__(self, root: Path) -> None:
        self.ranker, self.store = WordRanker(evidence=EVIDENCE), GenerationStore(root)
        made = build(self.ranker, pool(40), root, BuildOptions(index="exact"), parts=2).manifest
        self.made, self.holding = made, Holding(made.id, made.parts[0].name)
        of_pool = slots_of([f"new {n}" for n in range(40)]).tolist()
        self.own, self.others = [
            [f"new {n}" for n, slot in enumerate(of_pool) if (slot < made.parts[0].end_slot) == is_own]
            for is_own in (True, False)
        ]
        self.log = store_log(self.store, made)
        self.body = Body(str(root))
        assert self.body.call("prepare", (self.holding,)).error is None

    def update(self, *ids: str, text: str = "w1 w2", deletes: Sequence[str] = ()) -> int:
        vectors = rounded_all(encode_texts(self.ranker, [text] * len(ids)), "float16")
        self.log.catch_up()
        revision = self.log.revision + 1
        self.log.append(Update(revision, [Candidate(each, text) for each in ids], vectors, deletes))
        return revision

    def stored(self, revision: int, *ids: str, body: Body | None = None) -> Reply:
        return (body or self.body).call("stored", (self.holding, revision, Wanted(ids=ids, with_candidates=True)))

    def found(self, revision: int, *ids: str, body: Body | None = None) -> list[str]:
        """Which of the ids are there at a revision."""
        reply = self.stored(revision, *ids, body=body)
        assert reply.error is None
        return [each.id for each in reply.value.candidates]

    def best(self, revision: int, k: int = 5) -> list[tuple[int, float]]:
        """The places in the pool and the scores of the best at a revision."""
        tokens, _ = self.ranker.tokenize_context(Conversation.of("w1 w2"))
        query = AskedQuery(revision, pool_query(asked("w1 w2", top_k=k)), self.ranker.encode_contexts([tokens])[0])
        [found] = self.body.search(self.holding, [query], [float("inf")])
        return list(zip(found.order.tolist(), found.scores.tolist(), strict=True))


def store_log(store: GenerationStore, made: Manifest) -> UpdateLog:
    log = store.updates.of(made)
    log.catch_up()
    return log


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    return Shard(tmp_path)


def test_a_shard_reads_the_log_when_it_is_asked_for_a_later_revision(shard: Shard) -> None:
    one, two, *_ = shard.own
    first = shard.update(one)
    second = shard.update(two, deletes=[one])
    assert shard.found(first, one, two) == [one], "it knows of the second by now, and leaves it out"
    assert shard.found(0, one, two) == []
    assert shard.found(second, one, two) == [two]
    third = shard.update(one)
    assert shard.found(second, one, two) == [two]
    assert shard.found(third, one, two) == [one, two]


def test_what_is_of_other_parts_is_left_to_them_and_counts_in_the_order(shard: Shard) -> None:
    own, other = shard.own, shard.others
    revision = shard.update(other[0], own[0], other[1], own[1], text="w1 w2 w1 w2")
    assert shard.found(revision, own[0], other[0], other[1], own[1]) == [own[0], own[1]]
    (first, score), (second, equal) = shard.best(revision)[:2]
    assert (first, second) == (41, 43), "the whole pool has 40, and these are its 42nd and 44th"
    assert score == equal
    before = shard.best(0)
    assert all(place < 40 for place, _ in before)
    assert shard.best(shard.update(other[2], deletes=[other[0]]))[:2] == [(41, score), (43, equal)]


def test_searches_at_several_revisions_share_a_pass(shard: Shard) -> None:
    revisions = [0, shard.update(shard.own[0]), shard.update(shard.own[1]), shard.update(deletes=shard.own[:1])]
    tokens, _ = shard.ranker.tokenize_context(Conversation.of("w1 w2"))
    codes = shard.ranker.encode_contexts([tokens])[0]
    queries = [AskedQuery(revision, pool_query(asked("w1 w2", top_k=100)), codes) for revision in reversed(revisions)]
    found = shard.body.search(shard.holding, queries, [float("inf")] * 4)
    built = shard.made.parts[0].count
    assert [len(each.order) for each in found] == [built + 1, built + 2, built + 1, built]


def test_a_shard_that_does_not_see_the_update_says_so(shard: Shard) -> None:
    reply = shard.stored(1, shard.own[0])
    assert (reply.kind, reply.value) == ("behind", None)
    assert "does not see update 1" in (reply.error or "")


def test_a_shard_that_is_started_anew_has_all_that_was_acknowledged(shard: Shard, tmp_path: Path) -> None:
    revision = [shard.update(each) for each in shard.own[:5]][-1]
    again = Body(str(tmp_path))
    again.prepare(shard.holding)
    assert shard.found(revision, *shard.own[:5], body=again) == shard.own[:5]
    assert shard.found(2, *shard.own[:5], body=again) == shard.own[:2]


def test_what_is_held_is_read_ahead(shard: Shard) -> None:
    revision = shard.update(shard.own[0])
    assert shard.body.held() == [shard.holding]
    log = tmp_log(shard)
    log.unlink()
    assert shard.found(revision, shard.own[0]) == [shard.own[0]]
    assert shard.found(0, shard.own[0]) == []


def tmp_log(shard: Shard) -> Path:
    return shard.store.root / "log" / f"{shard.made.id}.log"


@pytest.mark.parametrize("torn", [1, 30])
def test_a_record_cut_short_is_not_there_until_it_is_written_again(shard: Shard, torn: int) -> None:
    first = shard.update(shard.own[0])
    whole = tmp_log(shard).read_bytes()
    shard.update(shard.own[1])
    tmp_log(shard).write_bytes(tmp_log(shard).read_bytes()[:-torn])
    shard.log = store_log(shard.store, shard.made)
    assert shard.found(first, *shard.own[:2]) == shard.own[:1]
    assert shard.stored(first + 1, shard.own[1]).kind == "behind"
    assert shard.update(shard.own[2]) == first + 1
    assert shard.found(first + 1, *shard.own[:3]) == [shard.own[0], shard.own[2]]
    assert tmp_log(shard).read_bytes().startswith(whole)


def test_damage_in_the_log_is_refused_and_what_comes_before_is_answered(shard: Shard, tmp_path: Path) -> None:
    first = shard.update(shard.own[0])
    assert shard.found(first, shard.own[0]) == [shard.own[0]]
    second = shard.update(shard.own[1])
    content = bytearray(tmp_log(shard).read_bytes())
    content[-5] ^= 1
    tmp_log(shard).write_bytes(content)
    assert shard.stored(second, shard.own[1]).kind == "refused"
    assert shard.found(first, shard.own[0]) == [shard.own[0]]
    assert shard.body.held() == [shard.holding]
    assert "is damaged" in (Body(str(tmp_path)).call("prepare", (shard.holding,)).error or "")
