"""Stages that score the best candidates again: a model's own second stage, and the cross-encoder.

The second stage reads what is stored of candidates, not their texts: of a pool those of the best `retrieve_k`, of
candidates that were sent, of all. The cross-encoder reads the texts of the first `top_n`. If there is no time for a
stage, or it fails, the answer is that of the stage before, and says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import StoreUnavailable
from polyrank.index_builder.generation.words import Words
from polyrank.model.lexical.table import WordTable
from polyrank.model.representations import Representations, each_of
from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.model.text.reading import Steps, in_parts
from polyrank.service.errors import DeadlineExceeded, InferenceFailed, TimeTooShort
from polyrank.service.live.models import PairScorer, VectorScorer
from polyrank.service.observe.labels import Degraded
from polyrank.service.ranking import costs
from polyrank.service.ranking.runtime import Runtime
from polyrank.service.ranking.values import Ranked, RankRequest
from polyrank.service.scheduling.forwards import AT_ONCE, CountedContext, PairScores
from polyrank.service.scheduling.stages import Journey

# Fetches what the model made of candidates by their positions, (N,); also returns whether the caches answered.
Gather = Callable[[NDArray[np.int64]], tuple[Representations, bool]]
# Of each first-stage vector, as bytes, the first candidate that has it: its position, and its rows.
_Seen = dict[bytes, tuple[int, NDArray[Any]]]


class LateScores(NamedTuple):
    """Scores (N,), None where there are none, and what the answer does without."""

    scores: NDArray[np.float32] | None
    degraded: list[Degraded]


async def second_stage(
    runtime: Runtime, ranker: VectorScorer, context: CountedContext, count: int, gather: Gather, journey: Journey
) -> LateScores:
    """Score so many stored candidates by the second stage, part by part."""
    own, scores, cached = journey.before_answer(), np.empty(count, np.float32), True
    seen = _Seen()
    try:
        async with own.in_time():
            for start in range(0, count, AT_ONCE):
                positions = np.arange(start, min(start + AT_ONCE, count))
                fetch = partial(_fetched, gather, positions, seen)
                some, available, alike = await runtime.candidates.run(fetch, own, "fetch")
                cached = cached and available
                if len(some.first):
                    new = positions[alike == positions]
                    scores[new] = await runtime.forwards.late(ranker, context, some, count - start, own)
                scores[positions] = scores[alike]
    except (DeadlineExceeded, TimeTooShort):
        return LateScores(None, ["late_skipped_deadline"])
    except InferenceFailed:
        return LateScores(None, ["late_failed"])
    except StoreUnavailable:
        return LateScores(None, ["late_failed", "cache_unavailable"])
    return LateScores(scores, [] if cached else ["cache_unavailable"])


def _fetched(
    gather: Gather, positions: NDArray[np.int64], seen: _Seen
) -> tuple[Representations, bool, NDArray[np.int64]]:
    """Fetch candidates at positions (N,), each of equal ones once: scored in other batches they would differ a little.

    Also returns whether the caches answered, and for each the position of the first that equals it, (N,).
    """
    some, available = gather(positions)
    assert some.late is not None, "the model has a second stage"
    assert some.counts is not None, "so it has counts"
    alike = []
    for at, first, rows in zip(positions.tolist(), some.first, each_of(some.late, some.counts), strict=True):
        before, known = seen.setdefault(first.tobytes(), (at, rows))
        alike.append(before if np.array_equal(known, rows) else at)
    found = np.array(alike, np.int64)
    is_new = found == positions
    return some if is_new.all() else some.take(np.flatnonzero(is_new)), available, found


async def rerank(
    runtime: Runtime, scorer: PairScorer, words: Words | None, request: RankRequest, ranked: Ranked, journey: Journey
) -> Ranked:
    """Put the first `top_n` in the cross-encoder's order, or say why not: there is an answer already."""
    first, rest = ranked.places[: request.top_n], ranked.places[request.top_n :]
    if not first:
        return ranked
    texts, own = [place.text for place in first], journey.before_answer()
    try:
        async with own.in_time():
            read = await read_pairs(
                runtime, scorer, words, request.conversation, texts, own, ranked.turns_share, must_fit=True
            )
    except (DeadlineExceeded, TimeTooShort):
        return ranked.without("rerank_skipped_deadline")
    except InferenceFailed:
        return ranked.without("rerank_failed")
    order = np.argsort(-read.scores, kind="stable").tolist()  # equal scores keep the order given
    read_first = [replace(first[at], cross=float(read.scores[at])) for at in order]
    one, other = ranked.truncation, read.truncation  # the encoder that saw less tells what was not seen
    cut = Truncation(max(one.turns, other.turns), max(one.tokens, other.tokens), max(one.candidates, other.candidates))
    return replace(ranked, places=read_first + rest, truncation=cut)


async def score_pairs(
    runtime: Runtime, words: Words | None, conversation: Conversation, texts: Sequence[str], journey: Journey
) -> PairScores:
    """Let the cross-encoder read texts with a context; `words` of the generation served. Errors as `Engine.rank`."""
    scorer = runtime.required_scorer()
    async with runtime.admitted(journey, costs.pair_tokens(scorer, conversation, texts)):
        return await read_pairs(runtime, scorer, words, conversation, texts, journey)


async def read_pairs(
    runtime: Runtime,
    scorer: PairScorer,
    words: Words | None,
    conversation: Conversation,
    texts: Sequence[str],
    journey: Journey,
    turns_share: float | None = None,
    must_fit: bool = False,
) -> PairScores:
    """Do what `Forwards.pairs` does; if the cross-encoder has evidence, words count in the scores as well.

    words: of the generation, which say how rare a word is; None: it holds none, and the pairs alone count.
    turns_share: how much of their weights the words of the turns keep; None: the texts are a list that says it.
    """

    async def read(own: Journey) -> PairScores:
        return await runtime.forwards.pairs(scorer, conversation, texts, own, must_fit)

    async def read_words(own: Journey) -> NDArray[np.float32]:
        steps = list_words(counted, conversation, texts, turns_share)
        return (await runtime.candidates.run_steps(steps, "rerank", own)).values

    if scorer.evidence is None or words is None:
        return await read(journey)
    counted = replace(words, evidence=scorer.evidence)
    pairs, values = await journey.side_by_side(read, read_words)
    return pairs._replace(scores=scorer.evidence.scores(pairs.scores, values), seconds=journey.seconds)


class ListWords(NamedTuple):
    """The lexical scores of a list's candidates, and how much of their weights the words of turns kept."""

    values: NDArray[np.float32]
    turns_share: float


def list_words(
    words: Words, conversation: Conversation, texts: Sequence[str], turns_share: float | None = None
) -> Steps[ListWords]:
    """Read the lexical scores of texts (T,), in steps.

    turns_share: how much of their weights the words of the turns keep; None: the texts are a list that says it.
    """
    tables = []
    for part in in_parts(texts):
        tables.append(WordTable.of(part, words.table.statistics))
        yield
    share = words.evidence.turns_share(conversation, tables) if turns_share is None else turns_share
    values, asked = [np.empty(0, np.float32)], words.evidence.sharing(share).asked(conversation, words.table.statistics)
    for table in tables:
        values.append(asked.values_in(table))
        yield
    return ListWords(np.concatenate(values), share)
