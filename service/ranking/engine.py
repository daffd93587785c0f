"""The way of a request: contexts and candidates in, rankings out. Knows no HTTP.

A request goes from stage to stage on the event loop; whatever takes longer than a moment runs on a thread of the
runtime (runtime.py). `Pool` asks the parts of a pool for one request, and makes one answer of theirs. That is the
answer of one search over all parts, to the bit: every part returns its own best `k` candidates with their scores, so
the best `k` of the pool are among them. Equal scores are ordered by the place in the pool.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import StoreUnavailable
from polyrank.index_builder.generation.candidates import KnownTexts, interleaved
from polyrank.index_builder.index.retrieval import CERTIFICATE_MARGIN
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.pages import Page
from polyrank.index_builder.store.unmatched import Looked, notes
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.representations import Representations
from polyrank.model.text.assembly import Conversation
from polyrank.service.errors import DeadlineExceeded, InferenceFailed, TooManyForExact
from polyrank.service.live.searchable import nothing_of
from polyrank.service.observe.labels import Degraded, Plan
from polyrank.service.ranking import costs, selection, sent_candidates
from polyrank.service.ranking.parts import Lookup, PartMissing, Serving, Stock
from polyrank.service.ranking.rescoring import rerank, second_stage
from polyrank.service.ranking.runtime import Runtime
from polyrank.service.ranking.values import Hits, PoolQuery, Ranked, RankedCandidate, RankRequest
from polyrank.service.scheduling.forwards import ContextOnce
from polyrank.service.scheduling.stages import Journey

Rows = NDArray[np.int64]
T = TypeVar("T")

MOST_LETTERS = 50_000  # of the texts that are looked at for words that the conversation shares; counting takes 10 ms
# Parts give the candidates along with what they find if all of them give so many at most: that spares a second call.
MOST_SENT_ALONG = 128
# Of parts that were searched in different ways the answer names the one that is least sure to find all.
_BY_CARE: tuple[Plan, ...] = ("scan", "matches", "selector", "index")
_NONE: Rows = np.empty(0, np.int64)


class Engine:
    """Ranks requests over whichever generation each of them began with."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def rank(self, serving: Serving, request: RankRequest, journey: Journey) -> Ranked:
        """Rank a request; cancelling drops what has not begun.

        Raises:
            NotConfigured: the cross-encoder is asked for, and none is loaded.
            NotCalibrated: a decision is asked for, and the scores of the last stage say no probability.
            Overloaded: too much waits before it.
            UnknownCandidates: the generation holds none of the ids sent.
            DeadlineExceeded: the time was over before there was anything to answer with.
            TimeTooShort: it sends more texts than fit its time.
            TooManyForExact: the second stage cannot score every candidate in reasonable time.
            InferenceFailed: the model failed, or gave something that is not a score.
            VectorsDamaged: stored vectors gave a score that cannot be.
            ShardsMissing: too much of a pool that is cut into parts is missing.
        """
        runtime, ranker, words = self._runtime, serving.ranker, serving.generation.words
        scorer = None if request.top_n is None else runtime.required_scorer()
        if request.answer_if is not None:
            selection.check_calibrated(ranker, serving.generation.manifest.model.name, scorer)
        texts = (
            None if request.candidates is None else await sent_candidates.look_up(runtime, serving, request, journey)
        )
        new = 0 if texts is None else costs.text_tokens(texts.new_texts)
        tokens = costs.ranking_tokens(request, ranker, serving.snapshot.count, scorer) + new
        pool = Pool(runtime, serving, journey)
        with runtime.admission.admitted(journey, tokens, new):
            async with journey.in_time():
                if texts is None:
                    ids, truncation = await runtime.forwards.tokenize_context(ranker, request.conversation, journey)
                    context = ContextOnce(runtime.forwards, ranker, ids)
                    ranked = await pool.rank(request, context)
                    filling = selection.filling(request, ranked.places)
                    ranked = replace(ranked, truncation=truncation, tokens=len(ids))
                    # A part that is missing may have what a filter lets through.
                    if request.filter is not None and not ranked.places and ranked.searched is None:
                        ranked = replace(ranked, notes=await pool.filter_notes(request.filter))
                else:
                    read_stored = partial(pool.stored, texts.ids)
                    gathered = await sent_candidates.gather(runtime, serving, request, texts, read_stored, journey)
                    ranked = await sent_candidates.place(runtime, serving, request, gathered, journey)
            if remarks := _word_notes(serving, ranked):
                ranked = replace(ranked, notes=[*ranked.notes, *remarks])
            if scorer is not None:
                ranked = await rerank(runtime, scorer, words, request, ranked, journey)
            if texts is None and filling is not None:
                ranked = await pool.filled(filling, ranked, context)
            if request.collapse:  # their texts are compared
                places = await asyncio.to_thread(selection.selected, request, ranked.places)
            else:
                places = selection.selected(request, ranked.places)
        ranked = replace(ranked, places=finite(places), seconds=journey.seconds)
        if request.answer_if is None:
            return ranked
        languages = serving.generation.manifest.languages
        decision = selection.decided(request.answer_if, ranked, ranker, scorer, words is not None, languages)
        return replace(ranked, decision=decision)


def finite(places: list[RankedCandidate]) -> list[RankedCandidate]:
    """Return candidates all of which have scores that are finite; raises InferenceFailed."""
    if not all(math.isfinite(place.score) for place in places):
        raise InferenceFailed("a score is not finite")
    return places


def _word_notes(serving: Serving, ranked: Ranked) -> list[str]:
    """Say it where a lexical model had nothing to go by: the order of its best replies is that of their lengths."""
    words = serving.generation.words
    if words is None or ARCHITECTURES[serving.ranker.architecture].embeds:
        return []
    best = [place for place in ranked.places[:10] if place.lexical is not None]
    texts, values = [place.text for place in best], [place.lexical or 0.0 for place in best]
    if not best or sum(map(len, texts)) > MOST_LETTERS:
        return []
    if words.evidence.rests_on_words(texts, values, words.table.statistics):
        return []
    return ["words: no reply shares a telling word with the conversation; their order says nothing"]


class Pool:
    """A pool, as one request asks its parts."""

    def __init__(self, runtime: Runtime, serving: Serving, journey: Journey) -> None:
        self._runtime, self._serving, self._journey = runtime, serving, journey
        self._is_here = all(part.is_here for part in serving.parts)
        self._seconds = 0.0  # that the last search took, with waiting

    async def rank(self, request: RankRequest, context: ContextOnce) -> Ranked:
        """Search the parts once, and place what they found by the second stage if the model has one.

        Raises:
            DeadlineExceeded: no part answered in time.
            TooManyForExact: every candidate was to be scored by the second stage, and these are too many.
        """
        began, depth = time.monotonic(), request.depth
        ranker, words = self._serving.ranker, self._serving.generation.words
        best, lost = await self._search(request, depth, context)
        reduced, degraded = best.reduced, list[Degraded]()
        if ranker.late_rows is None:
            exact = is_certain(best, depth)
        else:
            exact = best.bound == -np.inf and len(best.rows) == best.looked_at  # no other could be in the answer
            if request.exact and not exact:
                raise TooManyForExact(best.looked_at, costs.most_exact(ranker, request.conversation))
            stock = await self._at_places(best, Lookup(with_vectors=True), self._stage)
            best, lost = self._only(best, stock.positions, lost)
            encoded = await context.encoded(self._journey)
            late = await second_stage(self._runtime, ranker, encoded, len(best.rows), stock.gather, self._stage)
            exact, degraded = late.scores is not None and exact and not lost, late.degraded
            if late.scores is not None:
                best = best.placed_by(late.scores, 1.0 if words is None else words.evidence.late_weight)
        if len(best.rows) > depth:
            best = best.take(np.arange(depth))
        if (candidates := best.candidates) is None:
            stock = await self._at_places(best, Lookup(with_candidates=True), self._journey)
            candidates = await self._read_candidates(stock)
            best, lost = self._only(best, stock.positions, lost)
        if not best.cache_available:
            degraded = ["cache_unavailable", *(reason for reason in degraded if reason != "cache_unavailable")]
        if reduced:
            degraded = [*degraded, "retrieve_k_reduced"]
        values: Sequence[float | None] = [None] * len(best.order) if best.lexical is None else best.lexical.tolist()
        rows = zip(candidates, best.scores.tolist(), values, best.order.tolist(), strict=True)
        places = [
            RankedCandidate(candidate.id, candidate.text, score, candidate.metadata, lexical=lexical, row=row)
            for candidate, score, lexical, row in rows
        ]
        ranked = Ranked(places=places, exact=exact, looked_at=best.looked_at, plan=best.plan, degraded=degraded)
        self._seconds = time.monotonic() - began
        return ranked.of_share(self._searched(lost)) if lost else ranked

    @property
    def _stage(self) -> Journey:
        """The journey in a stage after which candidates are still fetched, unless they are here."""
        return self._journey if self._is_here else self._journey.before_last()

    async def _search(self, request: RankRequest, depth: int, context: ContextOnce) -> tuple[Hits, Set[int]]:
        """Return the best candidates of the parts that answer, and the numbers of the other parts."""
        ranker, parts, words = self._serving.ranker, self._serving.parts, self._serving.generation.words
        late = None
        if ranker.late_rows is not None:
            late = costs.most_exact(ranker, request.conversation) if request.exact else 0
        query = PoolQuery(
            needed=depth,
            retrieve_k=request.retrieve_k,
            exact=request.exact,
            filter=request.filter,
            exclude_ids=request.exclude_ids,
            conversation=None if words is None else request.conversation,
            most_exact=late,
        )
        most = query.depth
        query = replace(query, with_candidates=len(parts) * most <= MOST_SENT_ALONG)
        if len(parts) > 1:  # so that they need not wait for each other
            await context.encoded(self._journey)
        stage = self._stage

        async def ask(part: int, journey: Journey) -> Hits:
            return await parts[part].search(self._runtime, query, context, journey)

        hits = await self._of_each(range(len(parts)), ask, self._journey)
        if not hits and stage.left <= 0:
            raise DeadlineExceeded("before a shard answered")
        missing = frozenset(range(len(parts))) - frozenset(hits)
        if not self._is_here:
            self._runtime.metrics.searched.observe(self._searched(missing))
        return merged(hits, most), missing

    async def filled(
        self, filling: selection.Filling | selection.Deepening, ranked: Ranked, context: ContextOnce
    ) -> Ranked:
        """Search until the groups are full, or texts differ; or say that it was not: there is an answer already."""
        filling.places, before = ranked.places, None
        ranker, count = self._serving.ranker, self._serving.snapshot.count
        while True:
            compares_texts = isinstance(filling, selection.Deepening)
            more = await asyncio.to_thread(filling.next_search) if compares_texts else filling.next_search()
            if more is None:
                return ranked
            deeper, journey = None, self._journey.before_answer()
            # The same search again is as deep as any, and has not gone beyond what was known.
            if (
                more != before
                and filling.round < selection.MOST_ROUNDS
                and 2 * self._seconds <= journey.left
                and self._runtime.admission.searches_again(self._journey, costs.search_tokens(more, ranker, count))
            ):
                with suppress(DeadlineExceeded):
                    async with journey.in_time():
                        deeper = await self.rank(more, context)
            if deeper is None or deeper.lacks_second_stage != ranked.lacks_second_stage:  # scores of two stages
                return replace(ranked.without(filling.reason), exact=False)
            filling.add(deeper.places)
            before, ranked = more, ranked.joined(deeper, filling.places)

    def _only(self, best: Hits, positions: Rows, lost: Set[int]) -> tuple[Hits, Set[int]]:
        """Return those that could be fetched; the parts of the others count as missing from now on."""
        if len(positions) == len(best.rows) or best.parts is None:
            return best, lost
        return best.take(positions), lost | set(np.delete(best.parts, positions).tolist())

    def _searched(self, missing: Collection[int]) -> float:
        return self._serving.searched_without(missing, self._runtime.settings.min_searched)

    async def _read_candidates(self, stock: Stock) -> list[Candidate]:
        """Read all candidates of a stock, beside the event loop if they are not in memory."""
        read = partial(stock.candidates, stock.every)
        return await self._runtime.candidates.run(read, self._journey, "fetch") if self._is_here else read()

    async def _at_places(self, best: Hits, lookup: Lookup, journey: Journey) -> Stock:
        assert best.parts is not None, "`merged` numbers them"
        of_part = {part: np.flatnonzero(best.parts == part) for part in np.unique(best.parts).tolist()}
        return await self._read(of_part, lambda part: lookup._replace(rows=best.rows[of_part[part]]), journey)

    async def stored(self, ids: Sequence[str], conversation: Conversation | None, with_vectors: bool = True) -> Stock:
        """Look candidates up by their ids; with a conversation also their lexical scores after it."""
        of_part = self._serving.by_part(ids)

        def lookup(part: int) -> Lookup:
            own = [ids[at] for at in of_part[part].tolist()]
            return Lookup(ids=own, with_candidates=True, with_vectors=with_vectors, conversation=conversation)

        stock = await self._read(of_part, lookup, self._journey)
        self._searched(stock.lost)
        if stock.lost and not len(stock.positions):
            raise self._serving.shards_missing(stock.lost)
        return stock

    async def candidate(self, candidate_id: str) -> Candidate | None:
        """Return the candidate with an id, if there is one; raises ShardsMissing where its part does not answer."""
        stock = await self.stored([candidate_id], None, with_vectors=False)
        return next(iter(await self._read_candidates(stock)), None)

    async def texts(self, texts: Sequence[str]) -> KnownTexts:
        """Look texts up in all parts that answer; those whose vectors are not to be had count as unknown."""
        of_part = {part: np.arange(len(texts)) for part in range(len(self._serving.parts))}
        lookup = Lookup(texts=texts, with_vectors=True)
        stock = await self._read(of_part, lambda _: lookup, self._journey)
        nothing = KnownTexts(_NONE, nothing_of(self._serving.generation.manifest))
        if not len(stock.positions):
            return nothing
        try:
            representations, _ = await self._runtime.candidates.run(partial(stock.gather, stock.every), self._journey)
        except StoreUnavailable:  # then they are encoded as new ones are
            return nothing
        return KnownTexts(stock.positions, representations)

    async def _read(self, of_part: Mapping[int, Rows], lookup_of: Callable[[int], Lookup], journey: Journey) -> Stock:
        """Look candidates up in parts, each of which may have those at some positions; what two have counts once."""

        async def ask(part: int, own: Journey) -> Stock:
            return await self._serving.parts[part].read(self._runtime, lookup_of(part), own)

        answers = await self._of_each(of_part, ask, journey)
        if len(self._serving.parts) == 1 and answers:
            return answers[0]
        stocks, lost = list(answers.values()), frozenset(of_part) - frozenset(answers)
        positions, first = np.unique(
            np.concatenate([_NONE, *(of_part[part][each.positions] for part, each in answers.items())]),
            return_index=True,
        )
        owner = np.repeat(np.arange(len(stocks)), [len(each.positions) for each in stocks])[first]
        own = np.concatenate([_NONE, *(each.every for each in stocks)])[first]
        words = [each.words for each in stocks if each.words is not None]

        def candidates(numbers: Rows) -> list[Candidate]:
            of = owner[numbers]
            by_stock = [each.candidates(own[numbers][of == at]) for at, each in enumerate(stocks)]
            return list(interleaved(by_stock, of))

        def gather(numbers: Rows, first_only: bool = False) -> tuple[Representations, bool]:
            of, blocks, available = owner[numbers], [nothing_of(self._serving.generation.manifest)], True
            for at, each in enumerate(stocks):
                some, here = each.gather(own[numbers][of == at], first_only=first_only)
                blocks, available = [*blocks, some], available and here
            return Representations.interleaved(blocks, of + 1), available

        return Stock(
            positions=positions,
            words=np.concatenate(words)[first] if words else None,
            longest=max((each.longest for each in stocks), default=0.0),
            candidates=candidates,
            gather=gather,
            lost=lost,
        )

    async def page(
        self, number: int, first: int, limit: int, filter_: Mapping[str, Any] | None
    ) -> tuple[Page, tuple[int, int] | None]:
        """List candidates of a part from a row on; also returns where the next page begins, None: there is none."""
        parts = self._serving.parts
        try:
            page = await parts[number].page(self._runtime, first, limit, filter_, self._journey)
        except PartMissing:
            raise self._serving.shards_missing([number]) from None
        if page.next_row is not None:
            return page, (number, page.next_row)
        return page, (number + 1, 0) if number + 1 < len(parts) else None

    async def filter_notes(self, filter_: Mapping[str, Any]) -> list[str]:
        """Say why a filter lets nothing through; nothing is said where there is no time, or where something passes."""
        parts = self._serving.parts

        async def ask(part: int, journey: Journey) -> Looked:
            return await parts[part].looked(self._runtime, filter_, journey)

        try:
            answers = await self._of_each(range(len(parts)), ask, self._journey.before_answer())
        except DeadlineExceeded:
            return []
        if len(answers) < len(parts):
            return []
        return notes(filter_, reduce(Looked.joined, answers.values()))

    async def _of_each(
        self, parts: Iterable[int], ask: Callable[[int, Journey], Coroutine[Any, Any, T]], journey: Journey
    ) -> dict[int, T]:
        """Ask parts at the same time; returns what those say that answer, and adds the times of the slowest."""
        numbers = list(parts)
        if len(numbers) == 1:  # without a task of its own
            with suppress(PartMissing):
                return {numbers[0]: await ask(numbers[0], journey)}
            return {}
        journeys = [journey.beside() for _ in numbers]
        answers = await asyncio.gather(*map(ask, numbers, journeys), return_exceptions=True)
        journey.add_longest(journeys)
        errors = [each for each in answers if isinstance(each, BaseException) and not isinstance(each, PartMissing)]
        try:
            if errors:
                raise errors[0]
            pairs = zip(numbers, answers, strict=True)
            return {part: answer for part, answer in pairs if not isinstance(answer, BaseException)}
        finally:
            del answers, errors  # an error holds this frame: in a circle, all would stay for long


def is_certain(best: Hits, k: int) -> bool:
    """Whether the k-th score is above everything that was not scored.

    No other candidate's inner product with any code is above the bound.

    Source: docs/explanation/mathematics.md, "Answers from an index".
    """
    if best.bound == -np.inf:
        return True
    if len(best.scores) < k:
        return False
    last = float(best.scores[-1])
    return last > best.bound + CERTIFICATE_MARGIN * max(1.0, abs(last))


def merged(hits: Mapping[int, Hits], k: int) -> Hits:
    """Return the best `k` of what parts, at least one, have found, given by their numbers."""
    every = list(hits.values())
    parts = np.repeat(np.fromiter(hits, np.int64, len(hits)), [len(each.rows) for each in every])
    if len(every) == 1:  # in its order already, and not more than was asked for
        return replace(every[0], parts=parts)
    lexical = [each.lexical for each in every if each.lexical is not None]
    candidates = [each.candidates for each in every if each.candidates is not None]
    whole = Hits(
        order=np.concatenate([each.order for each in every]),
        rows=np.concatenate([each.rows for each in every]),
        scores=np.concatenate([each.scores for each in every]),
        lexical=np.concatenate(lexical) if len(lexical) == len(every) else None,
        looked_at=sum(each.looked_at for each in every),
        bound=max(each.bound for each in every),
        plan=max((each.plan for each in every), key=_BY_CARE.index),
        reduced=any(each.reduced for each in every),
        candidates=list(chain.from_iterable(candidates)) if len(candidates) == len(every) else None,
        cache_available=all(each.cache_available for each in every),
        parts=parts,
    )
    return whole.take(np.lexsort((whole.order, -whole.scores))[:k])
