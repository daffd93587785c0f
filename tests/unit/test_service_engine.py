"""The use case, without HTTP: sources, filters, exactness, the second look, deadlines."""

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import waiting
from service_fakes import (
    WordCross,
    WordRanker,
    asked,
    brute_force,
    build_store,
    only_part,
    open_serving,
    pool,
    rank,
    ranking,
    running,
)

from polyrank.index_builder.generation.candidates import CandidateTable
from polyrank.model.search.scan import Status
from polyrank.model.text import reading
from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.model.text.reading import TEXTS_A_PART, Steps
from polyrank.model.text.sequences import Pairs
from polyrank.service.caching.vectors import Caches
from polyrank.service.errors import DeadlineExceeded, InferenceFailed, Overloaded, TimeTooShort, UnknownCandidates
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking import costs, retrieval
from polyrank.service.ranking.engine import is_certain, merged
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.rescoring import score_pairs
from polyrank.service.ranking.retrieval import PoolSearch, Shortlist
from polyrank.service.ranking.runtime import Runtime, RuntimeSettings
from polyrank.service.ranking.unranked import embed, tokenize
from polyrank.service.ranking.values import Hits, Ranked, RankRequest, SentCandidate
from polyrank.service.scheduling import stages
from polyrank.service.scheduling.scheduler import Work
from polyrank.service.scheduling.stages import Journey
from polyrank.service.settings import Settings

TEXT = "w1 w2 w3 w7 w9"


@pytest.fixture(params=["exact", "flat", "hnsw"])
def serving(request: pytest.FixtureRequest, tmp_path: Path) -> Serving:
    build_store(tmp_path, index=request.param)
    return open_serving(tmp_path)


@pytest.fixture
def scanned(tmp_path: Path) -> Serving:
    build_store(tmp_path)
    return open_serving(tmp_path)


def found(ranked: Ranked) -> list[tuple[str | None, float]]:
    return [(place.id, place.vector) for place in ranked.places]


def assert_same(ranked: Ranked, expected: list[tuple[str, float]]) -> None:
    assert [each for each, _ in found(ranked)] == [each for each, _ in expected]
    np.testing.assert_allclose([s for _, s in found(ranked)], [s for _, s in expected], atol=1e-4)


def test_a_shallow_retrieval_still_fills_the_answer(serving: Serving) -> None:
    assert len(rank(serving, asked(TEXT, top_k=20, retrieve_k=2)).places) == 20


def test_a_flat_index_certifies_only_what_it_can(tmp_path: Path) -> None:
    build_store(tmp_path, pool(400), index="flat")
    serving = open_serving(tmp_path)
    expected = brute_force(serving, TEXT, 3)
    certified = 0
    for retrieve_k in (3, 5, 10, 50, 200, 390):
        ranked = rank(serving, asked(TEXT, top_k=3, retrieve_k=retrieve_k))
        if ranked.exact:
            certified += 1
            assert [each for each, _ in found(ranked)] == [each for each, _ in expected]
    assert 0 < certified < 6, "the depths must show both outcomes"


def test_the_certificate_needs_a_margin() -> None:
    scores = np.array([3.0, 2.0], np.float32)
    best = Hits(np.arange(2), np.arange(2), scores, None, 9, 1.9, "index")
    assert is_certain(best, 2)
    assert not is_certain(replace(best, bound=1.99999), 2), "within rounding"
    assert not is_certain(replace(best, bound=2.5), 2)
    assert not is_certain(replace(best, bound=1.0), 3), "fewer found than asked for"


def test_the_best_of_several_parts_keep_what_words_say_of_them() -> None:
    scores, lexical = np.array([1.0, 3.0, 2.0]), np.array([0.1, 0.3, 0.2])
    hits = Hits(np.arange(3), np.arange(3), scores, lexical, 9, -np.inf, "scan")
    best = merged({4: hits, 7: hits}, 3)
    assert (best.parts.tolist(), best.rows.tolist()) == ([4, 7, 4], [1, 1, 2])
    assert (best.scores.tolist(), best.lexical.tolist()) == ([3.0, 3.0, 2.0], [0.3, 0.3, 0.2])


def test_several_parts_are_as_sure_as_the_least_sure_of_them() -> None:
    hits = Hits(np.arange(2), np.arange(2), np.array([3.0, 2.0], np.float32), None, 9, -np.inf, "scan")
    unsure = replace(hits, bound=2.5, plan="index", reduced=True, cache_available=False)
    for found in ({0: hits, 1: unsure}, {0: unsure, 1: hits}):
        best = merged(found, 2)
        assert (best.bound, best.plan, best.reduced, best.cache_available) == (2.5, "index", True, False)
        assert best.looked_at == 18


def test_a_text_under_a_name_is_scored_as_that_text_and_has_no_metadata(scanned: Serving) -> None:
    [stored] = only_part(scanned).generation.candidates.rows([0])
    given = (SentCandidate("c0", TEXT), SentCandidate("c0", None), SentCandidate(None, stored.text))
    ranked = rank(scanned, asked(TEXT, candidates=given))
    by_index = {place.index: place for place in ranked.places}
    assert (by_index[0].id, by_index[0].text, by_index[0].metadata) == ("c0", TEXT, {})
    assert (by_index[1].id, by_index[1].text, by_index[1].metadata) == ("c0", stored.text, stored.metadata)
    assert (by_index[2].id, by_index[2].metadata) == (None, {})
    assert by_index[1].vector == by_index[2].vector, "a fresh vector is rounded as the stored one"
    assert by_index[0].vector > by_index[1].vector
    assert ranked.exact


def test_unknown_ids_are_reported_unless_none_is_left(scanned: Serving) -> None:
    some = (SentCandidate("nobody", None), SentCandidate("c3", None), SentCandidate("none", None))
    ranked = rank(scanned, asked(candidates=some))
    assert ranked.missing_ids == ["nobody", "none"]
    assert [place.index for place in ranked.places] == [1]
    with pytest.raises(UnknownCandidates, match="'nobody'"):
        rank(scanned, asked(candidates=(SentCandidate("nobody", None),)))


def test_exclusion_applies_to_candidates_that_were_sent(scanned: Serving) -> None:
    given = (SentCandidate("c1", None), SentCandidate("mine", "w1"), SentCandidate(None, "w2"))
    ranked = rank(scanned, asked(candidates=given, exclude_ids=("c1", "mine")))
    assert [place.index for place in ranked.places] == [2]


class Clock:
    """Counts, beside the seconds that pass, those that work is said to take."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    perf_counter = monotonic

    def work(self, seconds: float) -> None:
        self.ahead += seconds


class HeldCross(WordCross):
    """Reads nothing until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def score_pairs(self, pairs: Pairs) -> np.ndarray:
        self.let_go.wait(60)
        return super().score_pairs(pairs)


class SlowCross(WordCross):
    """Takes its time for each pair."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds, self.clock = seconds, clock
        self.batches = 0

    def score_pairs(self, pairs: Pairs) -> np.ndarray:
        self.batches += 1
        self.clock.work(self.seconds * len(pairs.owners))
        return super().score_pairs(pairs)


async def test_a_second_look_that_is_not_done_in_time_is_skipped_and_said(scanned: Serving, monkeypatch) -> None:
    monkeypatch.setattr(
        "polyrank.service.scheduling.stages.ANSWER_SECONDS", 3.0
    )  # a busy machine may take more than usual for the rest

    scorer = HeldCross()
    with running(scorer) as runtime:
        try:
            ranked = await ranking(runtime, scanned, asked(TEXT, top_n=5), time.monotonic() + 5)
        finally:
            scorer.let_go.set()
    assert ranked.degraded == ["rerank_skipped_deadline"]
    assert all(place.cross is None for place in ranked.places)


def test_a_second_look_that_fails_is_left_out_and_said(scanned: Serving, monkeypatch) -> None:
    scorer = WordCross()
    monkeypatch.setattr(scorer, "score_pairs", lambda pairs: np.full(len(pairs.owners), np.nan, np.float32))
    ranked = rank(scanned, asked(TEXT, top_n=5), scorer)
    assert ranked.degraded == ["rerank_failed"]
    assert found(ranked) == found(rank(scanned, asked(TEXT)))


async def test_a_second_look_that_will_not_fit_does_not_begin_and_is_tried_again_later(scanned: Serving) -> None:
    scorer = SlowCross(0.0, Clock())
    with running(scorer) as runtime:
        runtime.forwards.scheduler._lanes["pair"].rate.learn(100, 6000.0)  # an hour for each token, learnt in a stall
        told, batches = [], []
        for _ in range(40):
            ranked = await ranking(runtime, scanned, asked(TEXT, top_n=10), time.monotonic() + 60)
            told.append(ranked.degraded)
            batches.append(scorer.batches)
    skipped = told.index([])
    assert 10 < skipped < 30, "each skip lowers the estimate a little more"
    assert told == [["rerank_skipped_deadline"]] * skipped + [[]] * (40 - skipped)
    assert batches[:skipped] == [0] * skipped


async def test_fewer_are_retrieved_where_there_is_no_time_for_all_and_it_is_said(tmp_path: Path, monkeypatch) -> None:
    def slow(searches: Sequence[PoolSearch], threads: int | None) -> list[Shortlist]:
        for each in searches:
            each.journey.seconds["retrieve"] += 400.0  # two seconds a candidate
        return original(searches, threads)

    original = retrieval.search
    monkeypatch.setattr(retrieval, "search", slow)
    build_store(tmp_path, pool(300), index="flat")
    serving = open_serving(tmp_path)
    with running() as runtime:
        deadlines = (math.inf, time.monotonic() + 200.0)
        whole, less = [await ranking(runtime, serving, asked(TEXT, retrieve_k=200), each) for each in deadlines]
    assert (whole.degraded, less.degraded) == ([], ["retrieve_k_reduced"])
    assert 32 <= less.looked_at < whole.looked_at
    assert len(less.places) == 10


def test_without_its_search_thread_only_a_restart_helps() -> None:
    def end(_: list[Any]) -> list[Any]:
        raise SystemExit("out of luck")

    runtime = Runtime(RuntimeSettings(), Metrics())
    assert (runtime.failed, runtime.stuck) == (None, False)
    with pytest.raises(InferenceFailed, match="out of luck"):
        asyncio.run(runtime.searches.run("search", Work(end, [0], [1]), math.inf))
    assert runtime.stuck
    assert "the search thread has ended" in (runtime.failed or "")
    runtime.close()


async def test_equal_contexts_of_the_same_time_are_encoded_once(scanned: Serving) -> None:
    encoded, read = list[int](), list[Conversation]()
    encode, tokenize = scanned.ranker.encode_contexts, scanned.ranker.tokenize_context

    def watched(contexts: list[list[int]]) -> list[np.ndarray]:
        encoded.append(len(contexts))
        waiting.until(lambda: len(read) == 8)
        time.sleep(0.05)
        return encode(contexts)

    def tokenized(conversation: Conversation) -> tuple[list[int], Truncation]:
        read.append(conversation)
        return tokenize(conversation)

    scanned.ranker.encode_contexts, scanned.ranker.tokenize_context = watched, tokenized
    with running() as runtime:
        ranked = await asyncio.gather(*(ranking(runtime, scanned, asked(TEXT)) for _ in range(8)))
    assert encoded == [1]
    assert all(found(each) == found(ranked[0]) for each in ranked)


async def test_a_short_context_does_not_wait_while_long_texts_are_tokenised(scanned: Serving) -> None:
    runtime, release = Runtime(RuntimeSettings(), Metrics()), threading.Event()
    busy = asyncio.ensure_future(tokenize(runtime, lambda _: release.wait(60), ["letters " * 500], Journey()))
    try:
        async with asyncio.timeout(30):
            short = await ranking(runtime, scanned, asked(TEXT))
        long = asyncio.ensure_future(ranking(runtime, scanned, asked(" ".join([TEXT] * 100))))
        done, _ = await asyncio.wait([long], timeout=0.1)
        assert not done, "it would hold up the event loop"
    finally:
        release.set()
    await busy
    long = await long
    runtime.close()
    assert_same(short, brute_force(scanned, TEXT, 10))
    assert len(long.places) == 10


async def test_a_caller_with_many_letters_holds_up_nobody_with_few(scanned: Serving) -> None:
    release = threading.Event()
    with running() as runtime:
        busy = asyncio.ensure_future(tokenize(runtime, lambda _: release.wait(60), ["letters " * 600], Journey()))
        try:
            async with asyncio.timeout(30):
                ranked = await ranking(runtime, scanned, asked(" ".join([TEXT] * 100)))
        finally:
            release.set()
            await busy
    assert len(ranked.places) == 10


async def test_a_new_field_in_a_filter_holds_up_nobody_and_ends_with_its_time(scanned: Serving, monkeypatch) -> None:
    release, read = threading.Event(), CandidateTable.metadata

    def slowly(self: CandidateTable, *args: Any, **fields: Any) -> Any:
        release.wait(60)
        return read(self, *args, **fields)

    monkeypatch.setattr(CandidateTable, "metadata", slowly)
    runtime = Runtime(RuntimeSettings(), Metrics())
    until = time.monotonic() + 0.3
    filtered = asyncio.ensure_future(ranking(runtime, scanned, asked(TEXT, filter={"no": 1}), until))
    try:
        await asyncio.sleep(0.05)
        async with asyncio.timeout(30):
            await ranking(runtime, scanned, asked(TEXT))
            with pytest.raises(DeadlineExceeded):
                await filtered
    finally:
        release.set()
        runtime.close()


def test_a_deadline_that_is_over_costs_no_model_work(scanned: Serving) -> None:
    def fail() -> None:
        raise AssertionError("encoded")

    scanned.ranker.on_encode = fail
    with pytest.raises(DeadlineExceeded):
        rank(scanned, asked(), deadline=time.monotonic() - 1)


def test_a_deadline_ends_the_encoding_of_many_candidates(scanned: Serving) -> None:
    given = tuple(SentCandidate(None, f"w{n} " * 30) for n in range(2000))
    encoded: list[int] = []
    encode = scanned.ranker.encode_candidate_batch

    def counted(tokens: Sequence[list[int]]) -> np.ndarray:
        encoded.append(len(tokens))
        return encode(tokens)

    scanned.ranker.encode_candidate_batch = counted
    with pytest.raises((DeadlineExceeded, TimeTooShort), match="time allowed"):
        rank(scanned, asked(candidates=given), deadline=time.monotonic() + 0.05)
    assert sum(encoded) < 2000


class SlowRanker(WordRanker):
    """Takes its time for each candidate, and counts them by their first word; begins a batch where it may."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        super().__init__()
        self.seconds, self.clock, self.may_begin = seconds, clock, threading.Semaphore(10**6)
        self.encoded: Counter[int] = Counter()

    def encode_candidate_batch(self, candidates: Sequence[list[int]]) -> np.ndarray:
        self.encoded.update(each[0] for each in candidates)
        self.may_begin.acquire()
        self.clock.work(self.seconds * len(candidates))
        return super().encode_candidate_batch(candidates)


TEXTS = [f"word{n} " + "w1 " * 15 for n in range(300)]
MANY = tuple(SentCandidate(None, text) for text in TEXTS)


class Slow:
    """A slow model by a clock of its own, with a cache of so many MiB for vectors of texts."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, cache_mb: int = 1) -> None:
        self.clock, self.metrics = Clock(), Metrics()
        self.ranker = SlowRanker(10.0, self.clock)
        settings = Settings(store=root, vector_cache_mb=cache_mb)
        self.serving = open_serving(root, caches=Caches(settings, self.metrics), load=lambda _: self.ranker)
        self.ranker.encoded.clear()  # of the warm-up
        self.runtime = Runtime(RuntimeSettings(), self.metrics, SlowCross(10.0, self.clock))
        monkeypatch.setattr(stages, "time", self.clock)
        for timed in (self.runtime.forwards.scheduler, self.runtime.admission):
            monkeypatch.setattr(timed, "_clock", self.clock.monotonic)

    def close(self) -> None:
        self.ranker.may_begin.release(10**6)
        self.runtime.close()

    def within(self, seconds: float) -> Journey:
        return Journey(self.clock.monotonic() + seconds)

    async def ask(self, candidates: tuple[SentCandidate, ...] = MANY, seconds: float = math.inf) -> Ranked | Exception:
        deadline = self.clock.monotonic() + seconds
        try:
            return await ranking(self.runtime, self.serving, asked(TEXT, candidates=candidates), deadline)
        except (TimeTooShort, Overloaded, DeadlineExceeded) as error:
            return error

    def queued(self, what: str) -> float:
        return self.metrics.registry.get_sample_value(f"polyrank_queue_{what}") or 0.0


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not come about")


@pytest.fixture
def slow(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    build_store(tmp_path)
    with closing(Slow(tmp_path, monkeypatch, cache_mb=getattr(request, "param", 1))) as made:
        yield made


@pytest.mark.parametrize("slow", [0], indirect=True)
async def test_without_a_cache_what_does_not_fit_is_refused_with_what_does(slow: Slow) -> None:
    assert isinstance(await slow.ask(), Ranked), "the speed is learnt"
    slow.ranker.encoded.clear()
    refused = await slow.ask(seconds=1200)
    assert isinstance(refused, TimeTooShort)
    assert not slow.ranker.encoded
    with pytest.raises(TimeTooShort):
        await embed(slow.runtime, slow.serving, TEXTS, slow.within(1200))
    assert 20 < refused.fitting < 100
    assert isinstance(await slow.ask(MANY[: refused.fitting], seconds=1200), Ranked)


async def test_pairs_that_do_not_fit_are_refused_with_how_many_do(slow: Slow) -> None:
    conversation = Conversation.of(TEXT)
    await score_pairs(slow.runtime, None, conversation, TEXTS, Journey())
    with pytest.raises(TimeTooShort) as refused:
        await score_pairs(slow.runtime, None, conversation, TEXTS, slow.within(1200))
    fitting = refused.value.fitting
    assert 0 < fitting < 100
    read = await score_pairs(slow.runtime, None, conversation, TEXTS[:fitting], slow.within(1200))
    assert len(read.scores) == fitting
    await slow.ask(MANY[:100])
    deadline = slow.clock.monotonic() + 700  # of the thousand seconds that it takes
    request = asked(TEXT, candidates=MANY[:100], top_n=100)
    assert (await ranking(slow.runtime, slow.serving, request, deadline)).degraded == ["rerank_skipped_deadline"]


async def test_texts_that_cannot_even_be_tokenised_in_time_are_refused_with_how_many_can(
    slow: Slow, monkeypatch
) -> None:
    tokenize = slow.ranker.tokenize_candidates

    def slowly(texts: Sequence[str]) -> tuple[list[list[int]], int]:
        slow.clock.work(40.0 * len(texts))
        return tokenize(texts)

    monkeypatch.setattr(slow.ranker, "tokenize_candidates", slowly)
    monkeypatch.setattr(reading, "TEXTS_A_PART", 10)
    with pytest.raises(TimeTooShort):
        await embed(slow.runtime, slow.serving, TEXTS, slow.within(2000))
    refused = await slow.ask(seconds=2000)
    assert isinstance(refused, TimeTooShort)
    assert refused.fitting == 30
    assert isinstance(await slow.ask(MANY[: refused.fitting], seconds=2000), Ranked)


async def test_a_request_of_known_texts_is_admitted_by_what_is_left_to_encode(slow: Slow) -> None:
    await slow.ask(MANY[:250])
    slow.ranker.may_begin = threading.Semaphore(0)
    other = tuple(SentCandidate(None, f"other{n} " + "w1 " * 15) for n in range(200))
    inside = asyncio.create_task(slow.ask(other))
    await until(lambda: slow.queued("depth") == 1)
    before = slow.queued("tokens")
    retry = asyncio.create_task(slow.ask())
    await until(lambda: slow.queued("depth") == 2)
    added = slow.queued("tokens") - before
    slow.ranker.may_begin.release(10**6)
    assert all(isinstance(each, Ranked) for each in (await retry, await inside))
    of_one = costs.text_tokens([MANY[100].text or ""])
    assert 50 * of_one < added < 70 * of_one, "fifty texts, and what any request costs"


def test_a_vector_that_is_not_finite_is_a_failure_not_a_score(scanned: Serving, monkeypatch) -> None:
    broken = np.full((1, 3, 16), np.nan, np.float32)
    monkeypatch.setattr(scanned.ranker, "encode_contexts", lambda contexts: list(broken))
    with pytest.raises(InferenceFailed):
        rank(scanned, asked())


def test_a_score_beyond_half_precision_is_a_failure_not_a_score(scanned: Serving, monkeypatch) -> None:
    huge = np.full((1, 16), 1e6, np.float32)  # infinite once rounded to the store's float16
    monkeypatch.setattr(scanned.ranker, "encode_candidates", lambda ids, on_done=None: huge)
    with pytest.raises(InferenceFailed), np.errstate(over="ignore"):
        rank(scanned, asked(candidates=(SentCandidate(None, "w1"),)))


def test_stages_are_timed_and_truncation_is_told(scanned: Serving) -> None:
    given = (SentCandidate(None, "w1 " * 100), SentCandidate(None, "w2"))
    ranked = rank(scanned, asked("w1 " * 40, candidates=given))
    assert (ranked.truncation.tokens, ranked.truncation.candidates) == (8, 1)
    assert set(ranked.seconds) == {"queue", "tokenize", "encode", "retrieve", "fetch", "score", "late", "rerank"}
    assert ranked.seconds["encode"] > 0
    assert ranked.looked_at == 2


def test_many_texts_are_tokenised_a_few_at_a_time(scanned: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of others come between, also where few texts have many letters."""
    sizes: list[int] = []
    tokenize = scanned.ranker.tokenize_candidates

    def watched(texts: Sequence[str]) -> tuple[list[list[int]], int]:
        sizes.append(len(texts))
        return tokenize(texts)

    monkeypatch.setattr(scanned.ranker, "tokenize_candidates", watched)
    texts = [f"w{n} " * (33 if n % 3 == 0 else 1) for n in range(2 * TEXTS_A_PART + 10)]
    ranked = rank(scanned, asked(candidates=tuple(SentCandidate(None, text) for text in texts), top_k=1000))
    assert sizes == [TEXTS_A_PART, TEXTS_A_PART, 10]
    assert ranked.truncation.candidates == len(texts[::3])
    alone = rank(scanned, asked(candidates=(SentCandidate(None, texts[300]),)))
    assert [place.vector for place in ranked.places if place.index == 300] == [alone.places[0].vector]
    sizes.clear()
    rank(scanned, asked(candidates=tuple(SentCandidate(None, f"w{n} " * 3000) for n in range(3))))
    assert sizes == [1, 1, 1]


STEPS = 100_000


class Steady(WordRanker):
    """Tokenises every context in more steps than a test waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []

    def context_steps(self, conversation: Conversation) -> Steps[tuple[list[int], Truncation]]:
        for _ in range(STEPS):
            self.done.append(conversation.turns[0].text[0])
            time.sleep(0.001)
            yield
        return [1], Truncation()

    def steps(self, count: int) -> list[str]:
        """Wait for so many steps from now on, and return whose they are."""
        before, deadline = len(self.done), time.monotonic() + 30
        while len(self.done) < before + count:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return self.done[before : before + count]


async def test_others_come_between_the_steps_of_a_long_tokenisation(scanned: Serving) -> None:
    ranker = Steady()
    serving = replace(scanned, ranker=ranker)
    with running() as runtime:
        one, other = (asyncio.ensure_future(ranking(runtime, serving, asked(name * 2000))) for name in "ab")
        await asyncio.to_thread(waiting.until, lambda: ranker.done.count("b") > 20)
        await asyncio.to_thread(waiting.until, lambda: abs(ranker.done.count("a") - ranker.done.count("b")) <= 1)
        assert ranker.done.count("b") < STEPS, "they take turns"
        async with asyncio.timeout(30):
            await embed(runtime, serving, ["w1"], Journey())
        one.cancel()
        await asyncio.wait([one])
        assert (await asyncio.to_thread(ranker.steps, 20)).count("a") <= 1, "what nobody waits for is not read"
        assert len(ranker.done) < STEPS
        other.cancel()


class Halting(WordRanker):
    """Tokenises every context in so many steps, each of which waits until the test lets it go on."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.go_on = count, threading.Semaphore(0)
        self.begun: list[str] = []

    def context_steps(self, conversation: Conversation) -> Steps[tuple[list[int], Truncation]]:
        for _ in range(self.count):
            self.begun.append(conversation.turns[0].text[0])
            assert self.go_on.acquire(timeout=30)
            yield
        return [1], Truncation()

    def wait(self, steps: int) -> None:
        """Wait until so many steps have begun."""
        waiting.until(lambda: len(self.begun) >= steps)


# Twenty callers, whose letters are slow, beside one: letters of each of them, steps they have had, letters of the one.
@pytest.mark.parametrize(
    ("letters", "had", "own"), [(4000, 0, 1140), (20_000, 0, 17_000), (1140, 25, 4000), (5000, 25, 16_000)]
)
async def test_nobody_waits_for_more_than_one_step_of_twenty_slow_callers(
    scanned: Serving, letters: int, had: int, own: int
) -> None:
    ranker = Halting(3)
    serving = replace(scanned, ranker=ranker)
    with running() as runtime:
        slow = [asyncio.ensure_future(ranking(runtime, serving, asked("s" * letters))) for _ in range(20)]
        await asyncio.to_thread(ranker.wait, 1)
        for turn in range(had):
            ranker.go_on.release()
            await asyncio.to_thread(ranker.wait, turn + 2)
        honest = asyncio.ensure_future(ranking(runtime, serving, asked("h" * own)))
        await asyncio.sleep(0)
        ranker.go_on.release(1000)
        await asyncio.gather(honest, *slow)
    assert ranker.begun.index("h") == had + 1
    assert ranker.begun.count("h") == 3


async def test_texts_are_work_however_short_they_are(scanned: Serving) -> None:
    with running() as runtime:
        names = await tokenize(runtime, lambda _: threading.current_thread().name, [""] * 1000, Journey())
    assert (len(names), set(names)) == (1000, {"tokenizer-long_0"})


def test_a_deadline_ends_a_long_tokenisation(scanned: Serving) -> None:
    ranker = Steady()
    with pytest.raises(DeadlineExceeded):
        rank(replace(scanned, ranker=ranker), asked("a" * 2000), deadline=time.monotonic() + 0.05)
    assert len(ranker.done) < STEPS


@pytest.mark.parametrize("shares", [False, True])
def test_searches_are_done_together_where_that_saves_time(scanned: Serving, monkeypatch, shares: bool) -> None:
    together: list[int] = []

    def search(searches: Sequence[PoolSearch], threads: int | None) -> list[Shortlist]:
        together.append(len(searches))
        time.sleep(0.05)  # meanwhile the others come
        return original(searches, threads)

    original = retrieval.search
    monkeypatch.setattr(retrieval, "search", search)
    monkeypatch.setattr(Status, "shares", lambda *_: shares)
    ranked_together(scanned, [asked(f"w{n}") for n in range(4)])
    assert sum(together) == 4
    assert (max(together) > 1) == shares


def ranked_together(serving: Serving, requests: list[RankRequest]) -> list[Ranked | BaseException]:
    """Rankings of requests that come at the same time."""

    async def play() -> list[Ranked | BaseException]:
        with running() as runtime:
            return await asyncio.gather(*(ranking(runtime, serving, each) for each in requests), return_exceptions=True)

    return asyncio.run(play())


def test_one_that_cannot_be_scored_has_no_other_scored_again(scanned: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"w{n}" for n in range(4)]
    codes = scanned.ranker.represent_context_batch(
        [WordRanker().tokenize_context(Conversation.of(each))[0] for each in texts]
    )
    scored: list[int] = []

    def best_found(search: PoolSearch, found: Shortlist) -> Hits:
        [at] = [at for at, each in enumerate(codes) if np.array_equal(each.codes, search.codes)]
        scored.append(at)
        if at == 2:
            raise RuntimeError("its vector is damaged")
        return original(search, found)

    original = retrieval.part_hits
    monkeypatch.setattr(retrieval, "part_hits", best_found)
    monkeypatch.setattr(Status, "shares", lambda *_: True)
    answers = ranked_together(scanned, [asked(text) for text in texts])
    assert sorted(scored) == [0, 1, 2, 3]
    assert [type(answer) for answer in answers] == [Ranked, Ranked, RuntimeError, Ranked]
