"""Ranking candidates that were sent along, as texts or by their ids (retrieval.py finds others)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import BuildError, StoreUnavailable
from polyrank.index_builder.vectors.local import DTYPES, rounded_all
from polyrank.model.representations import Additions, Representations, each_of
from polyrank.model.search.topk import TopK, longest_row, top_k
from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.service.caching.redis_server import Budget
from polyrank.service.errors import InferenceFailed, UnknownCandidates
from polyrank.service.live.models import VectorScorer
from polyrank.service.ranking.parts import Serving, Stock
from polyrank.service.ranking.rescoring import LateScores, ListWords, list_words, second_stage
from polyrank.service.ranking.runtime import Runtime
from polyrank.service.ranking.values import Given, Ranked, RankedCandidate, RankRequest
from polyrank.service.scheduling.forwards import CountedContext
from polyrank.service.scheduling.stages import Journey


class TextVectors:
    """Vectors of the candidates that came as texts: those that are stored or cached, and those that the model makes.

    Equal texts have equal vectors, those of a stored one if there is any: encoded in other batches they would differ.
    `ids` are those of the candidates that came without texts.
    """

    def __init__(self, serving: Serving, texts: list[str], ids: list[str], budget: Budget) -> None:
        manifest = serving.generation.manifest
        self._cache, self._dtype, self._late = serving.texts, manifest.dtype, manifest.late
        self.texts, self.ids = texts, ids
        self.cache_available = True  # the cache of texts answered, or there was nothing to ask it
        # (T, D) in the store's dtype; rows of texts that are not known yet have no meaning.
        self.vectors: NDArray[Any] = np.empty((len(texts), serving.ranker.dim), DTYPES[manifest.dtype])
        self.rows: list[NDArray[Any] | None] = [None] * len(texts)  # of each text, if the model has a second stage
        self.known = np.zeros(len(texts), bool)  # whose vector is there
        for part in serving.parts:  # an id says in which part a candidate is, a text does not
            asked = np.flatnonzero(~self.known)
            if (stored := part.texts_here([texts[at] for at in asked.tolist()])) is None:
                break
            self._enter(asked[stored.positions], stored.representations)
        self._read(budget)
        first: dict[str, int] = {}
        self._like: dict[int, list[int]] = {}  # all positions of a new text, by the first
        for at in np.flatnonzero(~self.known).tolist():
            self._like.setdefault(first.setdefault(texts[at], at), []).append(at)
        # Positions of the texts that nobody knew, ascending, of equal ones the first.
        self.new = np.fromiter(self._like, np.int64, len(self._like))

    def _read(self, budget: Budget) -> None:
        """Take over what the cache knows of the texts that are not stored."""
        if self._cache is None:
            return
        asked = np.flatnonzero(~self.known)
        made, known, self.cache_available = self._cache.read([self.texts[at] for at in asked.tolist()], budget)
        self._enter(asked[known], made)

    def _enter(self, positions: NDArray[np.int64], made: Representations) -> None:
        self.vectors[positions], self.known[positions] = made.first, True
        if made.late is not None and made.counts is not None:
            for at, each in zip(positions.tolist(), each_of(made.late, made.counts), strict=True):
                self.rows[at] = each

    @property
    def new_texts(self) -> list[str]:
        """The texts that nobody knew."""
        return [self.texts[at] for at in self.new.tolist()]

    @property
    def made(self) -> Representations:
        """What the model makes of all texts; each is known."""
        if self._late is None:
            return Representations(self.vectors)
        rows = [each for each in self.rows if each is not None]
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        nothing = np.empty((0, self._late.dim), self.vectors.dtype)
        return Representations(self.vectors, np.concatenate([nothing, *rows]), counts)

    def keep(self, positions: list[int], outputs: list[Representations]) -> None:
        """Take in what the model made of texts, by their positions in `new`, and cache it.

        Raises InferenceFailed if a vector is not finite in the store's dtype.
        """
        new = self.new[positions].tolist()
        try:
            # A new vector is rounded as a stored one is, so that both score alike.
            made = rounded_all(Representations.join(outputs), self._dtype)
        except BuildError as error:
            raise InferenceFailed(str(error)) from error
        like = [self._like[at] for at in new]
        number = np.repeat(np.arange(len(new)), list(map(len, like)))
        self._enter(np.array([at for each in like for at in each], np.int64), made.take(number))
        if self._cache is not None:
            self._cache.write([self.texts[at] for at in new], made)


async def look_up(runtime: Runtime, serving: Serving, request: RankRequest, journey: Journey) -> TextVectors:
    """Fetch the vectors of the texts that were sent, as far as they are stored or cached, and sort out the ids."""

    def look() -> TextVectors:
        kept = [given for _, given in _kept(request)]
        texts = [given.text for given in kept if given.text is not None]
        ids = [given.id for given in kept if given.text is None and given.id is not None]
        with journey.timed("fetch"):
            return TextVectors(serving, texts, ids, journey.budget)

    async with journey.in_time():
        return await runtime.candidates.run(look, journey)


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """The candidates that were sent and are known, and what is stored of them."""

    known: list[tuple[int, Given]]  # each with its position in the request
    rows: dict[str, int]  # of those that came by their ids alone and are there, by id, counted from 0
    # What the model makes of all, in their order; without rows for a second stage if some are not to be had.
    made: Representations
    longest: float | None  # a length that no stored vector exceeds; None: it is not known
    additions: Additions | None  # what words add; None: nothing
    turns_share: float  # how much of their weights the words of the turns kept
    missing: list[str]  # ids that the generation does not hold
    cache_available: bool
    stored: Stock  # what is stored of those that came by their ids alone

    def take(self, positions: NDArray[np.int64]) -> tuple[Representations, bool]:
        """Return what is stored of some, and that the caches answered, of which `cache_available` tells."""
        return self.made.take(positions), True


class GatheredRequest(NamedTuple):
    """The context and the candidates of a request, as the model and the store know them."""

    context: CountedContext
    sent: Sent
    truncation: Truncation
    tokens: int


async def gather(
    runtime: Runtime,
    serving: Serving,
    request: RankRequest,
    texts: TextVectors,
    read_stored: Callable[[Conversation | None], Awaitable[Stock]],
    journey: Journey,
) -> GatheredRequest:
    """Encode the context and the new texts, and gather all that is known of the candidates sent.

    read_stored: looks the ids sent up, with their lexical scores after a conversation.

    Raises UnknownCandidates if only ids were sent, and the generation holds none of them.
    """
    ranker, forwards = serving.ranker, runtime.forwards
    context, truncation = await forwards.tokenize_context(ranker, request.conversation, journey)
    tokens, cut = await forwards.tokenize_candidates(ranker, texts.texts, journey)
    # Beside texts, ids are a list with these. Alone, their words count as in a search, and are looked up, too.
    stored = await read_stored(None if texts.texts else request.conversation)
    encode_texts = partial(_encode_new, runtime, ranker, texts, [tokens[at] for at in texts.new.tolist()])
    read_words = partial(_read_words, runtime, serving, request, texts.texts, stored)
    encoded, (_, words) = await journey.side_by_side(
        partial(forwards.context, ranker, context), lambda own: own.side_by_side(encode_texts, read_words)
    )
    sent = await runtime.candidates.run(partial(_sent, serving, request, texts, words, stored, journey), journey)
    return GatheredRequest(encoded, sent, replace(truncation, candidates=cut), encoded.tokens + sum(map(len, tokens)))


async def _encode_new(
    runtime: Runtime, ranker: VectorScorer, texts: TextVectors, new: list[list[int]], journey: Journey
) -> None:
    """Encode the texts that no cache knew. What a batch makes of them is kept at once, however the request ends."""
    keeping: list[Future[None]] = []

    def keep(positions: list[int], outputs: list[Representations]) -> None:
        keeping.append(runtime.candidates.submit(partial(texts.keep, positions, outputs)))

    await runtime.forwards.candidates(ranker, new, journey, keep)
    while keeping:  # none is held while it is waited for: its error holds this frame
        await asyncio.shield(asyncio.wrap_future(keeping.pop(0)))


async def _read_words(
    runtime: Runtime, serving: Serving, request: RankRequest, texts: Sequence[str], stored: Stock, journey: Journey
) -> ListWords | None:
    """Read the lexical scores of the texts that were sent and, behind them, of the stored texts of the ids beside them.

    None where words do not count, or ids came alone: they count as in a search, so `stored` knows.
    """
    words = serving.generation.words
    if words is None or not texts:
        return None
    there = await runtime.candidates.run(partial(stored.candidates, stored.every), journey, "fetch")
    steps = list_words(words, request.conversation, [*texts, *(each.text for each in there)])
    return await runtime.candidates.run_steps(steps, "score", journey)


def _sent(
    serving: Serving,
    request: RankRequest,
    sent_texts: TextVectors,
    words: ListWords | None,
    stored: Stock,
    journey: Journey,
) -> Sent:
    """Gather the candidates that were sent; every text's vector is known.

    `words` are what they say for the texts (T,), and behind them for what is stored; None: they do not count, or ids
    came alone.
    """
    sent, by_id = _kept(request), sent_texts.ids
    row_of = {by_id[at]: row for row, at in enumerate(stored.positions.tolist())}
    missing = [candidate_id for candidate_id in dict.fromkeys(by_id) if candidate_id not in row_of]
    known = [(at, given) for at, given in sent if given.text is not None or given.id in row_of]
    if missing and not known:
        raise UnknownCandidates(missing)
    is_text = np.array([given.text is not None for _, given in known], dtype=bool)
    with journey.timed("fetch"):
        try:
            (of_ids, available), of_texts = stored.gather(stored.every), sent_texts.made
        except StoreUnavailable:  # the rows of a second stage are not to be had
            of_ids, available = stored.gather(stored.every, first_only=True)[0], False
            of_texts = Representations(sent_texts.vectors)
        places = np.empty(len(known), np.int64)
        places[is_text], places[~is_text] = np.arange(is_text.sum()), is_text.sum() + np.arange((~is_text).sum())
        made = Representations.join([of_texts, of_ids]).take(places)
    return Sent(
        known,
        row_of,
        made,
        max(stored.longest, longest_row(sent_texts.vectors)) if by_id else None,
        _additions(serving, words, stored.words, is_text),
        1.0 if words is None else words.turns_share,
        missing,
        available and sent_texts.cache_available,
        stored,
    )


async def place(
    runtime: Runtime, serving: Serving, request: RankRequest, gathered: GatheredRequest, journey: Journey
) -> Ranked:
    """Score what was gathered, by the second stage if the model has one, and order it."""
    context, sent, late = gathered.context, gathered.sent, LateScores(None, [])
    if serving.ranker.late_rows is not None and sent.made.late is None:
        late = LateScores(None, ["late_failed"])  # the answer says as well that a cache is not available
    elif serving.ranker.late_rows is not None:
        late = await second_stage(runtime, serving.ranker, context, len(sent.known), sent.take, journey)
    order = partial(_placed, request, context.encoding.codes, sent, late.scores, journey)
    ranked = await runtime.candidates.run(order, journey)
    if lost := sent.stored.lost:
        ranked = ranked.of_share(serving.searched_without(lost, runtime.settings.min_searched))
    if late.degraded:
        ranked = replace(ranked.without(*late.degraded), exact=False)
    return replace(ranked, truncation=gathered.truncation, tokens=gathered.tokens)


def _placed(
    request: RankRequest, codes: NDArray[np.float32], sent: Sent, late: NDArray[np.float32] | None, journey: Journey
) -> Ranked:
    """Rank the candidates that were sent, by their second stage (N,), or by the context vectors `codes` (M, D)."""
    with journey.timed("score"):
        if late is None:
            best = top_k(sent.made.first, codes, request.depth, longest=sent.longest, additions=sent.additions)
        else:
            best = best_of(late if sent.additions is None else sent.additions.to(late), request.depth)
    with journey.timed("fetch"):
        lexical = None if sent.additions is None else sent.additions.values[best.rows].tolist()
        places = _places([sent.known[at] for at in best.rows.tolist()], sent, best, lexical)
    ranked = Ranked(
        places=places, exact=True, looked_at=len(sent.known), missing_ids=sent.missing, turns_share=sent.turns_share
    )
    return ranked if sent.cache_available else ranked.without("cache_unavailable")


def best_of(scores: NDArray[np.float32], depth: int) -> TopK:
    """Return the best by their scores (N,); equal ones in their order."""
    order = np.argsort(-scores, kind="stable")[:depth]
    return TopK(order, scores[order])


def _additions(
    serving: Serving, of_list: ListWords | None, of_ids: NDArray[np.float32] | None, is_text: NDArray[np.bool_]
) -> Additions | None:
    """Put the values in the order of the candidates; ids that came alone count as they do in a search."""
    if serving.generation.words is None or (of_list is None and of_ids is None):
        return None
    values = np.empty(len(is_text), np.float32)
    if of_list is None:
        values[:] = of_ids
    else:
        values[is_text], values[~is_text] = np.split(of_list.values, [is_text.sum()])
    return Additions(serving.generation.words.evidence.late_weight, values)


def _kept(request: RankRequest) -> list[tuple[int, Given]]:
    """Return the candidates sent, without those to exclude, and the position of each in the request."""
    excluded = set(request.exclude_ids)
    return [(at, given) for at, given in enumerate(request.candidates or ()) if given.id not in excluded]


def _places(
    chosen: list[tuple[int, Given]], sent: Sent, best: TopK, lexical: list[float] | None
) -> list[RankedCandidate]:
    stored_ids = [given.id for _, given in chosen if given.text is None and given.id is not None]
    stored = iter(sent.stored.candidates(np.array([sent.rows[each] for each in stored_ids], np.int64)))
    places = []
    values: Sequence[float | None] = lexical or [None] * len(chosen)
    for (at, given), score, value in zip(chosen, best.scores.tolist(), values, strict=True):
        if given.text is not None:
            places.append(RankedCandidate(given.id, given.text, score, index=at, lexical=value))
        else:
            candidate = next(stored)
            metadata = candidate.metadata
            places.append(RankedCandidate(candidate.id, candidate.text, score, metadata, index=at, lexical=value))
    return places
