"""Explanations of scores: what each token, code and word adds, and what a score loses without parts of the context.

Forward passes run in the models' thread, in the lane "explain"; the rest on the threads "candidates".
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.generation.words import Words
from polyrank.model.errors import InvalidInput
from polyrank.model.explanation import Explanation, Occluded, Unit, units, without
from polyrank.model.lexical.score import Term
from polyrank.model.rankers.lexical import LexicalRanker
from polyrank.model.rankers.networks import CrossRanker, VectorRanker
from polyrank.model.registry import in_words
from polyrank.model.representations import Representations
from polyrank.model.text.assembly import Truncation
from polyrank.model.text.reading import letters_worth
from polyrank.model.text.sequences import PlacedToken
from polyrank.service.errors import DeadlineExceeded
from polyrank.service.live.models import PairScorer
from polyrank.service.ranking import costs, sent_candidates
from polyrank.service.ranking.engine import Pool, finite
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.rescoring import read_pairs
from polyrank.service.ranking.runtime import Runtime
from polyrank.service.ranking.values import ExplainRequest, Ranked, RankedCandidate
from polyrank.service.scheduling.stages import Journey

if TYPE_CHECKING:
    from polyrank.model.explainers import CrossExplainer, VectorExplainer

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ExplainedPair:
    """What a cross-encoder says of a candidate."""

    score: float  # as it would place it
    base: float | None  # the part of the Poly-encoder in a residual one; None: there is none
    units: list[Unit]  # the parts of the context that were left out, one at a time
    drops: Scores  # what the score loses without each of them, (U,). Words count as they did.
    terms: list[Term] | None  # what words add; None: they do not count


@dataclass(frozen=True, slots=True)
class ExplainedCandidate:
    """What the score of a candidate consists of."""

    place: RankedCandidate
    explanation: Explanation  # of the score by vectors, before the late weight
    reply: list[PlacedToken]  # its K tokens; empty: they are not told
    terms: list[Term] | None  # what words add; None: they do not count
    # What the score loses without each of the context's T tokens, (T,), NaN for those that stand for no characters;
    # None: it was not asked for.
    occlusion: Scores | None = None
    pair: ExplainedPair | None = None  # what the cross-encoder says; None: it was not asked


@dataclass(frozen=True, slots=True)
class Explained:
    """An explanation, its candidates in the order sent."""

    tokens: list[PlacedToken]
    candidates: list[ExplainedCandidate]
    unexplained: dict[str, str]  # what is left out, and why
    late_weight: float  # of the score by vectors beside words
    missing_ids: list[str]
    truncation: Truncation
    seconds: dict[str, float] = field(default_factory=dict)


class _Readings(NamedTuple):
    """What was read to explain candidates: tokens, sums over them, and scores without tokens, (T, N)."""

    tokens: list[PlacedToken]
    replies: list[list[PlacedToken]]
    explanations: list[Explanation]
    unexplained: dict[str, str]
    occlusion: Scores | None


async def explain(runtime: Runtime, serving: Serving, request: ExplainRequest, journey: Journey) -> Explained:
    """Take apart the scores that `Engine.rank` gives to the candidates sent, one request at a time; errors as there."""
    ranking = request.ranking
    scorer = None if request.cross is None else runtime.required_scorer()
    journey = await _with_explainers(runtime, [serving.ranker, scorer], journey)
    texts = await sent_candidates.look_up(runtime, serving, ranking, journey)
    tokens = costs.ranking_tokens(ranking, serving.ranker, serving.snapshot.count, scorer) + costs.text_tokens(
        texts.new_texts
    )
    tokens += costs.explaining_tokens(request)
    async with runtime.admitted(journey, tokens), journey.holding(runtime.explains):
        read_stored = partial(Pool(runtime, serving, journey).stored, texts.ids)
        gathered = await sent_candidates.gather(runtime, serving, ranking, texts, read_stored, journey)
        if lost := gathered.sent.stored.lost:
            raise serving.shards_missing(lost)
        ranked = await sent_candidates.place(runtime, serving, ranking, gathered, journey)
        if ranked.lacks_second_stage:
            raise DeadlineExceeded("before the second stage")
        ranked = replace(ranked, places=finite(ranked.places))
        explained = await _explained(runtime, serving, request, gathered, ranked, journey)
        if scorer is not None:
            explained = await _with_pairs(
                runtime, serving.generation.words, scorer, request, explained, ranked.turns_share, journey
            )
    return replace(explained, seconds=journey.seconds)


async def _with_explainers(runtime: Runtime, models: Sequence[object], journey: Journey) -> Journey:
    """Load what explains the scores of models; returns the journey with as much more time as that took.

    The first time, torch may be imported and a network is read, which would use up a request's time.
    """
    began = time.monotonic()
    for model in models:
        if isinstance(model, VectorRanker | CrossRanker) and "explainer" not in vars(model):
            await runtime.loaded(partial(getattr, model, "explainer"), journey)
    return journey.until(journey.deadline + time.monotonic() - began)


async def _explained(
    runtime: Runtime,
    serving: Serving,
    request: ExplainRequest,
    gathered: sent_candidates.GatheredRequest,
    ranked: Ranked,
    journey: Journey,
) -> Explained:
    places = sorted(ranked.places, key=lambda place: place.index or 0)
    ranker = serving.ranker
    if isinstance(ranker, VectorRanker):
        readings = await _read(runtime, ranker, request, gathered, [place.text for place in places], journey)
    elif isinstance(ranker, LexicalRanker):
        why = f"{in_words(ranker.architecture)}: its scores are what words add"
        readings = _Readings([], [[]] * len(places), [Explanation()] * len(places), {"tokens": why}, None)
    else:
        raise InvalidInput(f"the scores of {in_words(ranker.architecture)} cannot be explained")
    words = serving.generation.words
    if words is not None:
        words = replace(words, evidence=words.evidence.sharing(ranked.turns_share))
    tell = partial(_terms, words, request, [place.text for place in places])
    terms, occlusion = await runtime.candidates.run(tell, journey, "score"), readings.occlusion
    candidates = [
        ExplainedCandidate(place, explanation, reply, own, None if occlusion is None else occlusion[:, at])
        for at, (place, explanation, reply, own) in enumerate(
            zip(places, readings.explanations, readings.replies, terms, strict=True)
        )
    ]
    late_weight = 1.0 if words is None else words.evidence.late_weight
    return Explained(
        readings.tokens, candidates, readings.unexplained, late_weight, ranked.missing_ids, ranked.truncation
    )


async def _read(
    runtime: Runtime,
    ranker: VectorRanker,
    request: ExplainRequest,
    gathered: sent_candidates.GatheredRequest,
    texts: Sequence[str],
    journey: Journey,
) -> _Readings:
    conversation, forwards = request.ranking.conversation, runtime.forwards
    explainer: VectorExplainer = ranker.explainer
    placed, _ = await forwards.tokenize(explainer.context_steps(conversation), conversation.letters, journey)
    replies = await forwards.tokenize(explainer.reply_steps(texts), letters_worth(texts), journey)
    ids, reply_ids = [token.id for token in placed], [[token.id for token in each] for each in replies]
    sums, reply_sums = None, [None] * len(texts)
    if explainer.reads_context:
        [sums] = await forwards.explain(explainer.context_sums, [ids], [len(ids)], journey)
    if explainer.reads_replies:
        reply_sums = await forwards.explain(explainer.reply_sums, reply_ids, list(map(len, reply_ids)), journey)
    representations = gathered.sent.representations

    def tell() -> list[Explanation]:
        return [
            explainer.explain(gathered.context.encoding, sums, representations.take([at]), of_reply, own)
            for at, (of_reply, own) in enumerate(zip(reply_sums, reply_ids, strict=True))
        ]

    explanations = await runtime.candidates.run(tell, journey, "score")
    tokens = explainer.context_tokens(placed)
    return _Readings(
        tokens,
        [explainer.reply_tokens(each) for each in replies],
        explanations,
        {str(part): why for part, why in explainer.unexplained.items()},
        await _occluded(runtime, ranker, tokens, placed, representations, journey) if request.occlusion else None,
    )


async def _occluded(
    runtime: Runtime,
    ranker: VectorRanker,
    tokens: Sequence[PlacedToken],
    placed: Sequence[PlacedToken],
    representations: Representations,
    journey: Journey,
) -> Scores:
    """Return what the scores by vectors lose without each token of the context, (T, N)."""
    ids = [token.id for token in placed]
    places = [place for place, token in enumerate(placed) if token.start is not None]
    sequences = [ids, *(without(ids, [place]) for place in places)]
    run = _OccludedContexts(ranker, representations)
    whole, *others = await runtime.forwards.explain(run, sequences, list(map(len, sequences)), journey)
    drops = np.full((len(tokens), len(representations.first)), np.nan)
    positions = [at for at, token in enumerate(tokens) if token.start is not None]
    drops[positions] = [whole - other for other in others]
    return drops


async def _with_pairs(
    runtime: Runtime,
    words: Words | None,
    scorer: PairScorer,
    request: ExplainRequest,
    explained: Explained,
    turns_share: float,
    journey: Journey,
) -> Explained:
    """Add what the cross-encoder says, and what it would say without parts of the context."""
    conversation, texts = request.ranking.conversation, [each.place.text for each in explained.candidates]
    scores = (await read_pairs(runtime, scorer, words, conversation, texts, journey, turns_share)).scores
    if not isinstance(scorer, CrossRanker):
        raise InvalidInput(f"the scores of {in_words(scorer.architecture)} cannot be explained")
    assert request.cross is not None, "it was asked for"
    counted = None
    if words is not None and scorer.evidence is not None:
        counted = replace(words, evidence=scorer.evidence.sharing(turns_share))
    forwards, letters = runtime.forwards, conversation.letters + letters_worth(texts)
    explainer: CrossExplainer = scorer.explainer
    placed, _ = await forwards.tokenize(explainer.context_steps(conversation), conversation.letters, journey, "rerank")
    pairs, _ = await forwards.tokenize(scorer.pair_steps(conversation, texts), letters, journey, "rerank")
    parts = units(placed, request.cross)
    occluded = [
        Occluded(pairs.take([at]), places)
        for at in range(len(texts))
        for places in ((), *(part.places for part in parts))
    ]
    lengths = [len(each.pair.contexts[0]) + len(each.pair.candidates[0]) for each in occluded]
    rows = await forwards.explain(explainer.scores, occluded, lengths, journey, "rerank")
    outputs = np.array(rows).reshape(len(texts), 1 + len(parts), 2)
    weight = 1.0 if counted is None else counted.evidence.late_weight
    terms = await runtime.candidates.run(partial(_terms, counted, request, texts), journey, "rerank")
    explained_pairs = [
        ExplainedPair(
            float(score),
            weight * float(own[0, 1]) if explainer.is_residual else None,
            parts,
            weight * (own[0, 0] - own[1:, 0]),
            words_add,
        )
        for score, own, words_add in zip(scores, outputs, terms, strict=True)
    ]
    candidates = [replace(each, pair=pair) for each, pair in zip(explained.candidates, explained_pairs, strict=True)]
    return replace(explained, candidates=candidates)


@dataclass(frozen=True, eq=False)
class _OccludedContexts:
    """Encodes contexts of which tokens are left out, and scores the same candidates for each."""

    ranker: VectorRanker
    representations: Representations

    def __call__(self, contexts: list[list[int]]) -> list[Scores]:
        encodings = self.ranker.represent_context_batch(contexts)
        return [self.ranker.late_scores(encoding, self.representations).astype(np.float64) for encoding in encodings]


def _terms(words: Words | None, request: ExplainRequest, texts: Sequence[str]) -> list[list[Term] | None]:
    if words is None:
        return [None] * len(texts)
    conversation, statistics = request.ranking.conversation, words.table.statistics
    return [words.evidence.terms(conversation, text, statistics) for text in texts]
