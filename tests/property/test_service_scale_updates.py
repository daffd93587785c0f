"""A pool in parts that is updated answers as the same pool in one piece with the same updates, to the bit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from cases import cases
from fakes import EVIDENCE
from hypothesis import given, settings
from hypothesis import strategies as st
from service_fakes import DIM, WordRanker, asked, build_store, numbered, pool, rank, ranking
from shards_in_process import ServedParts
from updated import LiveStore

from polyrank.index_builder.building.compaction import compact, move
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.pool.rows import Candidate
from polyrank.model.representations import LateRows
from polyrank.model.text.assembly import Conversation
from polyrank.service.ranking.values import Grouping, Ranked, RankRequest, SentCandidate

KINDS = {
    "vectors": WordRanker(),
    "words": WordRanker(evidence=EVIDENCE),
    "words, second stage": WordRanker(evidence=EVIDENCE, late=LateRows(DIM, None)),
}
# Few words, so that texts occur twice and scores tie.
POOL = numbered([*pool(60), *(replace(each, id=f"again {each.id}") for each in pool(30))])
OTHER = numbered(pool(50, "n", seed=4))
SENT = [("c3", None), ("new 2", None), (None, "w1 w9"), ("x", None)]
REQUESTS = [
    asked(top_k=20),
    asked("w1 w2", top_k=500),
    asked("w5", top_k=9, filter={"lang": "en", "n": {"gte": 3}}),
    asked("w2 w3 ord-3", top_k=7, exclude_ids=("c1", "new 1", "no such id")),
    asked("w1", top_k=4, grouping=Grouping("n", 2)),
    asked("w1", top_k=9, candidates=tuple(SentCandidate(*each) for each in SENT)),
]

Change = tuple[Sequence[Candidate], Sequence[str]]


@dataclass
class Both:
    """The same pool in one piece and in parts, each with what is served of it."""

    whole: LiveStore
    parts: ServedParts
    were_made_alike: bool = True  # so the same updates are since then

    def change(self, change: Change) -> None:
        upserts, deletes = change
        one = self.whole.upsert(*upserts) if upserts else self.whole.delete(*deletes)
        other = self.parts.upsert(*upserts) if upserts else self.parts.delete(*deletes)
        assert (one.revision, list(one.missing)) == (other.revision, list(other.missing))

    def check(self, *requests: RankRequest) -> None:
        """Compare answers, counts and revisions."""
        one, other = self.whole.serving.snapshot, self.parts.serving.snapshot
        assert (one.revision, one.count) == (other.revision, other.count)
        if self.were_made_alike:
            assert (one.changes, one.added, one.removed) == (other.changes, other.added, other.removed)
        for found, request in zip(self.parts.rank(*requests), requests, strict=True):
            assert found.degraded == []
            assert _told(found) == _told(rank(self.whole.serving, request))


def _told(ranked: Ranked) -> Ranked:
    return replace(ranked, seconds={}, plan=None)


@pytest.fixture(params=[(kind, shards) for kind in KINDS for shards in (1, 2, 4)], ids=str)
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Both]:
    kind, shards = request.param
    yield from _both(tmp_path, KINDS[kind], shards)


def _both(root: Path, ranker: WordRanker, shards: int) -> Iterator[Both]:
    build_store(root / "whole", POOL, ranker=ranker)
    build(ranker, POOL, root / "parts", BuildOptions(index="exact"), parts=shards)
    made = Both(LiveStore(root / "whole"), ServedParts(root / "parts"))
    try:
        yield made
    finally:
        made.whole.close()
        made.parts.close()


def _drawn(seed: int, count: int) -> list[Change]:
    """Updates that add, replace and remove, some of which change nothing."""
    draw = np.random.default_rng(seed)
    ids = [*(each.id for each in POOL), *(f"new {n}" for n in range(20))]
    changes: list[Change] = []
    for _ in range(count):
        chosen = [ids[at] for at in draw.choice(len(ids), int(draw.integers(1, 5)), replace=False)]
        if draw.random() < 0.6:
            texts = [" ".join(f"w{n}" for n in draw.integers(0, 6, int(draw.integers(1, 4)))) for _ in chosen]
            fields = [{"lang": str(draw.choice(["en", "de"])), "n": int(draw.integers(8))} for _ in chosen]
            changes.append(([Candidate(*row) for row in zip(chosen, texts, fields, strict=True)], ()))
        else:
            changes.append(((), chosen))
    return changes


def test_answers_after_updates_a_compaction_a_move_and_more_updates(both: Both) -> None:
    for change in _drawn(1, 12):
        both.change(change)
        both.check(REQUESTS[0])
    both.check(*REQUESTS)
    compact(both.whole.store.root)
    compact(both.parts.store.root)
    both.whole.live.follow_current()
    both.parts.live.follow_current()
    both.check(*REQUESTS)
    for change in _drawn(2, 6):
        both.change(change)
    both.check(*REQUESTS)
    if len(both.parts.serving.parts) != 3:
        move(both.parts.store.root, 3)
        both.parts.live.follow_current()
        both.were_made_alike = False
        both.check(*REQUESTS)
        for change in _drawn(3, 3):
            both.change(change)
        both.check(*REQUESTS)


def test_a_new_generation_receives_what_it_missed_and_a_rollback_finds_the_old_one_as_it_was(
    both: Both, tmp_path: Path
) -> None:
    first, *rest = _drawn(5, 5)
    both.change(first)
    ranker = both.whole.serving.ranker
    build_store(tmp_path / "whole", OTHER, ranker=ranker, activate=False)
    shards = len(both.parts.serving.parts)
    options = BuildOptions(index="exact", activate=False)
    made = build(ranker, OTHER, tmp_path / "parts", options, parts=shards).manifest
    for change in rest:
        both.change(change)
    both.whole.live.activate(both.whole.store.ids()[-1])
    both.parts.live.activate(made.id)
    both.check(*REQUESTS)
    both.change(_drawn(6, 1)[0])
    both.check(*REQUESTS)
    both.whole.live.rollback()
    both.parts.live.rollback()
    both.check(*REQUESTS)
    both.change(_drawn(7, 1)[0])
    both.check(*REQUESTS)


def test_a_request_sees_the_revision_that_it_began_with(both: Both) -> None:
    changes = _drawn(8, 10)
    before = []
    for change in changes:
        before.append((both.whole.serving, both.parts.serving))
        both.change(change)
        both.parts.rank(REQUESTS[0])  # shards are ahead of what the earlier ones may see
    for old, cut in before:
        texts = [replace(each, conversation=Conversation.of("w1 w2")) for each in REQUESTS]
        wanted = [_told(rank(old, each)) for each in texts]
        found = [both.parts.run(lambda runtime, cut=cut, each=each: ranking(runtime, cut, each)) for each in texts]
        assert [_told(each) for each in found] == wanted


@st.composite
def changes(draw: st.DrawFn) -> list[Change]:
    ids = st.sampled_from([*(each.id for each in POOL[:8]), *(f"new {n}" for n in range(4))])
    text = st.sampled_from(["w1", "w1 w2", "w3 w1", "w5 w5"])
    row = st.builds(Candidate, ids, text, st.fixed_dictionaries({"lang": st.sampled_from(["en", "de"])}))
    upsert = st.lists(row, min_size=1, max_size=4, unique_by=lambda each: each.id).map(lambda rows: (rows, ()))
    delete = st.lists(ids, min_size=1, max_size=4, unique=True).map(lambda chosen: ((), chosen))
    drawn: list[Change] = draw(st.lists(st.one_of(upsert, delete), min_size=1, max_size=6))
    return drawn


@settings(max_examples=cases(15))
@given(changes(), st.sampled_from([1, 2, 4]))
def test_any_updates(wanted: list[Change], shards: int) -> None:
    with TemporaryDirectory() as directory:
        for both in _both(Path(directory), KINDS["words"], shards):
            for change in wanted:
                both.change(change)
            both.check(*REQUESTS)
