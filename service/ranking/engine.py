"""The way of a request: contexts and candidates in, rankings out. Knows no HTTP.

A request goes from stage to stage on the event loop; whatever takes longer than a moment runs on a thread of the
runtime (runtime.py).
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from polyrank.model.registry import ARCHITECTURES
from polyrank.service.errors import DeadlineExceeded
from polyrank.service.ranking import costs, given, selection
from polyrank.service.ranking.parts import EncodeContext, Serving
from polyrank.service.ranking.pool import Pool
from polyrank.service.ranking.rescoring import rerank
from polyrank.service.ranking.runtime import Runtime
from polyrank.service.ranking.values import Ranked, RankRequest, finite
from polyrank.service.scheduling.stages import Journey, once

T = TypeVar("T")

MOST_LETTERS = 50_000  # of the texts that are looked at for words that the conversation shares; counting takes 10 ms


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
        runtime = self._runtime
        scorer = None if request.top_n is None else runtime.required_scorer()
        selection.check_calibrated(request, serving.ranker, serving.generation.manifest.model.name, scorer)
        texts = None if request.candidates is None else await given.look_up(runtime, serving, request, journey)
        new = 0 if texts is None else costs.text_tokens(texts.new_texts)
        late = costs.late_tokens(serving.ranker, request, serving.snapshot.count)
        tokens = costs.ranking_tokens(request, scorer) + new + late
        with runtime.admission.admitted(journey, tokens, new):
            search = _PoolSearch(runtime, serving, request, journey)
            async with journey.in_time():
                if texts is None:
                    ranked = await search.first()
                else:
                    gathered = await given.gather(runtime, serving, request, texts, journey)
                    ranked = await given.place(runtime, serving, request, gathered, journey)
            ranked = replace(ranked, notes=[*ranked.notes, *_of_words(serving, ranked)])
            if scorer is not None:
                ranked = await rerank(runtime, scorer, serving.generation.words, request, ranked, journey)
            if texts is None and (request.grouping is not None or request.collapse):
                ranked = await search.filled(ranked)
            places = await _beside(request, partial(selection.selected, request, ranked.places))
        ranked = replace(ranked, places=finite(places), seconds=journey.seconds)
        counts_words = serving.generation.words is not None
        seen = serving.generation.manifest.languages
        decision = selection.decided(request, ranked, serving.ranker, scorer, counts_words, seen)
        return replace(ranked, decision=decision)


async def _beside(request: RankRequest, work: Callable[[], T]) -> T:
    """Do work on the places of a ranking: on a thread where their texts are compared."""
    return await asyncio.to_thread(work) if request.collapse else work()


def _of_words(serving: Serving, ranked: Ranked) -> list[str]:
    """Say it where a lexical model had nothing to go by: the order of its best replies is that of their lengths."""
    words, best = serving.generation.words, [place for place in ranked.places[:10] if place.lexical is not None]
    if words is None or not best or ARCHITECTURES[serving.ranker.architecture].embeds:
        return []
    if sum(len(place.text) for place in best) > MOST_LETTERS:
        return []
    values = [place.lexical or 0.0 for place in best]
    if words.evidence.rests_on_words([place.text for place in best], values, words.table.statistics):
        return []
    return ["words: no reply shares a telling word with the conversation; their order says nothing"]


class _PoolSearch:
    """Searches the pool for a request: once, and again where groups lack candidates."""

    _encode: EncodeContext
    _filling: selection.Filling | selection.Deepening

    def __init__(self, runtime: Runtime, serving: Serving, request: RankRequest, journey: Journey) -> None:
        self._runtime, self._serving, self._request, self._journey = runtime, serving, request, journey
        self._pool = Pool(runtime, serving, journey)
        self._seconds = 0.0  # that the last search took, with waiting

    async def first(self) -> Ranked:
        """Rank the generation's candidates by vectors and, where they count, by words."""
        request, ranker, forwards = self._request, self._serving.ranker, self._runtime.forwards
        context, truncation = await forwards.tokenize_context(ranker, request.conversation, self._journey)
        self._encode = once(partial(forwards.context, ranker, context))
        found = await self._search(request)
        if request.grouping is not None:
            self._filling = selection.Filling(request, found.places)
        elif request.collapse:
            self._filling = selection.Deepening(request, found.places)
        ranked = replace(found, truncation=truncation, tokens=len(context))
        if request.filter is not None and not found.places and found.searched is None:  # a missing part may have it
            ranked = replace(ranked, notes=await self._pool.filter_notes(request.filter))
        return ranked

    async def filled(self, ranked: Ranked) -> Ranked:
        """Search until the groups are full, or texts differ; or say that it was not: there is an answer already."""
        filling, before = self._filling, None
        filling.places = ranked.places
        while (more := await _beside(self._request, filling.next_search)) is not None:
            found = None
            # The same search again is as deep as any, and has not gone beyond what was known.
            if more != before and filling.round < selection.MOST_ROUNDS and self._may_search(more):
                with suppress(DeadlineExceeded):
                    async with self._journey.before_answer().in_time():
                        found = await self._search(more)
            if found is None or found.lacks_second_stage != ranked.lacks_second_stage:  # scores of two stages
                return replace(ranked.without(filling.reason), exact=False)
            filling.add(found.places)
            before = more
            ranked = ranked.joined(found, filling.places)
        return ranked

    async def _search(self, request: RankRequest) -> Ranked:
        began = time.monotonic()
        ranked = await self._pool.rank(request, self._encode)
        self._seconds = time.monotonic() - began
        return ranked

    def _may_search(self, request: RankRequest) -> bool:
        """Whether there is time for one more search as long as the last, and room for it."""
        if 2 * self._seconds > self._journey.before_answer().left:
            return False
        tokens = costs.round_tokens(self._serving.ranker, request, self._serving.snapshot.count)
        return self._runtime.admission.searches_again(self._journey, tokens)
