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
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.generation.words import Words
from polyrank.index_builder.store import unmatched
from polyrank.model.errors import InvalidInput
from polyrank.model.rankers.classifier import Classifier, shares
from polyrank.model.representations import Representations
from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.model.text.steps import Steps, finish, letters_worth, one_by_one, step
from polyrank.service.errors import DeadlineExceeded, InferenceFailed, NotConfigured, TextsLeft, TimeTooShort
from polyrank.service.live.models import LateScorer, PairScorer
from polyrank.service.live.serving import Serving
from polyrank.service.observe.labels import Stage
from polyrank.service.observe.metrics import Metrics
from polyrank.service.observe.tracing import OFF, Tracing
from polyrank.service.ranking import by_parts, given, prices, retrieval, selection
from polyrank.service.ranking.admission import Admission, Ticket
from polyrank.service.ranking.classes import Classifying
from polyrank.service.ranking.explaining import Explained, Explaining, GatheredRequest
from polyrank.service.ranking.forwards import CountedContext, Forwards, PairScores
from polyrank.service.ranking.parts import Served, SetServing
from polyrank.service.ranking.retrieval import Found, PoolSearch, RetrievalBudget, SearchBatch
from polyrank.service.ranking.scheduler import TURN_BATCHES, Scheduler, Work
from polyrank.service.ranking.second_stage import LateScores, SecondStage, deeper
from polyrank.service.ranking.stages import ANSWER_SECONDS, Threads, Timings, once, side_by_side, until
from polyrank.service.ranking.values import ExplainRequest, Ranked, RankedCandidate, RankRequest
from polyrank.service.ranking.words import ListWords, list_words, pool_words

CANDIDATE_THREADS = 4
# Requests that share a pass over the pool: with more, the first of them would wait too long for the last.
MOST_SCANS = 16
# Requests that hold what words say for every row, 4 bytes each, and 8 for each row that a filter lets through: those in
# a pass, and those of the next.
MOST_WORDS = 2 * MOST_SCANS

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
    """Bounds of the engine; see `Scheduler` and `Admission`."""

    batch_tokens: int = 512
    max_queue_tokens: int = 262_144
    threads: int | None = None  # of FAISS; None leaves it to FAISS


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
        self._searches, self._faiss_threads = Scheduler("search", ["search"], MOST_SCANS), settings.threads
        self._candidates = Threads("candidates", CANDIDATE_THREADS)
        self._second_stage = SecondStage(self._forwards, self._candidates)
        self._retrieval = RetrievalBudget()
        self._words = asyncio.Semaphore(MOST_WORDS)
        self._explaining = Explaining(self._forwards, self._candidates)
        self._explains = asyncio.Lock()

    async def rank(self, serving: Served, request: RankRequest) -> Ranked:
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
        self, serving: Served, request: RankRequest, ticket: Ticket, timings: Timings
    ) -> tuple[Ranked, Callable[[Ranked], Coroutine[Any, Any, Ranked]] | None]:
        """Rank the generation's candidates by vectors and, where they count, by words.

        Also returns what fills the groups once later stages have ordered the candidates; None: there are no groups.
        """
        context, truncation = await self._tokenize_context(serving.ranker, request.conversation, timings)
        encode_context = once(partial(self._read_context, serving.ranker, context, request.deadline))
        search = partial(self._search_round, serving, encode_context=encode_context, timings=timings)
        found, seconds = await search(request)
        ranked = replace(found, truncation=truncation, tokens=len(context))
        if not found.places and isinstance(serving, Serving) and request.filter is not None:
            ranked = replace(ranked, notes=await self.filter_notes(serving, request.filter, request.deadline))
        if request.grouping is None:
            return ranked, None
        may_search = partial(self._may_search, serving, ticket)
        return ranked, partial(_fill, selection.Filling(request, found.places), search, may_search, seconds)

    def _may_search(self, serving: Served, ticket: Ticket, request: RankRequest, seconds: float) -> bool:
        """Whether there is time for one more search, of which the last has taken so many seconds, and room for it."""
        if time.monotonic() + 2 * seconds > request.deadline - ANSWER_SECONDS:
            return False
        tokens = prices.round_tokens(serving.ranker, request, serving.snapshot.count)
        return self._admission.searches_again(ticket, tokens, request.deadline)

    async def _search_round(
        self,
        serving: Served,
        request: RankRequest,
        *,
        encode_context: Callable[[Timings], Coroutine[Any, Any, CountedContext]],
        timings: Timings,
    ) -> tuple[Ranked, float]:
        """Search the pool once; returns what was found, and the seconds that the search has taken, with waiting."""
        began = time.monotonic()
        if isinstance(serving, SetServing):
            context = await encode_context(timings)
            ranked = await by_parts.rank(serving, request, context, self._second_stage, timings)
            return ranked, time.monotonic() - began
        await self._read_fields(serving, request, timings)
        async with self._room_for_words(serving, timings):
            read_words = partial(self._read_words, serving, partial(retrieval.read_words, serving, request))
            context, read = await side_by_side(encode_context, read_words, timings)
            affordable = self._retrieval.affordable(serving, request)
            before = timings.seconds["retrieve"]  # reading words and fields
            searched = affordable if serving.ranker.late_rows is None else deeper(serving.ranker, affordable)
            search = PoolSearch(serving, searched, context.encoding.codes, timings, read)
            if serving.ranker.late_rows is None:
                ranked = await self._search_pool(search, retrieval.rank)
            else:
                best = await self._search_pool(search, retrieval.best_of)
        if serving.ranker.late_rows is not None:
            ranked = await self._second_stage.rank(serving, request, context, best, timings)
        if ranked.plan in ("index", "selector"):
            self._retrieval.learn(affordable, timings.seconds["retrieve"] - before)
            if affordable.retrieve_k < request.retrieve_k:
                ranked = ranked.without("retrieve_k_reduced")
        return ranked, time.monotonic() - began

    async def _tokenize_context(
        self, ranker: LateScorer, conversation: Conversation, timings: Timings
    ) -> tuple[list[int], Truncation]:
        return await self._forwards.tokenize(ranker.context_steps(conversation), conversation.letters, timings)

    async def _read_fields(self, serving: Serving, request: RankRequest, timings: Timings) -> None:
        """Read the fields of the filter where they are new: part by part, and not on the search thread."""
        if request.filter is None:
            return
        await self._in_steps(serving.snapshot.reading(request.filter), "retrieve", timings)

    @asynccontextmanager
    async def _room_for_words(self, serving: Serving, timings: Timings) -> AsyncIterator[None]:
        """Wait until few others hold what words say for every row, if they count.

        The block must be short: no text that the caller sent is tokenised, and no candidate is encoded in it.
        """
        if serving.generation.words is None:
            yield
            return
        with timings.queued():
            await self._words.acquire()
        try:
            yield
        finally:
            self._words.release()

    async def _read_words(self, serving: Serving, read: Callable[[], T | None], timings: Timings) -> T | None:
        """Read what words say for every row; None where they do not count."""
        if serving.generation.words is None:
            return None
        return await self._candidates.run(partial(timings.measure, "retrieve", read), timings)

    async def _read_list_words(
        self, serving: Served, request: RankRequest, texts: Sequence[str], stored: given.Stored, timings: Timings
    ) -> ListWords | None:
        """Read what words say for the texts that were sent and, behind them, for what is stored of ids beside them.

        None where words do not count, or ids came alone: they count as in a search, so `stored` knows.
        """
        words = serving.generation.words
        if words is None or not texts:
            return None
        there = await self._candidates.run(partial(timings.measure, "fetch", stored.texts), timings)
        return await self._in_steps(list_words(words, request.conversation, [*texts, *there]), "score", timings)

    async def _in_steps(self, steps: Steps[T], stage: Stage, timings: Timings) -> T:
        """Do steps on the threads "candidates", with the work of others between them."""
        while True:
            is_done, result = await self._candidates.run(partial(timings.measure, stage, partial(step, steps)), timings)
            if is_done:
                return cast(T, result)

    async def _search_pool(self, search: PoolSearch, finish: Callable[[PoolSearch, Found], T]) -> T:
        """Search on the search thread; fetching vectors from Redis would hold it up, so that is done on another."""
        key = search.serving.generation if search.shares else search
        here = search.serving.vectors.are_here
        asked = search, finish if here else lambda _, found: found
        work = Work(SearchBatch(key, self._faiss_threads), [asked], [1])
        with search.timings.queued():  # also while others of the batch are done; its stages are not
            [result] = (await self._searches.run("search", work, math.inf)).outputs
        return result if here else await self._candidates.run(partial(finish, search, result), search.timings)

    async def _read_context(
        self, ranker: LateScorer, context: list[int], deadline: float, timings: Timings
    ) -> CountedContext:
        return CountedContext(await self._forwards.context(ranker, context, deadline, timings), len(context))

    async def _look_up_texts(self, serving: Served, request: RankRequest, timings: Timings) -> given.TextVectors:
        """Look up the vectors of the texts sent. This comes before admission, which counts the work that is left."""
        async with until(request.deadline):
            return await self._candidates.run(partial(given.look_up, serving, request, timings), timings)

    async def _rank_given(
        self, serving: Served, request: RankRequest, texts: given.TextVectors, timings: Timings
    ) -> Ranked:
        """Rank the candidates sent, as `_rank_pool` does; new texts are encoded beside the context."""
        gathered = await self._gather_given(serving, request, texts, timings)
        return await self._place_given(serving, request, gathered, timings)

    async def _gather_given(
        self, serving: Served, request: RankRequest, texts: given.TextVectors, timings: Timings
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
        sent = await self._candidates.run(gather, timings)
        return GatheredRequest(
            encoded, sent, replace(truncation, candidates=cut), encoded.tokens + sum(map(len, tokens))
        )

    async def _place_given(
        self, serving: Served, request: RankRequest, gathered: GatheredRequest, timings: Timings
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
        ranked = await self._candidates.run(rank, timings)
        if isinstance(serving, SetServing):
            ranked = by_parts.with_missing(serving, ranked, sent.stored.lost)
        if late.degraded:
            ranked = replace(ranked.without(*late.degraded), exact=False)
        return replace(ranked, truncation=gathered.truncation, tokens=gathered.tokens)

    async def _look_up_ids(
        self, serving: Served, request: RankRequest, texts: given.TextVectors, timings: Timings
    ) -> given.Stored:
        """Look up what is stored of the candidates that came by their ids alone.

        Beside texts they are a list with these. Else their words count as in a search, and are looked up, too.
        """
        said = request.conversation if texts.ids and not texts.texts else None
        if isinstance(serving, SetServing):
            with timings.timed("fetch"):
                known = await serving.parts.known(serving, texts.ids, said, request.deadline)
            return given.stored_in_parts(known, len(texts.ids))
        look_up = partial(given.stored_here, serving, texts.ids, request.budget)
        if said is None:
            return await self._candidates.run(partial(look_up, None, timings), timings)
        async with self._room_for_words(serving, timings):
            pool = await self._read_words(serving, partial(pool_words, serving, said), timings)
            return await self._candidates.run(partial(look_up, pool, timings), timings)

    async def _encode_new(
        self, ranker: LateScorer, texts: given.TextVectors, new: list[list[int]], deadline: float, timings: Timings
    ) -> None:
        """Encode the texts that no cache knew. What a batch makes of them is kept at once, however the request ends."""
        keeping: list[Future[None]] = []

        def keep(positions: list[int], outputs: list[Representations]) -> None:
            keeping.append(self._candidates.submit(partial(texts.keep, positions, outputs)))

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
            return (await self._in_steps(steps, "rerank", own)).values

        if scorer.evidence is None or words is None:
            return await read_pairs(timings)
        counted = replace(words, evidence=scorer.evidence)
        read, values = await side_by_side(read_pairs, read_words, timings)
        return read._replace(scores=scorer.evidence.scores(read.scores, values), seconds=timings.seconds)

    async def explain(self, serving: Served, request: ExplainRequest) -> Explained:
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
                    if isinstance(serving, SetServing):
                        by_parts.require_all(serving, gathered.sent.stored.lost)
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
        serving: Served,
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

    async def embed(self, serving: Served, texts: Sequence[str], deadline: float) -> Embeddings:
        """Encode texts as candidates; errors as `rank`."""
        with self._admission.admitted(prices.text_tokens(texts), deadline):
            async with until(deadline):
                return await self.encode(serving.ranker, texts, deadline)

    async def embed_queries(self, serving: Served, texts: Sequence[str], deadline: float) -> Embeddings:
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

    async def look_up(self, work: Callable[[], T]) -> T:
        """Call a short function that reads stored candidates."""
        return await self._candidates.run(work, Timings())

    async def read(self, steps: Steps[T], deadline: float) -> T:
        """Read stored candidates in steps; raises DeadlineExceeded."""
        async with until(deadline):
            return await self._in_steps(steps, "fetch", Timings())

    async def filter_notes(self, serving: Serving, filter_: Mapping[str, Any], deadline: float) -> list[str]:
        """Say why a filter lets nothing through; nothing is said where the time is over, or where something passes."""
        with suppress(DeadlineExceeded):
            looked = await self.read(unmatched.looking(serving.snapshot, filter_), deadline - ANSWER_SECONDS)
            return unmatched.notes(filter_, looked)
        return []

    async def probe(self, serving: Served | None) -> None:
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
        return "the model's thread does not answer" if self.stuck else self._forwards.scheduler.failed

    @property
    def stuck(self) -> bool:
        """Whether only a restart will help."""
        return self._forwards.scheduler.stuck

    def close(self) -> None:
        """Finish what has begun, drop what waits."""
        for threads in (self._forwards, self._searches, self._candidates):
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
