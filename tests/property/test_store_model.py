"""A store over its whole life, beside a plain dictionary for each generation: every answer is the same.

The rules change, rank, rebuild, switch and reopen in any order; what a ranking should say is worked out by scoring all
candidates the paper's way. A longer run: docs/testing.md.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brute_force import paper_scores
from cases import cases
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray
from service_fakes import DIM, WORDS, WordRanker, asked, build_store, only_part, rank
from updated import LiveStore

from polyrank.index_builder.building.compaction import compact
from polyrank.index_builder.errors import GenerationNotFound, NothingToCompact
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.vectors.local import rounded_all
from polyrank.model.representations import LateRows
from polyrank.model.text.assembly import Conversation
from polyrank.service.errors import UnknownCandidates
from polyrank.service.ranking.values import Given, Ranked

IDS = st.sampled_from([f"c{n}" for n in range(12)])
TEXTS = st.lists(st.sampled_from(WORDS[:12]), min_size=1, max_size=3).map(" ".join)
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "lang": st.sampled_from(["en", "de"]),
        "n": st.integers(0, 3),
        "tags": st.lists(st.booleans(), max_size=2),
    },
)
CANDIDATES = st.dictionaries(IDS, st.tuples(TEXTS, METADATA), min_size=1, max_size=6).map(
    lambda rows: [Candidate(each, text, metadata) for each, (text, metadata) in rows.items()]
)
FILTERS = st.sampled_from(
    [
        (None, lambda _: True),
        ({"lang": "en"}, lambda m: m.get("lang") == "en"),
        ({"n": [0, 3]}, lambda m: m.get("n") in (0, 3)),
        ({"n": {"gte": 1, "lt": 3}, "lang": {"exists": True}}, lambda m: m.get("n", 0) in (1, 2) and "lang" in m),
        ({"$not": {"tags": True}}, lambda m: True not in m.get("tags", [])),
        ({"$or": [{"lang": "de"}, {"tags": {"exists": False}}]}, lambda m: m.get("lang") == "de" or "tags" not in m),
    ]
)
KINDS = st.sampled_from(["exact", "flat", "hnsw"])
MODELS = st.sampled_from(
    [WordRanker(0), WordRanker(1), WordRanker(0, late=LateRows(DIM, None)), WordRanker(1, late=LateRows(DIM, 2))]
)


@dataclass
class Book:
    """What a generation should hold: candidates by id, in the order in which equal scores come.

    Attributes:
        read_at: the highest revision of the store when its pool was read, or when it became active last.
        revision: of the last update in it.
        logged: the revisions of the updates in its log.
    """

    ranker: WordRanker
    held: dict[str, Candidate]
    read_at: int
    revision: int
    was_active: bool = False
    logged: set[int] = field(default_factory=set)

    def take(self, revision: int, upserts: list[Candidate], deletes: list[str]) -> None:
        for each in (*deletes, *(candidate.id for candidate in upserts)):
            self.held.pop(each, None)
        self.held.update((each.id, each) for each in upserts)
        self.revision = revision
        self.logged.add(revision)


@dataclass
class Shelf:
    """All generations, which of them were active, and every update that was acknowledged.

    Attributes:
        trial: the generation on trial.
        gone: the revisions in the logs that generations have left which were collected.
    """

    books: dict[str, Book] = field(default_factory=dict)
    current: str = ""
    trial: str = ""
    gone: set[int] = field(default_factory=set)
    history: list[str] = field(default_factory=list)
    updates: dict[int, tuple[list[Candidate], list[str]]] = field(default_factory=dict)

    @property
    def active(self) -> Book:
        return self.books[self.current]

    def activate(self, generation: str) -> None:
        book = self.books[generation]
        if generation == self.trial:
            self.receive()
        if not book.was_active:
            for revision in range(max(book.read_at, book.revision) + 1, len(self.updates) + 1):
                book.take(revision, *self.updates[revision])
        before = self.current
        self._point_at(generation)
        if before not in ("", generation) and self.history[-1:] != [before]:
            self.history.append(before)

    def _point_at(self, generation: str) -> None:
        book = self.books[generation]
        if self.trial in (generation, self.current):
            self.trial = ""
        if generation != self.current:
            book.read_at = len(self.updates)
        book.was_active, self.current = True, generation

    def go_back(self) -> None:
        entries = self.way_back()
        if entries[-1] == self.trial:
            self.receive()
        self._point_at(entries[-1])
        self.history = entries[:-1]

    def receive(self) -> None:
        """Give the generation on trial what it lacks, as far as it stands in a log."""
        book = self.books[self.trial]
        stands = self.gone.union(*(each.logged for each in self.books.values()))
        for revision in range(max(book.read_at, book.revision) + 1, len(self.updates) + 1):
            if revision in stands:
                book.take(revision, *self.updates[revision])

    def remove(self, generation: str) -> None:
        self.gone |= self.books.pop(generation).logged
        self.history = [each for each in self.history if each in self.books]

    def clean(self) -> None:
        """Remove the logs of what was collected, unless a generation may need them."""
        if all(each == self.current or (book.was_active and each != self.trial) for each, book in self.books.items()):
            self.gone = set()

    def succeed(self, generation: str) -> None:
        """Take the active one's place: no rollback leads to that."""
        self.history = self.way_back()
        before, self.current = self.current, ""
        if self.trial == before:
            self.trial = ""
        self.activate(generation)

    def way_back(self) -> list[str]:
        """Where rollbacks lead, the next one last."""
        entries = list(self.history)
        while entries and entries[-1] == self.current:
            entries.pop()
        return entries


class StoreModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="polyrank-model-"))
        self.shelf = Shelf()
        self.live: LiveStore | None = None
        self.there: LiveStore | None = None

    @initialize(candidates=CANDIDATES, kind=KINDS, ranker=MODELS)
    def first_build(self, candidates: list[Candidate], kind: str, ranker: WordRanker) -> None:
        generation = build_store(self.root, candidates, index=kind, ranker=ranker)
        self.shelf.books[generation] = Book(ranker, {each.id: each for each in candidates}, 0, 0)
        self.shelf.activate(generation)
        self.live = LiveStore(self.root)

    @property
    def here(self) -> LiveStore:
        assert self.live is not None
        return self.live

    @rule(candidates=CANDIDATES)
    def upsert(self, candidates: list[Candidate]) -> None:
        done = self.here.upsert(*candidates)
        self._acknowledged(done.revision, candidates, [])

    @rule(candidates=CANDIDATES)
    def upsert_old_texts(self, candidates: list[Candidate]) -> None:
        """Only the metadata changes, so nothing is encoded."""
        held = self.shelf.active.held
        same = [Candidate(each.id, held[each.id].text, each.metadata) for each in candidates if each.id in held]
        if same:
            self._acknowledged(self.here.upsert(*same).revision, same, [])

    @rule(ids=st.lists(IDS, min_size=1, max_size=4, unique=True))
    def delete(self, ids: list[str]) -> None:
        held = self.shelf.active.held
        done = self.here.delete(*ids)
        assert list(done.missing) == [each for each in ids if each not in held]
        self._acknowledged(done.revision, [], ids)

    def _acknowledged(self, revision: int, upserts: list[Candidate], deletes: list[str]) -> None:
        assert revision == len(self.shelf.updates) + 1
        self.shelf.updates[revision] = upserts, deletes
        self.shelf.active.take(revision, upserts, deletes)

    @rule(text=TEXTS, top_k=st.integers(1, 14), filter_=FILTERS, exact=st.booleans(), out=st.lists(IDS, max_size=3))
    def rank(self, text: str, top_k: int, filter_: tuple[Any, Any], exact: bool, out: list[str]) -> None:
        wanted, keeps = filter_
        request = asked(text, top_k=top_k, filter=wanted, exact=exact, exclude_ids=tuple(out))
        ranked = rank(self.here.serving, request)
        kept = [each for each in self.shelf.active.held.values() if keeps(each.metadata) and each.id not in out]
        self._assert_answer(ranked, text, kept, top_k)
        assert ranked.exact or not exact

    @rule(text=TEXTS, ids=st.lists(IDS, min_size=1, max_size=6, unique=True))
    def rank_by_id(self, text: str, ids: list[str]) -> None:
        held = self.shelf.active.held
        request = asked(text, top_k=20, candidates=tuple(Given(each, None) for each in ids))
        known = [held[each] for each in ids if each in held]
        if not known:
            with pytest.raises(UnknownCandidates):
                rank(self.here.serving, request)
            return
        ranked = rank(self.here.serving, request)
        assert ranked.missing_ids == [each for each in ids if each not in held]
        self._assert_answer(ranked, text, known, 20)

    def _assert_answer(self, ranked: Ranked, text: str, kept: list[Candidate], top_k: int) -> None:
        scores = self._scores(text, kept)
        order = np.argsort(-scores, kind="stable")[:top_k]
        expected = [kept[at] for at in order]
        assert [place.id for place in ranked.places] == [each.id for each in expected]
        assert [place.text for place in ranked.places] == [each.text for each in expected]
        assert [place.metadata for place in ranked.places] == [each.metadata for each in expected]
        assert [place.vector for place in ranked.places] == pytest.approx(scores[order].tolist(), abs=1e-5)

    def _scores(self, text: str, kept: list[Candidate]) -> NDArray[np.float32]:
        if not kept:
            return np.empty(0, np.float32)
        ranker = self.shelf.active.ranker
        codes = ranker.encode_contexts([ranker.tokenize_context(Conversation.of(text))[0]])[0]
        tokens, _ = ranker.tokenize_candidates([each.text for each in kept])
        if ranker.late_rows is not None:
            [context] = ranker.represent_context_batch([ranker.tokenize_context(Conversation.of(text))[0]])
            return ranker.late_scores(context, rounded_all(ranker.represent_candidates(tokens), "float16"))
        return paper_scores(ranker.encode_candidates(tokens).astype(np.float16), codes)

    @rule(candidates=CANDIDATES, kind=KINDS, ranker=MODELS, activate=st.booleans(), data=st.data())
    def rebuild(self, candidates, kind: str, ranker: WordRanker, activate: bool, data: st.DataObject) -> None:
        """From a new pool; an update may come after it was read."""
        read_at = len(self.shelf.updates)

        def rows() -> Any:
            yield from candidates
            if data.draw(st.booleans()):
                self.upsert(data.draw(CANDIDATES))

        generation = build_store(self.root, rows(), index=kind, ranker=ranker, activate=activate)
        self.shelf.books[generation] = Book(ranker, {each.id: each for each in candidates}, read_at, read_at)
        if activate:
            self.shelf.activate(generation)
            self.here.live.follow_current()

    @rule(data=st.data())
    def activate(self, data: st.DataObject) -> None:
        generation = data.draw(st.sampled_from(sorted(self.shelf.books)))
        self.here.live.activate(generation)
        self.shelf.activate(generation)

    @rule()
    def roll_back(self) -> None:
        entries = self.shelf.way_back()
        if not entries:
            with pytest.raises(GenerationNotFound):
                self.here.live.rollback()
            return
        self.here.live.rollback()
        self.shelf.go_back()

    @rule(meanwhile=st.none() | CANDIDATES)
    def compact(self, meanwhile: list[Candidate] | None) -> None:
        """Nothing changes but the generation; an update may come while it is built."""
        book, revision = self.shelf.active, len(self.shelf.updates)

        def progress(stage: str, _done: int, _total: int | None) -> None:
            nonlocal meanwhile
            if stage == "manifest" and meanwhile is not None:
                candidates, meanwhile = meanwhile, None
                self.upsert(candidates)

        held = dict(book.held)
        if not held or not self.here.serving.snapshot.changes:
            with pytest.raises(NothingToCompact):
                compact(self.root)
            return
        generation = compact(self.root, progress=progress).generation
        self.shelf.books[generation] = Book(book.ranker, held, revision, revision)
        self.shelf.succeed(generation)
        self.here.live.follow_current()

    @rule(keep=st.integers(1, 3))
    def collect(self, keep: int) -> None:
        removed = self.here.store.gc(keep)
        assert not {self.shelf.current, self.shelf.trial} & {*removed}
        for each in removed:
            self.shelf.remove(each)
        self.shelf.clean()

    @rule()
    def restart(self) -> None:
        self.here.close()
        self.live = LiveStore(self.root)

    @rule(candidates=CANDIDATES)
    def upsert_elsewhere(self, candidates: list[Candidate]) -> None:
        """Another server on the store, which has not looked at it for a while, and this one follows."""
        if self.there is None:
            self.there = LiveStore(self.root)
        self.there.live.follow_current()
        self._acknowledged(self.there.upsert(*candidates).revision, candidates, [])
        self.here.live.take_over()

    @rule(data=st.data())
    def try_out(self, data: st.DataObject) -> None:
        """A generation beside the live one; another server may look at it as well."""
        others = sorted(self.shelf.books.keys() - {self.shelf.current})
        if others:
            self.shelf.trial = data.draw(st.sampled_from(others))
            self.here.store.begin_trial(self.shelf.trial)

    @rule(elsewhere=st.booleans())
    def follow_trial(self, elsewhere: bool) -> None:
        """Once a second: it is loaded, and given what the live one has."""
        if elsewhere and self.there is None:
            self.there = LiveStore(self.root)
        server = self.there if elsewhere and self.there is not None else self.here
        server.live.follow_current()
        server.live.take_over()
        server.trials.follow_trial()
        server.trials.receive()
        on_trial = server.trials.current
        assert (on_trial.generation.id if on_trial else "") == self.shelf.trial
        if on_trial is None:
            return
        if server.serving.snapshot.revision > self.shelf.books[self.shelf.trial].revision:
            self.shelf.receive()
        book, snapshot = self.shelf.books[self.shelf.trial], only_part(on_trial).snapshot
        assert snapshot.revision == book.revision
        assert snapshot.candidates(snapshot.matching({})) == list(book.held.values())

    @precondition(lambda self: self.live is not None)
    @invariant()
    def what_is_served_is_what_the_book_says(self) -> None:
        serving, book = self.here.serving, self.shelf.active
        snapshot = only_part(serving).snapshot
        assert (serving.generation.id, snapshot.revision) == (self.shelf.current, book.revision)
        assert snapshot.candidates(snapshot.matching({})) == list(book.held.values())
        assert snapshot.count == len(book.held) == self.here.value("index_candidates")
        assert self.here.value("index_revision") == book.revision
        assert self.here.store.history() == self.shelf.way_back()

    def teardown(self) -> None:
        for each in (self.live, self.there):
            if each is not None:
                each.close()
        shutil.rmtree(self.root)


def run(**options: Any) -> None:
    checks = list(HealthCheck)
    run_state_machine_as_test(StoreModel, settings=settings(deadline=None, suppress_health_check=checks, **options))


def test_every_answer_is_that_of_a_dictionary() -> None:
    """The same lives each time, so that a suite does not fail by chance; one that fails is shown as it is, at once."""
    run(max_examples=cases(20), stateful_step_count=30, derandomize=True, database=None, phases=[Phase.generate])


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_every_answer_is_that_of_a_dictionary_for_long() -> None:
    """Other lives each time; the one that fails is kept in .hypothesis, and comes first the next time."""
    run(max_examples=int(os.environ.get("SOAK_EXAMPLES", "2000")), stateful_step_count=60)
