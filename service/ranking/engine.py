"""The way of a request: contexts and candidates in, rankings out. Knows no HTTP.

A request goes from stage to stage on the event loop. Whatever takes longer than a moment runs beside it:

    tokenizer    one thread: texts to token ids, but for short ones; one more thread for long ones (forwards.py)
    model        one thread: every forward pass of every model, batched over requests (scheduler.py)
    search       one thread: scans and FAISS, and the scores of vectors that are on this machine (retrieval.py)
    candidates   a few threads: stored texts, vectors from Redis and their scores (given.py, retrieval.py)
"""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.generation.words import Words
from polyrank.model.errors import InvalidInput
from polyrank.model.rankers.classifier import Classifier, shares
from polyrank.model.representations import Representations
from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.model.text.reading import finish, letters_worth, one_by_one
from polyrank.service.caching.redis_server import Budget
from polyrank.service.errors import DeadlineExceeded, InferenceFailed, NotConfigured, TextsLeft, TimeTooShort
from polyrank.service.live.models import LateScorer, PairScorer
from polyrank.service.observe.metrics import Metrics
from polyrank.service.observe.tracing import OFF, Tracing
from polyrank.service.ranking import given, prices, selection
from polyrank.service.ranking.admission import Admission, Ticket
from polyrank.service.ranking.classes import Classifying
from polyrank.service.ranking.desk import Desk
from polyrank.service.ranking.explaining import Explained, Explaining, GatheredRequest
from polyrank.service.ranking.forwards import CountedContext, Forwards, PairScores
from polyrank.service.ranking.parts import EncodeContext, Serving, Stock
from polyrank.service.ranking.pool import Pool
from polyrank.service.ranking.scheduler import TURN_BATCHES
from polyrank.service.ranking.second_stage import LateScores, SecondStage
from polyrank.service.ranking.stages import ANSWER_SECONDS, Timings, once, side_by_side, until
from polyrank.service.ranking.values import ExplainRequest, Ranked, RankedCandidate, RankRequest
from polyrank.service.ranking.words import ListWords, list_words

T = TypeVar("T")


class Classes(NamedTuple):
    """Probabilities of classes (N, C), what the model did not see, how many tokens it saw, and seconds by stage."""

    probabilities: NDArray[np.float32]
    truncation: Truncation
    tokens: int
    seconds: dict[str, float]


class Embeddings(NamedTuple):
    """What was made of N texts, how many tokens it saw, how many texts lost their end, and seconds by stage."""

    made: Representations
    tokens: int
    cut: int
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Bounds of the engine; see `Scheduler`, `Admission` and `Desk`."""

    batch_tokens: int = 512
    max_queue_tokens: int = 262_144
    threads: int | None = None  # of FAISS; None leaves it to FAISS
    min_searched: float = 0.0  # an answer of parts that hold less than this share of the pool is refused


class Engine:
    """Ranks requests over whichever generation each of them began with. Made, and used, in one event loop.

    Attributes:
        scorer: the cross-encoder, warm; None: no request may ask for it.
        classifier: the same of what tells classes.
    """

    def __init__(
        self,
        settings: EngineSettings,
        metrics: Metrics,
        scorer: PairScorer | None = None,
        tracing: Tracing = OFF,
        classifier: Classifier | None = None,
    ) -> None:
        self.scorer, self.classifier = scorer, classifier
        self.batch_tokens = settings.batch_tokens
        self._metrics = metrics
        self._forwards = Forwards(settings.batch_tokens, metrics, tracing)
        turn = TURN_BATCHES * settings.batch_tokens
        models = self._forwards.scheduler
        self._admission = Admission(settings.max_queue_tokens, turn, metrics, lambda: models.done_tokens)
        self._desk = Desk(settings.threads, settings.min_searched, metrics)
        self._second_stage = SecondStage(self._forwards, self._desk.candidates)
        self._explaining = Explaining(self._forwards, self._desk.candidates)
        self._explains = asyncio.Lock()

    async def rank(self, serving: Serving, request: RankRequest) -> Ranked:
        """Rank a request; cancelling drops what has not begun.

        Raises:
            NotConfigured: the cross-encoder is asked for, and none is loaded.
            Overloaded: too much waits before it.
            UnknownCandidates: the generation holds none of the ids sent.
            DeadlineExceeded: the time was over before there was anything to answer with.
            TextsLeft: the same, but some of the texts were encoded, and the same request goes on from there.
            TimeTooShort: it sends more texts than fit its time, and no cache has room for them, or there is not even
                time to tokenise them.
            TooManyForExact: the second stage cannot score every candidate in reasonable time.
            InferenceFailed: the model failed, or gave something that is not a score.
            VectorsDamaged: stored vectors gave a score that cannot be.
            ShardsMissing: too much of a pool that is cut into parts is missing.
        """
        scorer = None if request.top_n is None else self._required_scorer()
        timings = Timings()
        texts = None if request.candidates is None else await self._look_up_texts(serving, request, timings)
        new = 0 if texts is None else prices.text_tokens(texts.new_texts)
        kept = new if texts is not None and texts.resumes else 0
        late = prices.late_tokens(serving.ranker, request, serving.snapshot.count)
        estimated = prices.ranking_tokens(request) + new + late
        with self._admission.admitted(estimated, request.deadline, kept) as ticket:
            fill = None
            with self._saying_what_is_kept(texts):
                async with until(request.deadline):
                    if texts is None:
                        ranked, fill = await self._rank_pool(serving, request, ticket, timings)
                    else:
                        ranked = await self._rank_given(serving, request, texts, timings)
            if scorer is not None:
                ranked = await self._rerank(scorer, serving.generation.words, request, ranked, timings)
            if fill is not None:
                ranked = await fill(ranked)
        return replace(ranked, places=_finite(selection.selected(request, ranked.places)), seconds=timings.seconds)

    async def _rank_pool(
        self, serving: Serving, request: RankRequest, ticket: Ticket, timings: Timings
    ) -> tuple[Ranked, Callable[[Ranked], Coroutine[Any, Any, Ranked]] | None]:
        """Rank the generation's candidates by vectors and, where they count, by words.

        Also returns what fills the groups once later stages have ordered the candidates; None: there are no groups.
        """
        context, truncation = await self._tokenize_context(serving.ranker, request.conversation, timings)
        encode_context = once(partial(self._read_context, serving.ranker, context, request.deadline))
        pool = self.pool(serving, request.deadline, request.budget)
        search = partial(self._search_round, pool, encode_context=encode_context, timings=timings)
        found, seconds = await search(request)
        ranked = replace(found, truncation=truncation, tokens=len(context))
        if request.filter is not None and not found.places and found.searched is None:  # a missing part may have it
            ranked = replace(ranked, notes=await pool.filter_notes(request.filter))
        if request.grouping is None:
            return ranked, None
        may_search = partial(self._may_search, serving, ticket)
        return ranked, partial(_fill, selection.Filling(request, found.places), search, may_search, seconds)

    def _may_search(self, serving: Serving, ticket: Ticket, request: RankRequest, seconds: float) -> bool:
        """Whether there is time for one more search, of which the last has taken so many seconds, and room for it."""
        if time.monotonic() + 2 * seconds > request.deadline - ANSWER_SECONDS:
            return False
        tokens = prices.round_tokens(serving.ranker, request, serving.snapshot.count)
        return self._admission.searches_again(ticket, tokens, request.deadline)

    def pool(self, serving: Serving, deadline: float, budget: Budget | None = None) -> Pool:
        """Return what asks the parts of a pool until a deadline."""
        return Pool(self._desk, serving, serving.at(deadline, budget))

    async def _search_round(
        self, pool: Pool, request: RankRequest, *, encode_context: EncodeContext, timings: Timings
    ) -> tuple[Ranked, float]:
        """Search the pool once; returns what was found, and the seconds that the search has taken, with waiting."""
        began = time.monotonic()
        ranked = await pool.rank(request, encode_context, self._second_stage, timings)
        return ranked, time.monotonic() - began

    async def _tokenize_context(
        self, ranker: LateScorer, conversation: Conversation, timings: Timings
    ) -> tuple[list[int], Truncation]:
        return await self._forwards.tokenize(ranker.context_steps(conversation), conversation.letters, timings)

    async def _read_list_words(
        self, serving: Serving, request: RankRequest, texts: Sequence[str], stored: Stock, timings: Timings
    ) -> ListWords | None:
        """Read what words say for the texts that were sent and, behind them, for what is stored of ids beside them.

        None where words do not count, or ids came alone: they count as in a search, so `stored` knows.
        """
        words = serving.generation.words
        if words is None or not texts:
            return None
        there = await self._desk.measured("fetch", partial(stored.candidates, stored.every), timings)
        steps = list_words(words, request.conversation, [*texts, *(each.text for each in there)])
        return await self._desk.in_steps(steps, "score", timings)

    async def _read_context(
        self, ranker: LateScorer, context: list[int], deadline: float, timings: Timings
    ) -> CountedContext:
        return CountedContext(await self._forwards.context(ranker, context, deadline, timings), len(context))

    async def _look_up_texts(self, serving: Serving, request: RankRequest, timings: Timings) -> given.TextVectors:
        """Look up the vectors of the texts sent. This comes before admission, which counts the work that is left."""
        async with until(request.deadline):
            return await self._desk.candidates.run(partial(given.look_up, serving, request, timings), timings)

    async def _rank_given(
        self, serving: Serving, request: RankRequest, texts: given.TextVectors, timings: Timings
    ) -> Ranked:
        """Rank the candidates sent, as `_rank_pool` does; new texts are encoded beside the context."""
        gathered = await self._gather_given(serving, request, texts, timings)
        return await self._place_given(serving, request, gathered, timings)

    async def _gather_given(
        self, serving: Serving, request: RankRequest, texts: given.TextVectors, timings: Timings
    ) -> GatheredRequest:
        """Encode the context and the new texts, and gather all that is known of the candidates sent."""
        context, truncation = await self._tokenize_context(serving.ranker, request.conversation, timings)
        tokens, cut = await self._forwards.tokenize_candidates(serving.ranker, texts.texts, request.deadline, timings)
        new = [tokens[at] for at in texts.new.tolist()]
        encode_context = partial(self._read_context, serving.ranker, context, request.deadline)
        encode_texts = partial(self._encode_new, serving.ranker, texts, new, request.deadline)
        stored = await self._look_up_ids(serving, request, texts, timings)
        read_words = partial(self._read_list_words, serving, request, texts.texts, stored)
        read_texts = partial(side_by_side, encode_texts, read_words)
        encoded, (_, words) = await side_by_side(encode_context, read_texts, timings)
        gather = partial(given.gather, serving, request, texts, words, stored, timings)
        sent = await self._desk.candidates.run(gather, timings)
        return GatheredRequest(
            encoded, sent, replace(truncation, candidates=cut), encoded.tokens + sum(map(len, tokens))
        )

    async def _place_given(
        self, serving: Serving, request: RankRequest, gathered: GatheredRequest, timings: Timings
    ) -> Ranked:
        """Score what was gathered, by the second stage if the model has one, and order it."""
        context, sent = gathered.context, gathered.sent
        late = LateScores(None, [])
        if serving.ranker.late_rows is not None and sent.made.late is None:
            late = LateScores(None, ["late_failed"])  # the answer says as well that a cache is not available
        elif serving.ranker.late_rows is not None:
            count, deadline = len(sent.known), request.deadline
            late = await self._second_stage.scores(serving.ranker, context, count, sent.take, deadline, timings)
        rank = partial(given.rank, request, context.encoding.codes, sent, late.scores, timings)
        ranked = await self._desk.candidates.run(rank, timings)
        ranked = self.pool(serving, request.deadline).with_missing(ranked, sent.stored.lost)
        if late.degraded:
            ranked = replace(ranked.without(*late.degraded), exact=False)
        return replace(ranked, truncation=gathered.truncation, tokens=gathered.tokens)

    async def _look_up_ids(
        self, serving: Serving, request: RankRequest, texts: given.TextVectors, timings: Timings
    ) -> Stock:
        """Look up what is stored of the candidates that came by their ids alone.

        Beside texts they are a list with these. Else their words count as in a search, and are looked up, too.
        """
        said = request.conversation if texts.ids and not texts.texts else None
        return await self.pool(serving, request.deadline, request.budget).stored(texts.ids, said, timings)

    async def _encode_new(
        self, ranker: LateScorer, texts: given.TextVectors, new: list[list[int]], deadline: float, timings: Timings
    ) -> None:
        """Encode the texts that no cache knew. What a batch makes of them is kept at once, however the request ends."""
        keeping: list[Future[None]] = []

        def keep(positions: list[int], outputs: list[Representations]) -> None:
            keeping.append(self._desk.candidates.submit(partial(texts.keep, positions, outputs)))

        await self._forwards.candidates(ranker, new, deadline, timings, keep, texts.resumes)
        for kept in keeping:
            await asyncio.shield(asyncio.wrap_future(kept))

    @contextmanager
    def _saying_what_is_kept(self, texts: given.TextVectors | None) -> Iterator[None]:
        """Count what the block leaves in the cache if it ends without an answer, and say so if its time was over."""
        try:
            yield
        except (DeadlineExceeded, asyncio.CancelledError) as error:
            if texts is None or not texts.resumes or not texts.encoded:
                raise
            self._metrics.count_kept(texts.encoded)
            if isinstance(error, asyncio.CancelledError):
                raise
            raise TextsLeft(int(texts.known.sum()), len(texts.texts)) from None

    async def _rerank(
        self, scorer: PairScorer, words: Words | None, request: RankRequest, ranked: Ranked, timings: Timings
    ) -> Ranked:
        """Put the first `top_n` in the cross-encoder's order, or say why not: there is an answer already."""
        first, rest = ranked.places[: request.top_n], ranked.places[request.top_n :]
        if not first:
            return ranked
        texts, end = [place.text for place in first], request.deadline - ANSWER_SECONDS
        try:
            async with until(end):
                read = await self._read_pairs(
                    scorer, words, request.conversation, texts, end, timings, ranked.turns_share, within=end
                )
        except (DeadlineExceeded, TimeTooShort):
            return ranked.without("rerank_skipped_deadline")
        except InferenceFailed:
            return ranked.without("rerank_failed")
        truncation = _most(ranked.truncation, read.truncation)
        return replace(ranked, places=_in_order(first, read.scores) + rest, truncation=truncation)

    async def score_pairs(
        self, words: Words | None, conversation: Conversation, texts: Sequence[str], deadline: float
    ) -> PairScores:
        """Let the cross-encoder read texts with a context; `words` of the generation served. Errors as `rank`."""
        scorer = self._required_scorer()
        with self._admission.admitted(prices.pair_tokens(conversation, texts), deadline):
            async with until(deadline):
                return await self._read_pairs(scorer, words, conversation, texts, deadline, Timings())

    async def _read_pairs(
        self,
        scorer: PairScorer,
        words: Words | None,
        conversation: Conversation,
        texts: Sequence[str],
        deadline: float,
        timings: Timings,
        turns_share: float | None = None,
        within: float = math.inf,
    ) -> PairScores:
        """Do what `Forwards.pairs` does; if the cross-encoder has evidence, words count in the scores as well.

        words: of the generation, which say how rare a word is; None: it holds none, and the pairs alone count.
        turns_share: how much of their weights the words of the turns keep; None: the texts are a list that says it.
        """

        async def read_pairs(own: Timings) -> PairScores:
            return await self._forwards.pairs(scorer, conversation, texts, deadline, own, within)

        async def read_words(own: Timings) -> NDArray[np.float32]:
            steps = list_words(counted, conversation, texts, turns_share)
            return (await self._desk.in_steps(steps, "rerank", own)).values

        if scorer.evidence is None or words is None:
            return await read_pairs(timings)
        counted = replace(words, evidence=scorer.evidence)
        read, values = await side_by_side(read_pairs, read_words, timings)
        return read._replace(scores=scorer.evidence.scores(read.scores, values), seconds=timings.seconds)

    async def explain(self, serving: Serving, request: ExplainRequest) -> Explained:
        """Take apart the scores that `rank` gives to the candidates sent, one request at a time; errors as `rank`.

        Raises:
            TooMuchToExplain: it asks for more forward passes than fit into its time.
            ShardsMissing: candidates may be on parts that do not answer.
        """
        ranking, timings = request.ranking, Timings()
        scorer = None if request.cross is None else self._required_scorer()
        texts = await self._look_up_texts(serving, ranking, timings)
        new = prices.text_tokens(texts.new_texts)
        late = prices.late_tokens(serving.ranker, ranking, serving.snapshot.count)
        estimated = prices.ranking_tokens(ranking) + new + late + prices.explaining_tokens(request)
        with self._admission.admitted(estimated, ranking.deadline):
            async with until(ranking.deadline):
                with timings.queued():
                    await self._explains.acquire()
                try:
                    gathered = await self._gather_given(serving, ranking, texts, timings)
                    if lost := gathered.sent.stored.lost:
                        raise serving.shards_missing(lost)
                    ranked = await self._place_given(serving, ranking, gathered, timings)
                    if ranked.lacks_second_stage:
                        raise DeadlineExceeded("before the second stage")
                    ranked = replace(ranked, places=_finite(ranked.places))
                    explained = await self._explaining.explain(serving, request, gathered, ranked, timings)
                    if scorer is not None:
                        share = ranked.turns_share
                        explained = await self._explain_pairs(serving, scorer, request, explained, share, timings)
                finally:
                    self._explains.release()
        return replace(explained, seconds=timings.seconds)

    async def _explain_pairs(
        self,
        serving: Serving,
        scorer: PairScorer,
        request: ExplainRequest,
        explained: Explained,
        turns_share: float,
        timings: Timings,
    ) -> Explained:
        """Add what the cross-encoder says, and what it would say without parts of the context."""
        conversation, deadline = request.ranking.conversation, request.ranking.deadline
        texts = [each.place.text for each in explained.candidates]
        words = serving.generation.words
        read = await self._read_pairs(scorer, words, conversation, texts, deadline, timings, turns_share)
        counted = None
        if words is not None and scorer.evidence is not None:
            counted = replace(words, evidence=scorer.evidence.sharing(turns_share))
        return await self._explaining.explain_pairs(counted, scorer, request, explained, read.scores, timings)

    async def classify(self, conversation: Conversation, texts: Sequence[str], deadline: float) -> Classes:
        """Tell the classes of texts, each beside the conversation or as its last turn; errors as `rank`."""
        classifier, timings = self.required_classifier(), Timings()
        with self._admission.admitted(prices.class_tokens(classifier, conversation, texts), deadline):
            async with until(deadline):
                told = await Classifying(self._forwards, deadline, timings).logits(classifier, conversation, texts)
        return Classes(shares(told.logits), told.truncation, told.tokens, timings.seconds)

    async def embed(self, serving: Serving, texts: Sequence[str], deadline: float) -> Embeddings:
        """Encode texts as candidates; errors as `rank`."""
        with self._admission.admitted(prices.text_tokens(texts), deadline):
            async with until(deadline):
                return await self.encode(serving.ranker, texts, deadline)

    async def embed_queries(self, serving: Serving, texts: Sequence[str], deadline: float) -> Embeddings:
        """Encode each text as a context; errors as `rank`, and InvalidInput where a context has several vectors."""
        timings, ranker, conversations = Timings(), serving.ranker, [Conversation.of(text) for text in texts]
        with self._admission.admitted(prices.text_tokens(texts), deadline):
            async with until(deadline):
                read = [await self._tokenize_context(ranker, said, timings) for said in conversations]
                encoded = await self._forwards.contexts(ranker, [tokens for tokens, _ in read], deadline, timings)
        if any(len(each.codes) != 1 for each in encoded):
            why = f"a {ranker.architecture}-encoder makes several vectors of one query, not one"
            raise InvalidInput(f"{why}; ask /rank, or embed texts as documents")
        cut = sum(truncation.tokens > 0 for _, truncation in read)
        vectors = Representations(np.concatenate([each.codes for each in encoded]))
        return Embeddings(vectors, sum(len(tokens) for tokens, _ in read), cut, timings.seconds)

    async def encode(self, ranker: LateScorer, texts: Sequence[str], deadline: float) -> Embeddings:
        """Encode texts as candidates without asking for admission: for work that was admitted elsewhere."""
        timings = Timings()
        tokens, cut = await self._forwards.tokenize_candidates(ranker, texts, deadline, timings)
        parts = await self._forwards.candidates(ranker, tokens, deadline, timings)
        made = Representations.join(parts) if parts else Representations.none(ranker.dim, ranker.late_rows)
        return Embeddings(made, sum(map(len, tokens)), cut, timings.seconds)

    async def tokenize(self, work: Callable[[str], T], texts: Sequence[str], deadline: float) -> list[T]:
        """Call a function for each text, as `Forwards.tokenize` does steps; errors as `rank`."""
        with self._admission.admitted(prices.tokenizer_tokens(texts), deadline):
            async with until(deadline):
                return await self._forwards.tokenize(one_by_one(work, texts), letters_worth(texts), Timings())

    async def probe(self, serving: Serving | None) -> None:
        """Try a model while it seems to have failed: a success makes the service ready again.

        Without a generation the reranker is tried, or the classifier.
        """
        if self.failed is None or self.stuck:
            return
        if serving is None:
            hello = Conversation.of("hello")
            with suppress(InferenceFailed, NotConfigured):
                await self.score_pairs(None, hello, ["hello"], math.inf)
            with suppress(InferenceFailed, NotConfigured):
                await self.classify(hello, ["hello"], math.inf)
            return
        context, _ = finish(serving.ranker.context_steps(Conversation.of("hello")))
        with suppress(InferenceFailed):
            await self._forwards.context(serving.ranker, context, math.inf, Timings())
            await self.encode(serving.ranker, ["hello"], math.inf)

    @property
    def failed(self) -> str | None:
        """Why no answers can be expected at the moment; None: all is well."""
        models = self._forwards.scheduler
        return self._desk.failed or ("the model's thread does not answer" if models.stuck else models.failed)

    @property
    def stuck(self) -> bool:
        """Whether only a restart will help; a search may take long, so only the end of its thread counts."""
        return self._forwards.scheduler.stuck or self._desk.failed is not None

    def close(self) -> None:
        """Finish what has begun, drop what waits."""
        for threads in (self._forwards, self._desk):
            threads.close()

    def required_classifier(self) -> Classifier:
        """Return the classifier; raises NotConfigured where there is none."""
        if self.classifier is None:
            raise NotConfigured("classify: no classifier is loaded; start the server with --classifier MODEL")
        return self.classifier

    def _required_scorer(self) -> PairScorer:
        if self.scorer is None:
            raise NotConfigured("rerank: no cross-encoder is loaded; start the server with --reranker MODEL")
        return self.scorer


async def _fill(
    filling: selection.Filling,
    search: Callable[[RankRequest], Coroutine[Any, Any, tuple[Ranked, float]]],
    may_search: Callable[[RankRequest, float], bool],
    seconds: float,
    ranked: Ranked,
) -> Ranked:
    """Search until the groups are full, or say that they may not be: there is an answer already.

    `seconds` are what the last search has taken; `may_search` tells whether there is time and room for one more.
    """
    filling.places, before = ranked.places, None
    while (more := filling.next_search()) is not None:
        found = None
        # The same search again is as deep as any, and has not gone beyond what was known.
        if more != before and filling.round < selection.MOST_ROUNDS and may_search(more, seconds):
            with suppress(DeadlineExceeded):
                async with until(more.deadline - ANSWER_SECONDS):
                    found, seconds = await search(more)
        if found is None or found.lacks_second_stage != ranked.lacks_second_stage:  # scores of two stages
            return replace(ranked.without("groups_incomplete"), exact=False)
        filling.add(found.places)
        before = more
        ranked = ranked.joined(found, filling.places)
    return ranked


def _in_order(places: Sequence[RankedCandidate], scores: NDArray[np.float32]) -> list[RankedCandidate]:
    """Order candidates by their cross-encoder scores (N,); equal scores keep the order given."""
    order = np.argsort(-scores, kind="stable").tolist()
    return [replace(places[at], cross=float(scores[at])) for at in order]


def _most(one: Truncation, other: Truncation) -> Truncation:
    """Return what the encoder that saw less did not see."""
    return Truncation(max(one.turns, other.turns), max(one.tokens, other.tokens), max(one.candidates, other.candidates))


def _finite(places: list[RankedCandidate]) -> list[RankedCandidate]:
    if not all(math.isfinite(place.score) for place in places):
        raise InferenceFailed("a score is not finite")
    return places
