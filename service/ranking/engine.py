"""The way of a request: contexts and candidates in, rankings out. Knows no HTTP.

A request goes from stage to stage on the event loop; whatever takes longer than a moment runs on a thread of the
runtime (runtime.py).
"""

import asyncio
from dataclasses import replace

from polyrank.model.registry import ARCHITECTURES
from polyrank.service.ranking import costs, selection, sent_candidates
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.pool import Pool
from polyrank.service.ranking.rescoring import rerank
from polyrank.service.ranking.runtime import Runtime
from polyrank.service.ranking.values import Ranked, RankRequest, finite
from polyrank.service.scheduling.forwards import ContextOnce
from polyrank.service.scheduling.stages import Journey

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
        runtime, ranker, words = self._runtime, serving.ranker, serving.generation.words
        scorer = None if request.top_n is None else runtime.required_scorer()
        if request.answer_if is not None:
            selection.check_calibrated(ranker, serving.generation.manifest.model.name, scorer)
        texts = (
            None if request.candidates is None else await sent_candidates.look_up(runtime, serving, request, journey)
        )
        new = 0 if texts is None else costs.text_tokens(texts.new_texts)
        tokens = costs.ranking_tokens(request, ranker, serving.snapshot.count, scorer) + new
        with runtime.admission.admitted(journey, tokens, new):
            async with journey.in_time():
                if texts is None:
                    read, truncation = await runtime.forwards.tokenize_context(ranker, request.conversation, journey)
                    context, pool = ContextOnce(runtime.forwards, ranker, read), Pool(runtime, serving, journey)
                    ranked = await pool.rank(request, context)
                    filling = selection.filling(request, ranked.places)
                    ranked = replace(ranked, truncation=truncation, tokens=len(read))
                    # A part that is missing may have what a filter lets through.
                    if request.filter is not None and not ranked.places and ranked.searched is None:
                        ranked = replace(ranked, notes=await pool.filter_notes(request.filter))
                else:
                    gathered = await sent_candidates.gather(runtime, serving, request, texts, journey)
                    ranked = await sent_candidates.place(runtime, serving, request, gathered, journey)
            if said := _of_words(serving, ranked):
                ranked = replace(ranked, notes=[*ranked.notes, *said])
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
        seen = serving.generation.manifest.languages
        decision = selection.decided(request.answer_if, ranked, ranker, scorer, words is not None, seen)
        return replace(ranked, decision=decision)


def _of_words(serving: Serving, ranked: Ranked) -> list[str]:
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
