"""The use case: contexts and candidates in, rankings out. Knows no HTTP.

A request goes from stage to stage on the event loop; whatever takes longer than a moment runs beside it:

    tokenizer    one thread: text to token ids (forwards.py)
    model        one thread: every forward of every model, batched over requests (batcher.py)
    search       one thread: scans and FAISS, and the scores of vectors that are on this machine
    candidates   a few threads: texts, vectors from Redis, and their scores
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.service.errors import DeadlineExceeded, InferenceFailed, NotConfigured
from polyrank.service.live.models import LateScorer, PairScorer
from polyrank.service.live.serving import Serving
from polyrank.service.observe.labels import Degraded
from polyrank.service.observe.metrics import Metrics
from polyrank.service.observe.tracing import OFF, Tracing
from polyrank.service.ranking import estimates, retrieval, shortlist
from polyrank.service.ranking.admission import Admission, Ticket
from polyrank.service.ranking.forwards import Forwards
from polyrank.service.ranking.lanes import TURN_BATCHES
from polyrank.service.ranking.rates import Rate
from polyrank.service.ranking.reranking import rerank
from polyrank.service.ranking.retrieval_budget import RetrievalBudget
from polyrank.service.ranking.threads import Threads
from polyrank.service.ranking.together import Together
from polyrank.service.ranking.values import Ranked, RankedCandidate, RankRequest, Shortlist, Stages
from polyrank.service.ranking.waiting import both, until

CANDIDATE_THREADS = 4
# Requests that share a pass over the pool: with more, the first of them would wait too long for the last.
MOST_SCANS = 16
# An answer that is there must still be written and sent.
ANSWER_SECONDS = 0.01

T = TypeVar("T")


class Read(NamedTuple):
    """Cross-encoder scores (N,), what it did not see, how many tokens it saw, and seconds by stage."""

    scores: NDArray[np.float32]
    truncation: Truncation
    tokens: int
    seconds: dict[str, float]


class Embeddings(NamedTuple):
    """Candidate vectors (N, D), how many tokens they saw, how many texts lost their end, and seconds by stage."""

    vectors: NDArray[np.float32]
    tokens: int
    cut: int
    seconds: dict[str, float]


class Found(NamedTuple):
    """A shortlist, what the encoders did not see, and what it does without."""

    shortlist: Shortlist
    truncation: Truncation
    degraded: list[Degraded]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Bounds of the engine.

    Attributes:
        batch_tokens: of a batch, padding included; 0: each sequence alone.
        max_queue_tokens: of all requests in the house.
        threads: of FAISS; None leaves it to FAISS.
    """

    batch_tokens: int = 512
    max_queue_tokens: int = 262_144
    threads: int | None = None


class Engine:
    """Ranks requests over whichever generation each of them began with. Made, and used, in one event loop.

    Args:
        settings: bounds.
        metrics: told of queues and batches.
        scorer: the cross-encoder, for requests that ask for a second look; warm.
        tracing: told of batches.
    """

    def __init__(
        self, settings: EngineSettings, metrics: Metrics, scorer: PairScorer | None = None, tracing: Tracing = OFF
    ) -> None:
        self.scorer = scorer
        self.batch_tokens = settings.batch_tokens
        self._threads = settings.threads
        self._forwards = Forwards(settings.batch_tokens, metrics, tracing)
        turn = TURN_BATCHES * settings.batch_tokens
        self._admission = Admission(settings.max_queue_tokens, turn, metrics, lambda: self._forwards.done_tokens)
        self._search = Threads("search", 1)
        self._searches = Together(self._search, self._searched, MOST_SCANS)
        self._candidates = Threads("candidates", CANDIDATE_THREADS)
        self._retrieval = RetrievalBudget()
        self._unknown = Rate(first=1.0)  # share of the texts sent that no cache knows

    @property
    def failed(self) -> str | None:
        """Why no answers can be expected at the moment; None: all is well."""
        return self._forwards.failed

    @property
    def stuck(self) -> bool:
        """Whether only a restart will help."""
        return self._forwards.stuck

    async def rank(self, serving: Serving, request: RankRequest) -> Ranked:
        """Rank a request; cancelling drops what has not begun.

        Raises:
            NotConfigured: a second look is asked for, and no cross-encoder is loaded.
            Overloaded: too much waits before it.
            UnknownCandidates: the generation holds none of the ids sent.
            DeadlineExceeded: the time was over before there was anything to answer with.
            InferenceFailed: the model failed, or gave something that is not a score.
        """
        if request.top_n is not None:
            self._required_scorer()
        stages = Stages()
        sure, given = estimates.of_ranking(request), estimates.of_given(request)
        with self._admission.admitted(sure + round(self._unknown.predict(given)), request.deadline) as ticket:
            async with until(request.deadline):
                if request.candidates is None:
                    found = await self._retrieved(serving, request, stages)
                else:
                    found = await self._given(serving, request, ticket, stages)
            places, pairs_cut, skipped = await self._second_look(request, found.shortlist.places, stages)
            if skipped:
                ticket.tokens -= estimates.of_second_look(request)
        best = found.shortlist
        without: list[Degraded] = [] if best.cache_available else ["cache_unavailable"]
        return Ranked(
            places=_finite(places[: request.top_k]),
            exact=best.exact,
            scored=best.scored,
            missing_ids=best.missing_ids,
            degraded=without + found.degraded + skipped,
            truncation=_most(found.truncation, pairs_cut),
            seconds=stages.seconds,
            tokens=stages.tokens,
            plan=best.plan,
        )

    async def score_pairs(self, conversation: Conversation, texts: Sequence[str], deadline: float) -> Read:
        """Let the cross-encoder read texts with a context; errors as `rank`."""
        scorer, stages = self._required_scorer(), Stages()
        with self._admission.admitted(estimates.of_pairs(conversation, texts), deadline):
            async with until(deadline):
                read = await self._forwards.pairs(scorer, conversation, texts, deadline, stages)
        return Read(*read, stages.seconds)

    async def embed(self, serving: Serving, texts: Sequence[str], deadline: float) -> Embeddings:
        """Encode texts as candidates; errors as `rank`."""
        with self._admission.admitted(estimates.of_texts(texts), deadline):
            async with until(deadline):
                return await self.encode(serving.ranker, texts, deadline)

    async def encode(self, encoder: LateScorer, texts: Sequence[str], deadline: float) -> Embeddings:
        """Encode texts as candidates, whatever else is in the house: for work that was admitted elsewhere."""
        stages = Stages()
        tokens, cut = await self._forwards.tokenize(partial(encoder.tokenize_candidates, texts), stages)
        with stages.timed("encode"):
            vectors, waited = await self._forwards.candidates(encoder, tokens, deadline)
        stages.move("encode", "queue", waited)
        return Embeddings(_stacked(vectors), sum(map(len, tokens)), cut, stages.seconds)

    async def tokenize(self, work: Callable[[str], T], texts: Sequence[str], deadline: float) -> list[T]:
        """Let the tokenizer's thread work on texts, one at a time, between those of others; errors as `rank`."""
        with self._admission.admitted(estimates.of_tokenizing(texts), deadline):
            async with until(deadline):
                return [await self._forwards.tokenize(partial(work, text), Stages()) for text in texts]

    async def look_up(self, work: Callable[[], T]) -> T:
        """Run something short that reads stored candidates."""
        return await self._candidates.run(work)

    async def probe(self, serving: Serving) -> None:
        """Try the model while it seems to have failed: a success makes the service ready again."""
        if self.failed is None or self.stuck:
            return
        context, _ = serving.ranker.tokenize_context(Conversation.of("hello"))
        with suppress(InferenceFailed):
            await self._forwards.contexts(serving.ranker, context, math.inf)
            await self.encode(serving.ranker, ["hello"], math.inf)

    def close(self) -> None:
        """Finish what has begun, drop what waits."""
        for each in (self._forwards, self._search, self._candidates):
            each.close()

    async def _retrieved(self, serving: Serving, request: RankRequest, stages: Stages) -> Found:
        """The best of the generation by late score."""
        tokenize = partial(serving.ranker.tokenize_context, request.conversation)
        context, truncation = await self._forwards.tokenize(tokenize, stages)
        stages.tokens = len(context)
        with stages.timed("encode"):
            [codes], waited = await self._forwards.contexts(serving.ranker, context, request.deadline)
        stages.move("encode", "queue", waited)
        affordable = self._retrieval.affordable(serving, request)

        search = retrieval.Search(serving, affordable, codes, stages)
        rows, found = await self._searches.run(serving.generation if search.shares else search, search, stages)
        searched = rows.plan in ("index", "selector")
        if searched:
            self._retrieval.learn(affordable, stages.seconds["retrieve"])
        if found is None:
            found = await self._candidates.run(partial(retrieval.over_generation, search, rows), stages)
        if isinstance(found, Exception):
            raise found
        is_less = searched and affordable.retrieve_k < request.retrieve_k
        return Found(found, truncation, ["retrieve_k_reduced"] if is_less else [])

    def _searched(
        self, searches: Sequence[retrieval.Search]
    ) -> list[tuple[retrieval.Retrieved, Shortlist | Exception | None]]:
        found = retrieval.retrieve_rows(searches, self._threads)
        return [(rows, retrieval.scored_here(search, rows)) for search, rows in zip(searches, found, strict=True)]

    async def _given(self, serving: Serving, request: RankRequest, ticket: Ticket, stages: Stages) -> Found:
        """The best of the candidates sent, by late score."""
        ranker, deadline = serving.ranker, request.deadline
        texts = [given.text for _, given in shortlist.kept(request) if given.text is not None]

        def tokenize() -> tuple[tuple[list[int], Truncation], tuple[list[list[int]], int]]:
            return ranker.tokenize_context(request.conversation), ranker.tokenize_candidates(texts)

        async def of_context() -> tuple[NDArray[np.float32], Stages]:
            took = Stages()
            with took.timed("encode"):
                [codes], waited = await self._forwards.contexts(ranker, context, deadline)
            took.move("encode", "queue", waited)
            return codes, took

        async def of_texts() -> tuple[shortlist.Texts, list[NDArray[np.float32]], Stages]:
            took = Stages()
            known = await self._candidates.run(partial(shortlist.known_texts, serving, request, texts, took), took)
            unknown = estimates.of_texts([texts[at] for at in known.new])
            self._unknown.learn(estimates.of_texts(texts), unknown)
            ticket.tokens = estimates.of_ranking(request) + unknown
            with took.timed("encode"):
                fresh, waited = await self._forwards.candidates(ranker, [tokens[at] for at in known.new], deadline)
            took.move("encode", "queue", waited)
            return known, fresh, took

        (context, truncation), (tokens, cut) = await self._forwards.tokenize(tokenize, stages)
        stages.tokens = len(context) + sum(map(len, tokens))
        (codes, one), (known, fresh, other) = await both(of_context(), of_texts())
        stages.include(max(one, other, key=Stages.total))

        def score() -> Shortlist:
            shortlist.learn(serving, texts, known, fresh)
            return shortlist.over_given(serving, request, codes, known, cut, stages)

        return Found(await self._candidates.run(score, stages), replace(truncation, candidates=cut), [])

    async def _second_look(
        self, request: RankRequest, places: list[RankedCandidate], stages: Stages
    ) -> tuple[list[RankedCandidate], Truncation, list[Degraded]]:
        """The shortlist with its first `top_n` in the cross-encoder's order; what was cut; what was left out."""
        first, deadline = places[: request.top_n or 0], request.deadline - ANSWER_SECONDS
        if self.scorer is None or not first:
            return places, Truncation(), []
        texts = [place.text for place in first]
        try:
            async with until(deadline):
                read = await self._forwards.pairs(
                    self.scorer, request.conversation, texts, deadline, stages, within=deadline
                )
        except DeadlineExceeded:  # there is an answer already, here and below
            return places, Truncation(), ["rerank_skipped_deadline"]
        except InferenceFailed:
            return places, Truncation(), ["rerank_failed"]
        return rerank(first, read.scores) + places[len(first) :], read.truncation, []

    def _required_scorer(self) -> PairScorer:
        if self.scorer is None:
            raise NotConfigured("rerank: no cross-encoder is loaded; start the server with --reranker MODEL")
        return self.scorer


def _stacked(vectors: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.stack(vectors) if vectors else np.empty((0, 0), np.float32)


def _most(one: Truncation, other: Truncation) -> Truncation:
    """What the two encoders did not see, whichever saw less."""
    return Truncation(max(one.turns, other.turns), max(one.tokens, other.tokens), max(one.candidates, other.candidates))


def _finite(places: list[RankedCandidate]) -> list[RankedCandidate]:
    if not all(math.isfinite(place.late) for place in places):
        raise InferenceFailed("a score is not finite")
    return places
