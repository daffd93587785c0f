"""Explanations of scores: what each token, code and word adds, and what a score loses without parts of the context.

Forward passes run in the models' thread, in the lane "explain"; the rest on the threads "candidates".
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.generation.words import Words
from polyrank.model.errors import InvalidInput
from polyrank.model.explanation import CrossExplainer, Explanation, LateExplainer, Occluded, Unit, units, without
from polyrank.model.lexical.score import Term
from polyrank.model.rankers.lexical import LexicalRanker
from polyrank.model.rankers.networks import CrossRanker, LateRanker
from polyrank.model.registry import in_words
from polyrank.model.representations import Representations
from polyrank.model.text.assembly import Truncation
from polyrank.model.text.reading import letters_worth
from polyrank.model.text.sequences import PlacedToken
from polyrank.service.live.models import PairScorer
from polyrank.service.ranking.forwards import CountedContext, Forwards
from polyrank.service.ranking.given import Sent
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.stages import Threads, Timings
from polyrank.service.ranking.values import ExplainRequest, Ranked, RankedCandidate

Scores = NDArray[np.float64]


class GatheredRequest(NamedTuple):
    """The context and the candidates of a request, as the model and the store know them."""

    context: CountedContext
    sent: Sent
    truncation: Truncation
    tokens: int


@dataclass(frozen=True, slots=True)
class ExplainedPair:
    """What a cross-encoder says of a candidate.

    Attributes:
        score: as it would place it.
        base: the part of the Poly-encoder in a residual one; None: there is none.
        units: the parts of the context that were left out, one at a time.
        drops: what the score loses without each of them, (U,). Words count as they did.
        terms: what words add; None: they do not count.
    """

    score: float
    base: float | None
    units: list[Unit]
    drops: Scores
    terms: list[Term] | None


@dataclass(frozen=True, slots=True)
class ExplainedCandidate:
    """What the score of a candidate consists of.

    Attributes:
        place: the candidate and its score.
        explanation: of the score by vectors, before the late weight.
        reply: its K tokens; empty: they are not told.
        terms: what words add; None: they do not count.
        occlusion: what the score loses without each of the context's T tokens, (T,), NaN for those that stand for no
            characters; None: it was not asked for.
        pair: what the cross-encoder says; None: it was not asked.
    """

    place: RankedCandidate
    explanation: Explanation
    reply: list[PlacedToken]
    terms: list[Term] | None
    occlusion: Scores | None = None
    pair: ExplainedPair | None = None


@dataclass(frozen=True, slots=True)
class Explained:
    """An explanation, its candidates in the order sent.

    Attributes:
        tokens: of the context, T.
        unexplained: what is left out, and why.
        late_weight: of the score by vectors beside words.
    """

    tokens: list[PlacedToken]
    candidates: list[ExplainedCandidate]
    unexplained: dict[str, str]
    late_weight: float
    missing_ids: list[str]
    truncation: Truncation
    seconds: dict[str, float] = field(default_factory=dict)


class _Read(NamedTuple):
    """What was read to explain candidates: tokens, sums over them, and scores without tokens, (T, N)."""

    tokens: list[PlacedToken]
    replies: list[list[PlacedToken]]
    explanations: list[Explanation]
    unexplained: dict[str, str]
    occlusion: Scores | None


class Explaining:
    """Explains scores of candidates that were ranked."""

    def __init__(self, forwards: Forwards, candidates: Threads) -> None:
        self._forwards, self._candidates = forwards, candidates

    async def explain(
        self, serving: Serving, request: ExplainRequest, gathered: GatheredRequest, ranked: Ranked, timings: Timings
    ) -> Explained:
        """Explain the scores of candidates; errors as `Engine.explain`."""
        places = sorted(ranked.places, key=lambda place: place.index or 0)
        ranker = serving.ranker
        if isinstance(ranker, LateRanker):
            read = await self._read(ranker, request, gathered, [place.text for place in places], timings)
        elif isinstance(ranker, LexicalRanker):
            why = f"{in_words(ranker.architecture)}: its scores are what words add"
            read = _Read([], [[]] * len(places), [Explanation()] * len(places), {"tokens": why}, None)
        else:
            raise InvalidInput(f"the scores of {in_words(ranker.architecture)} cannot be explained")
        words = serving.generation.words
        if words is not None:
            words = replace(words, evidence=words.evidence.sharing(ranked.turns_share))
        tell = partial(_terms, words, request, [place.text for place in places])
        terms = await self._candidates.run(partial(timings.measure, "score", tell), timings)
        candidates = [
            ExplainedCandidate(
                place, explanation, reply, own, None if read.occlusion is None else read.occlusion[:, at]
            )
            for at, (place, explanation, reply, own) in enumerate(
                zip(places, read.explanations, read.replies, terms, strict=True)
            )
        ]
        late_weight = 1.0 if words is None else words.evidence.late_weight
        return Explained(read.tokens, candidates, read.unexplained, late_weight, ranked.missing_ids, ranked.truncation)

    async def _read(
        self,
        ranker: LateRanker,
        request: ExplainRequest,
        gathered: GatheredRequest,
        texts: Sequence[str],
        timings: Timings,
    ) -> _Read:
        conversation, deadline = request.ranking.conversation, request.ranking.deadline
        explainer: LateExplainer = await self._candidates.run(lambda: ranker.explainer, timings)  # may read weights
        placed, _ = await self._forwards.tokenize(explainer.context_steps(conversation), conversation.letters, timings)
        replies = await self._forwards.tokenize(explainer.reply_steps(texts), letters_worth(texts), timings)
        ids, reply_ids = [token.id for token in placed], [[token.id for token in each] for each in replies]
        sums, reply_sums = None, [None] * len(texts)
        if explainer.reads_context:
            run = explainer.context_sums
            [sums] = await self._forwards.explain(run, [ids], [len(ids)], deadline, timings)
        if explainer.reads_replies:
            lengths = list(map(len, reply_ids))
            reply_sums = await self._forwards.explain(explainer.reply_sums, reply_ids, lengths, deadline, timings)
        made = gathered.sent.made

        def explain() -> list[Explanation]:
            return [
                explainer.explain(gathered.context.encoding, sums, made.take([at]), of_reply, own)
                for at, (of_reply, own) in enumerate(zip(reply_sums, reply_ids, strict=True))
            ]

        explanations = await self._candidates.run(partial(timings.measure, "score", explain), timings)
        tokens = explainer.context_tokens(placed)
        occlusion = None
        if request.occlusion:
            occlusion = await self._occluded(ranker, tokens, placed, made, deadline, timings)
        return _Read(
            tokens,
            [explainer.reply_tokens(each) for each in replies],
            explanations,
            {str(part): why for part, why in explainer.unexplained.items()},
            occlusion,
        )

    async def _occluded(
        self,
        ranker: LateRanker,
        tokens: Sequence[PlacedToken],
        placed: Sequence[PlacedToken],
        made: Representations,
        deadline: float,
        timings: Timings,
    ) -> Scores:
        """Return what the scores by vectors lose without each token of the context, (T, N)."""
        ids = [token.id for token in placed]
        places = [place for place, token in enumerate(placed) if token.start is not None]
        sequences = [ids, *(without(ids, [place]) for place in places)]
        run = _OccludedContexts(ranker, made)
        whole, *others = await self._forwards.explain(run, sequences, list(map(len, sequences)), deadline, timings)
        drops = np.full((len(tokens), len(made.first)), np.nan)
        shown = [at for at, token in enumerate(tokens) if token.start is not None]
        drops[shown] = [whole - other for other in others]
        return drops

    async def explain_pairs(
        self,
        words: Words | None,
        scorer: PairScorer,
        request: ExplainRequest,
        explained: Explained,
        scores: NDArray[np.float32],
        timings: Timings,
    ) -> Explained:
        """Add what a cross-encoder says, whose scores of the candidates (N,) are known."""
        if not isinstance(scorer, CrossRanker):
            raise InvalidInput(f"the scores of {in_words(scorer.architecture)} cannot be explained")
        assert request.cross is not None, "it was asked for"
        conversation = request.ranking.conversation
        texts = [each.place.text for each in explained.candidates]
        letters = conversation.letters + letters_worth(texts)
        explainer: CrossExplainer = await self._candidates.run(lambda: scorer.explainer, timings)
        placed, _ = await self._forwards.tokenize(
            explainer.context_steps(conversation), conversation.letters, timings, "rerank"
        )
        pairs, _ = await self._forwards.tokenize(scorer.pair_steps(conversation, texts), letters, timings, "rerank")
        parts = units(placed, request.cross)
        occluded = [
            Occluded(pairs.take([at]), places)
            for at in range(len(texts))
            for places in ((), *(part.places for part in parts))
        ]
        lengths = [len(each.pair.contexts[0]) + len(each.pair.candidates[0]) for each in occluded]
        rows = await self._forwards.explain(
            explainer.scores, occluded, lengths, request.ranking.deadline, timings, "rerank"
        )
        found = np.array(rows).reshape(len(texts), 1 + len(parts), 2)
        weight = 1.0 if words is None else words.evidence.late_weight
        tell = partial(_terms, words, request, texts)
        terms = await self._candidates.run(partial(timings.measure, "rerank", tell), timings)
        read = [
            ExplainedPair(
                float(score),
                weight * float(own[0, 1]) if explainer.is_residual else None,
                parts,
                weight * (own[0, 0] - own[1:, 0]),
                words_add,
            )
            for score, own, words_add in zip(scores, found, terms, strict=True)
        ]
        candidates = [replace(each, pair=pair) for each, pair in zip(explained.candidates, read, strict=True)]
        return replace(explained, candidates=candidates)


@dataclass(frozen=True, eq=False)
class _OccludedContexts:
    """Encodes contexts of which tokens are left out, and scores the same candidates for each."""

    ranker: LateRanker
    made: Representations

    def __call__(self, contexts: list[list[int]]) -> list[Scores]:
        encodings = self.ranker.represent_context_batch(contexts)
        return [self.ranker.late_scores(encoding, self.made).astype(np.float64) for encoding in encodings]


def _terms(words: Words | None, request: ExplainRequest, texts: Sequence[str]) -> list[list[Term] | None]:
    if words is None:
        return [None] * len(texts)
    conversation, statistics = request.ranking.conversation, words.table.statistics
    return [words.evidence.terms(conversation, text, statistics) for text in texts]
