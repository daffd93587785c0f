"""`exact: true` equals brute force in float64 over the sum of vectors and words, over the whole life of a store."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden import oracle
from service_fakes import WordRanker, asked, build_store, rank
from updated import LiveStore

from polyrank.index_builder.building.compaction import compact
from polyrank.index_builder.pool.rows import Candidate
from polyrank.model.config import LexicalConfig
from polyrank.model.lexical.score import FEATURES, TURN_FEATURES
from polyrank.model.search import scan
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.values import Given, Ranked, RankedCandidate, RankRequest

FEW, MANY = range(8), range(200)
RARE = [f"w{n}" for n in range(90)] + [f"word{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
RARE += ["ord-12-x", "ORD-12-X", "v2.3.1", "don't", "don\u2019t", "MY_file.txt", "über", "ÜBER", "0x80070057", "²", "ß"]
COMMON = ["the", "The", "a", "is", "you"]
ENDS = ["", "!", "?", " :-)"]
ROUNDING = 2e-6  # of the sum of all terms' magnitudes: some roundings to float32


@dataclass
class Book:
    """What a generation should hold: the texts that say how common words are, and candidates in their order."""

    evidence: LexicalConfig
    statistics: oracle.WordPool
    held: dict[str, Candidate] = field(default_factory=dict)

    @classmethod
    def of(cls, evidence: LexicalConfig, candidates: Sequence[Candidate]) -> "Book":
        words = oracle.WordPool(each.text for each in candidates)
        return cls(evidence, words, {each.id: each for each in candidates})

    def count(self) -> None:
        """Count the words of what is held now."""
        self.statistics = oracle.WordPool(each.text for each in self.held.values())

    def take(self, upserts: Sequence[Candidate], deletes: Sequence[str]) -> None:
        for each in (*deletes, *(candidate.id for candidate in upserts)):
            self.held.pop(each, None)
        self.held.update((each.id, each) for each in upserts)


class Draw:
    """Everything that is left to chance, by a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def one(self, values: Sequence[Any]) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def text(self) -> str:
        words = [self.one(RARE if self.rng.random() < 0.7 else COMMON) for _ in range(self.rng.integers(1, 9))]
        return " ".join(words) + self.one(ENDS)

    def texts(self, count: int, known: Sequence[str] = ()) -> list[str]:
        """Some occur twice, and some differ in nothing that counts; some are known already."""
        texts: list[str] = []
        for _ in range(count):
            earlier = [*known, *texts]
            chance = self.rng.random() if earlier else 1.0
            if chance < 0.15:
                texts.append(self.one(earlier))
            elif chance < 0.3:
                texts.append(f"  {self.one(earlier).upper()} ".replace(" ", self.one([" ", ", "])))
            else:
                texts.append(self.text())
        return texts

    def candidates(self, ids: Sequence[str], known: Sequence[str] = ()) -> list[Candidate]:
        return [
            Candidate(each, text, {"lang": self.one(["en", "de"]), "n": int(self.rng.integers(5))})
            for each, text in zip(ids, self.texts(len(ids), known), strict=True)
        ]

    def evidence(self) -> LexicalConfig:
        weights = {}
        for name in FEATURES:
            match self.rng.integers(5):
                case 0:
                    weights[name] = 0.0
                case 1:
                    weights[name] = float(self.rng.normal() * 30)
                case 2 | 3:
                    weights[name] = float(self.rng.normal())
        return LexicalConfig(late_weight=self.one([0.01, 0.6, 1.0, 4.0]), weights=weights)

    def conversation(self, texts: Sequence[str]) -> Conversation:
        """Its turns are new ones, or texts of the pool, as they are or in capitals."""
        turns = []
        for _ in range(self.rng.integers(1, 6)):
            text = self.one(texts)
            turns.append(self.one([self.text(), text, text.upper(), f"{text} {self.text()}"]))
        roles = self.one([[None] * len(turns), [self.one(["user", "bot", "third"]) for _ in turns]])
        facts = [self.one([self.text(), self.one(texts)]) for _ in range(self.rng.integers(3))]
        return Conversation.of([Turn(*each) for each in zip(turns, roles, strict=True)], facts)

    def updates(self, book: Book, times: int) -> Iterator[tuple[list[Candidate], list[str]]]:
        """New candidates, old ones anew and removed ones; an id comes back after it was removed."""
        for at in range(times):
            ids = sorted({*book.held, *(f"new{n}" for n in range(20))} - {"back"})
            upserts = self.rng.choice(ids, self.rng.integers(1, 15), replace=False).tolist()
            deletes = self.rng.choice(ids, self.rng.integers(1, 8), replace=False).tolist()
            known = [each.text for each in book.held.values()]
            yield self.candidates([*upserts, "back"], known), [*deletes, *(["back"] if at % 2 else [])]


@dataclass
class Life:
    """A store, what is served of it, and what should be."""

    root: Path
    draw: Draw
    redis_url: str
    live: LiveStore
    book: Book

    @property
    def serving(self) -> Serving:
        return self.live.serving

    def update(self, times: int = 3) -> None:
        for upserts, deletes in self.draw.updates(self.book, times):
            self.live.upsert(*upserts)
            self.book.take(upserts, [])
            self.live.delete(*deletes)
            self.book.take([], deletes)

    def reopen(self, redis_url: str | None) -> None:
        self.live.close()
        self.live = LiveStore(self.root, redis_url=redis_url)

    def check(self, times: int = 1) -> None:
        """Rank by some requests; each answer is that of brute force."""
        held = list(self.book.held.values())
        for _ in range(times):
            conversation = self.draw.conversation([each.text for each in held])
            out = tuple(self.draw.rng.choice(sorted(self.book.held), 5).tolist())
            top_k = self.draw.one([1, 3, 10, 100, len(held)])
            filter_, keeps = self.draw.one(FILTERS)
            request = asked(conversation=conversation, top_k=top_k, exact=True, filter=filter_, exclude_ids=out)
            expected = self.expected(conversation, [c for c in held if keeps(c.metadata) and c.id not in out])
            ranked = rank(self.serving, request)
            assert ranked.exact
            assert_best(ranked, expected, top_k)
            self.check_sent(request, ranked)

    def expected(
        self, conversation: Conversation, kept: Sequence[Candidate], are_list: bool = False
    ) -> "list[Expected]":
        """Every candidate's score by vectors and words, in the order of the rows."""
        ranker = WordRanker()
        [codes] = ranker.encode_contexts([ranker.tokenize_context(conversation)[0]])
        owns = oracle.is_own([turn.role for turn in conversation.turns])
        turns = [(turn.text, is_own) for turn, is_own in zip(conversation.turns, owns, strict=True)]
        said, evidence = oracle.Said(turns, conversation.persona), self.book.evidence
        share = self.book.statistics.turns_share(said, [each.text for each in kept]) if are_list else 1.0
        weights = {name: share * w if name in TURN_FEATURES else w for name, w in evidence.weights.items()}
        late: dict[bytes, float] = {}
        scores: dict[str, Expected] = {}
        found = []
        for each in kept:
            if each.text not in scores:
                [vector] = ranker.encode_candidates(ranker.tokenize_candidates([each.text])[0]).astype(np.float16)
                if (key := vector.tobytes()) not in late:
                    late[key] = oracle.candidate_attention(codes.astype(np.float64).tolist(), vector.tolist())
                terms = self.book.statistics.terms(said, each.text, weights)
                terms.append(evidence.late_weight * late[key])
                scores[each.text] = Expected(each, sum(terms), ROUNDING * (1 + sum(map(abs, terms))))
            found.append(Expected(each, scores[each.text].score, scores[each.text].tolerance))
        return found

    def check_sent(self, request: RankRequest, ranked: Ranked) -> None:
        """Sent by their ids, candidates have the same scores to the bit; with texts among them they are a list."""
        if not ranked.places:
            return
        held = [self.book.held[str(place.id)] for place in ranked.places]
        ids = [Given(each.id, None) for each in held]
        mixed = [
            given if at % 2 else Given(f"text of {given.id}", each.text)
            for at, (given, each) in enumerate(zip(ids, held, strict=True))
        ]
        again, listed = (
            rank(self.serving, asked(conversation=request.conversation, top_k=len(sent), candidates=tuple(sent)))
            for sent in (ids, mixed)
        )
        by_index = sorted(again.places, key=lambda place: place.index or 0)
        assert [numbers(place) for place in by_index] == [numbers(place) for place in ranked.places]
        for place, right in zip(
            sorted(listed.places, key=lambda place: place.index or 0),
            self.expected(request.conversation, held, are_list=True),
            strict=True,
        ):
            assert abs(place.score - right.score) <= right.tolerance, (place, right)


FILTERS: list[tuple[Any, Any]] = [
    (None, lambda _: True), (None, lambda _: True), ({"lang": "en"}, lambda m: m["lang"] == "en"),
    ({"n": {"gte": 1, "lt": 3}}, lambda m: m["n"] in (1, 2)),
    ({"$not": {"n": 4}}, lambda m: m["n"] != 4), ({"n": 77}, lambda _: False),
]  # fmt: skip


@dataclass(frozen=True)
class Expected:
    """A candidate, its score in float64, and how far rounding may move it."""

    candidate: Candidate
    score: float
    tolerance: float


def numbers(place: RankedCandidate) -> tuple[float, float | None]:
    return place.score, place.lexical


def assert_best(ranked: Ranked, expected: Sequence[Expected], top_k: int) -> None:
    """They are the best, with their scores, and equal scores come in the order of the rows."""
    row_of = {each.candidate.id: row for row, each in enumerate(expected)}
    rows = [row_of.pop(str(place.id)) for place in ranked.places]
    assert len(rows) == min(top_k, len(expected))
    for place, row in zip(ranked.places, rows, strict=True):
        right = expected[row]
        assert (place.text, place.metadata) == (right.candidate.text, right.candidate.metadata)
        assert abs(place.score - right.score) <= right.tolerance, (place, right)
    for (one, row), (other, next_row) in pairwise(zip(ranked.places, rows, strict=True)):
        assert (-one.score, row) < (-other.score, next_row)
        if expected[row].score == expected[next_row].score:
            assert one.score == other.score, "what is equal ties"
    for row in row_of.values():
        left_out, last, last_row = expected[row], expected[rows[-1]], rows[-1]
        assert left_out.score <= last.score + left_out.tolerance + last.tolerance
        assert left_out.score != last.score or row > last_row


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=[pytest.mark.soak, pytest.mark.timeout(0)])])
def test_exact_equals_brute_force(seeds: range, tmp_path: Path, redis_url: str, monkeypatch) -> None:
    for seed in seeds:
        monkeypatch.setattr(scan, "LEAST_ROWS", 64 if seed % 3 else 4096)  # with and without a copy in bytes
        live_through(tmp_path / str(seed), Draw(seed), redis_url, uses_redis=seed % 2 == 1)


def live_through(root: Path, draw: Draw, redis_url: str, uses_redis: bool) -> None:
    """A store is built, updated, compacted, built anew and rolled back, and read by a replica without vectors."""
    url = redis_url if uses_redis else None

    def build(count: int) -> Book:
        evidence, candidates = draw.evidence(), draw.candidates([f"c{n}" for n in range(count)])
        kind = draw.one(["exact", "flat", "hnsw"])
        build_store(root, candidates, ranker=WordRanker(evidence=evidence), index=kind, redis_url=redis_url)
        return Book.of(evidence, candidates)

    first = build(int(draw.one([60, 120, 400])))
    life = Life(root, draw, redis_url, LiveStore(root, redis_url=url), first)
    try:
        life.check()
        life.update()
        life.check(2)
        compact(root, redis_url=redis_url)
        life.book.count()
        life.live.live.follow_current()
        life.check(2)
        life.update()
        life.check()
        life.book = build(80)
        life.live.live.follow_current()
        life.check()
        life.update(1)
        life.live.live.rollback()
        life.book = first
        life.check()
        for file in root.glob("generations/*/embeddings.bin"):
            file.unlink()
        life.reopen(redis_url)
        life.check()
        life.update(1)
        life.check()
    finally:
        life.live.close()
