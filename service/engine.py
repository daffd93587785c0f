"""The use case: contexts and candidates in, rankings out. Knows no HTTP.

A request goes from stage to stage on the event loop; whatever takes longer than a moment runs beside it:

    tokenizer    one thread: text to token ids
    model        one thread: every forward of every model, batched over requests (batcher.py)
    search       one thread: scans and FAISS
    candidates   a few threads: stored vectors and texts, from disk or Redis, and their scores
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from index_builder.codec import rounded
from index_builder.encoder import TextEncoder
from index_builder.errors import BuildError
from model import Conversation, Truncation
from model.pairs import Pairs
from service import estimates, retrieval, shortlist
from service.admission import Admission, Ticket
from service.batcher import Batcher
from service.errors import DeadlineExceeded, InferenceFailed, NotConfigured
from service.metrics import Metrics
from service.rates import Rate
from service.reranking import rerank
from service.scorers import PairScorer
from service.serving import Serving
from service.threads import Threads
from service.values import Place, Ranked, RankRequest, Shortlist, Stages

CACHE_UNAVAILABLE = "cache_unavailable"
RETRIEVE_K_REDUCED = "retrieve_k_reduced"
RERANK_SKIPPED = "rerank_skipped_deadline"

CANDIDATE_THREADS = 4
# Retrieval may take this share of the time left; fewer than so many candidates are never retrieved.
SHARE_FOR_RETRIEVAL = 0.5
FEWEST_RETRIEVED = 32

T = TypeVar("T")
U = TypeVar("U")


class PairScores(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Bounds of the engine.

    Attributes:
        batch_tokens: of a batch, padding included; 0: each sequence alone.
        max_queue_tokens: of all requests in the house.
        threads: of FAISS; None leaves it to FAISS.
    """

    batch_tokens: int = 512
    max_queue_tokens: int = 32_768
    threads: int | None = None


class Engine:
    """Ranks requests over whichever generation each of them began with. Made, and used, in one event loop.

    Args:
        settings: bounds.
        metrics: told of queues and batches.
        scorer: the cross-encoder, for requests that ask for a second look; warm.
    """

    def __init__(self, settings: EngineSettings, metrics: Metrics, scorer: PairScorer | None = None) -> None:
        self.scorer = scorer
        self._threads = settings.threads
        self._admission = Admission(settings.max_queue_tokens, metrics)
        self._batcher = Batcher(settings.batch_tokens, metrics)
        self._tokenizer = Threads("tokenizer", 1)
        self._search = Threads("search", 1)
        self._candidates = Threads("candidates", CANDIDATE_THREADS)
        self._retrieval_rate = Rate()

    @property
    def failed(self) -> str | None:
        """Why no answers can be expected at the moment; None: all is well."""
        return "the model's thread does not answer" if self.stuck else self._batcher.failed

    @property
    def stuck(self) -> bool:
        """Whether only a restart will help."""
        return self._batcher.stuck

    async def rank(self, serving: Serving, request: RankRequest) -> Ranked:
        """Rank a request; cancelling drops what has not begun.

        Raises:
            NotConfigured: a second look is asked for, and no cross-encoder is loaded.
            Overloaded: too much waits before it.
            UnknownCandidates: the generation holds none of the ids sent.
            DeadlineExceeded: the time was over before there was anything to answer with.
            InferenceFailed: the model failed, or gave something that is not a score.
        """
        if request.top_n is not None and self.scorer is None:
            raise NotConfigured("rerank: no cross-encoder is loaded; start the server with --reranker MODEL")
        stages = Stages()
        with self._admission.admitted(estimates.of_ranking(request), request.deadline) as ticket:
            async with _until(request.deadline):
                found, truncation, degraded = await self._shortlist(serving, request, ticket, stages)
            places, pairs_cut, skipped = await self._second_look(request, found, stages)
        return Ranked(
            places=_finite(places[: request.top_k]),
            exact=found.exact,
            scored=found.scored,
            missing_ids=found.missing_ids,
            degraded=[*([] if found.cache_available else [CACHE_UNAVAILABLE]), *degraded, *skipped],
            truncation=_most(truncation, pairs_cut),
            seconds=stages.seconds,
            plan=found.plan,
        )

    async def score_pairs(self, conversation: Conversation, texts: Sequence[str], deadline: float) -> PairScores:
        """Let the cross-encoder read texts with a context; errors as `rank`."""
        stages = Stages()
        tokens = estimates.of_pairs(conversation, texts)
        with self._admission.admitted(tokens, deadline):
            async with _until(deadline):
                return await self._read_pairs(conversation, texts, deadline, stages)

    async def embed(self, serving: Serving, texts: Sequence[str], deadline: float) -> Embeddings:
        """Encode texts as candidates; errors as `rank`."""
        with self._admission.admitted(estimates.of_texts(texts), deadline):
            async with _until(deadline):
                return await self.encode(serving.ranker, texts, deadline)

    async def encode(self, encoder: TextEncoder, texts: Sequence[str], deadline: float) -> Embeddings:
        """Encode texts as candidates, whatever else is in the house: for work that nobody may refuse."""
        stages = Stages()
        tokens, cut = await self._tokenized(partial(encoder.tokenize_candidates, texts), stages)
        lengths = [len(each) for each in tokens]
        done = await self._batcher.run("candidate", encoder.encode_candidates, tokens, lengths, deadline)
        vectors = np.stack(done.outputs) if done.outputs else np.empty((0, 0), np.float32)
        return Embeddings(vectors, sum(lengths), cut, stages.seconds)

    async def look_up(self, work: partial[T]) -> T:
        """Run something short that reads stored candidates."""
        return await self._candidates.run(work)

    async def probe(self, serving: Serving) -> None:
        """Try the model while it seems to have failed: a success makes the service ready again."""
        if self._batcher.failed is not None and not self.stuck:
            await self.encode(serving.ranker, ["hello"], math.inf)

    def close(self) -> None:
        """Finish what has begun, drop what waits."""
        for each in (self._tokenizer, self._batcher, self._search, self._candidates):
            each.close()

    async def _shortlist(
        self, serving: Serving, request: RankRequest, ticket: Ticket, stages: Stages
    ) -> tuple[Shortlist, Truncation, list[str]]:
        """The best by late score; what was cut; what the answer does without."""
        if request.candidates is not None:
            return await self._over_given(serving, request, ticket, stages)
        context, truncation = await self._tokenized(
            partial(serving.ranker.tokenize_context, request.conversation), stages
        )
        with stages.timed("encode"):
            codes, waited = await self._codes(serving, context, request.deadline)
        stages.move("encode", "queue", waited)
        request, degraded = self._affordable(serving, request)
        retrieved = await self._search.run(
            partial(retrieval.retrieve_rows, serving, request, codes, stages, self._threads), stages
        )
        if retrieved.plan in ("index", "selector"):
            self._retrieval_rate.learn(request.retrieve_k, stages.seconds["retrieve"])
        found = await self._candidates.run(
            partial(retrieval.over_generation, serving, request, codes, retrieved, stages), stages
        )
        return found, truncation, degraded

    async def _over_given(
        self, serving: Serving, request: RankRequest, ticket: Ticket, stages: Stages
    ) -> tuple[Shortlist, Truncation, list[str]]:
        own = [given.text for _, given in shortlist.kept(request) if given.text is not None]

        def tokenize() -> tuple[tuple[list[int], Truncation], tuple[list[list[int]], int]]:
            ranker = serving.ranker
            return ranker.tokenize_context(request.conversation), ranker.tokenize_candidates(own) if own else ([], 0)

        (context, truncation), (tokens, cut) = await self._tokenized(tokenize, stages)
        with stages.timed("encode"):
            (codes, one), (texts, other) = await _both(
                self._codes(serving, context, request.deadline),
                self._vectors_of(serving, own, tokens, request.deadline, ticket, stages),
            )
        stages.move("encode", "queue", max(one, other))
        stages.add("encode", -min(stages.seconds["encode"], stages.seconds["fetch"]))  # it was counted in both
        found = await self._candidates.run(
            partial(shortlist.over_given, serving, request, codes, texts, cut, stages), stages
        )
        return found, replace(truncation, candidates=found.cut), []

    async def _codes(self, serving: Serving, context: list[int], deadline: float) -> tuple[NDArray[np.float32], float]:
        """Context vectors (M, D), and the seconds they waited; equal contexts of the same time are encoded once."""
        forward = serving.ranker.encode_contexts
        done = await self._batcher.run("context", forward, [context], [len(context)], deadline, tuple(context))
        return done.outputs[0], done.waited

    async def _vectors_of(
        self,
        serving: Serving,
        texts: list[str],
        tokens: list[list[int]],
        deadline: float,
        ticket: Ticket,
        stages: Stages,
    ) -> tuple[shortlist.Texts, float]:
        """Vectors of texts, those that are known and the others encoded; and the seconds these waited."""
        if not texts:
            return shortlist.known_texts(serving, texts, stages), 0.0
        known = await self._candidates.run(partial(shortlist.known_texts, serving, texts, stages))
        wanted = [tokens[at] for at in known.new]
        lengths = [len(each) for each in wanted]
        ticket.lower(sum(lengths))
        if not wanted:
            return known, 0.0
        done = await self._batcher.run("candidate", serving.ranker.encode_candidates, wanted, lengths, deadline)
        # A fresh vector is rounded as a stored one is, so that both score alike.
        known.vectors[known.new] = _rounded(np.stack(done.outputs), serving.generation.manifest.dtype)
        if serving.loaded.texts is not None:
            serving.loaded.texts.write([texts[at] for at in known.new], known.vectors[known.new])
        return known, done.waited

    def _affordable(self, serving: Serving, request: RankRequest) -> tuple[RankRequest, list[str]]:
        """The request with as many candidates to retrieve as there is time for."""
        if serving.generation.index is None or request.exact or math.isinf(request.deadline):
            return request, []
        seconds = SHARE_FOR_RETRIEVAL * (request.deadline - time.monotonic())
        predicted = self._retrieval_rate.predict(request.retrieve_k)
        if predicted <= seconds:
            return request, []
        self._retrieval_rate.doubt()
        fewest = max(request.depth, FEWEST_RETRIEVED)
        reduced = max(fewest, int(request.retrieve_k * max(0.0, seconds) / predicted))
        if reduced >= request.retrieve_k:
            return request, []
        return replace(request, retrieve_k=reduced), [RETRIEVE_K_REDUCED]

    async def _second_look(
        self, request: RankRequest, found: Shortlist, stages: Stages
    ) -> tuple[list[Place], Truncation, list[str]]:
        """The shortlist with its first `top_n` in the cross-encoder's order; what was cut; what was left out."""
        places = found.places
        first = places[: request.top_n or 0]
        if self.scorer is None or not first:
            return places, Truncation(), []
        try:
            async with _until(request.deadline):
                read = await self._read_pairs(
                    request.conversation, [place.text for place in first], request.deadline, stages, may_skip=True
                )
        except DeadlineExceeded:  # there is an answer already
            return places, Truncation(), [RERANK_SKIPPED]
        return rerank(first, read.scores) + places[len(first) :], read.truncation, []

    async def _read_pairs(
        self,
        conversation: Conversation,
        texts: Sequence[str],
        deadline: float,
        stages: Stages,
        may_skip: bool = False,
    ) -> PairScores:
        """Score texts by the cross-encoder.

        Raises:
            NotConfigured: there is none.
            DeadlineExceeded: the time is over; with `may_skip` also as soon as it is seen that it will be.
        """
        if self.scorer is None:
            raise NotConfigured("no cross-encoder is loaded; start the server with --reranker MODEL")
        pairs, truncation = await self._tokenized(
            partial(self.scorer.tokenize_pairs, conversation, texts), stages, "rerank"
        )
        lengths = [
            len(pairs.contexts[owner]) + len(candidate)
            for owner, candidate in zip(pairs.owners, pairs.candidates, strict=True)
        ]
        if may_skip and time.monotonic() + self._batcher.predict("pair", lengths) > deadline:
            self._batcher.doubt("pair")
            raise DeadlineExceeded("reranking would take longer")
        each = [pairs.take([at]) for at in range(len(lengths))]
        with stages.timed("rerank"):
            done = await self._batcher.run("pair", _Reads(self.scorer), each, lengths, deadline)
        stages.move("rerank", "queue", done.waited)
        return PairScores(np.array(done.outputs, np.float32), truncation, sum(lengths), stages.seconds)

    async def _tokenized(self, work: Any, stages: Stages, stage: str = "tokenize") -> Any:
        def timed() -> Any:
            with stages.timed(stage):
                return work()

        return await self._tokenizer.run(timed, stages)


@dataclass(frozen=True)
class _Reads:
    """A cross-encoder's forward over pairs of several requests; equal for the same cross-encoder."""

    scorer: PairScorer

    def __call__(self, pairs: list[Pairs]) -> NDArray[np.float32]:
        return self.scorer.score_pairs(Pairs.join(pairs))


@asynccontextmanager
async def _until(deadline: float) -> AsyncIterator[None]:
    """End the block with DeadlineExceeded when the time is over."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded("before it began")
    try:
        async with asyncio.timeout(None if math.isinf(left) else left):
            yield
    except TimeoutError:
        raise DeadlineExceeded("before there was an answer") from None


async def _both(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """Results of two coroutines that run side by side; the first error ends both."""
    first, second = asyncio.ensure_future(one), asyncio.ensure_future(other)
    try:
        return await asyncio.gather(first, second)
    finally:
        first.cancel()
        second.cancel()


def _rounded(vectors: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    try:
        return rounded(vectors, dtype)
    except BuildError as error:
        raise InferenceFailed(str(error)) from error


def _most(one: Truncation, other: Truncation) -> Truncation:
    """What the two encoders did not see, whichever saw less."""
    return Truncation(max(one.turns, other.turns), max(one.tokens, other.tokens), max(one.candidates, other.candidates))


def _finite(places: list[Place]) -> list[Place]:
    if not all(math.isfinite(place.late) for place in places):
        raise InferenceFailed("a score is not finite")
    return places
