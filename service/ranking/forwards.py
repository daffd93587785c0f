"""Texts to what the models make of them: tokenised, run in the model's thread, batched over all requests."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from polyrank.model.representations import ContextEncoding, Representations
from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.model.text.reading import Steps, finish, in_parts, letters_worth, step
from polyrank.model.text.sequences import Pairs
from polyrank.service.errors import DeadlineExceeded, TimeTooShort, TooMuchToExplain
from polyrank.service.live.models import LateScorer, PairScorer
from polyrank.service.observe.labels import LANES, Lane, Stage
from polyrank.service.observe.metrics import Metrics
from polyrank.service.observe.tracing import Tracing
from polyrank.service.ranking.scheduler import OnBatch, RunBatch, Scheduler, Work
from polyrank.service.ranking.stages import FairThread, Timings, lower_priority

# So many letters are tokenised in half a millisecond. To hand them to a thread and take up the result costs the loop
# nearly as much, and the request more.
INLINE_LETTERS = 1000
# More letters go to the thread for long texts. The slowest letters known take some 20 ms here: nobody waits long for a
# step of another that has begun.
SHARED_LETTERS = 4096
# So many candidates are compared with a context at a time: with 16 rows of 128 numbers each, 8 MB in float32.
AT_ONCE = 1024

T = TypeVar("T")


class CountedContext(NamedTuple):
    """What the model makes of a context, and how many tokens it has."""

    encoding: ContextEncoding
    tokens: int


class PairScores(NamedTuple):
    """Cross-encoder scores (N,), what it did not see, how many tokens it saw, and seconds by stage."""

    scores: NDArray[np.float32]
    truncation: Truncation
    tokens: int
    seconds: dict[str, float]


class Forwards:
    """The tokenizer's threads and the models' thread; `batch_tokens` as the scheduler's `budget`."""

    def __init__(self, batch_tokens: int, metrics: Metrics, tracing: Tracing) -> None:
        self.scheduler = Scheduler("model", LANES, batch_tokens, metrics, tracing, is_finite)
        self._tokenizer, self._long_texts = FairThread("tokenizer"), FairThread("tokenizer-long", lower_priority)

    async def tokenize(self, steps: Steps[T], letters: int, timings: Timings, stage: Stage = "tokenize") -> T:
        """Tokenise what costs so many letters: at once if they are few, else on a thread, step by step.

        The next step is that of whoever has had the fewest, and then of whoever has the fewest letters. Many letters
        have a thread of their own. Its priority is lower, because the library, which holds no lock of Python, would
        take processors from the model. Cancelling drops the steps that have not begun.
        """
        if letters <= INLINE_LETTERS:
            return timings.measure(stage, partial(finish, steps))
        thread = self._tokenizer if letters <= SHARED_LETTERS else self._long_texts
        one = partial(timings.measure, stage, partial(step, steps))
        for had in count():
            is_done, result = await thread.run(had, letters, one, timings)
            if is_done:
                break
        return cast(T, result)

    async def tokenize_candidates(
        self, ranker: LateScorer, texts: Sequence[str], deadline: float, timings: Timings
    ) -> tuple[list[list[int]], int]:
        """Tokenise texts, with the work of others between many; also returns how many texts were cut.

        Raises:
            TimeTooShort: this alone takes longer than there is time, so the same request would never get any further.
        """
        half = (deadline - time.monotonic()) / 2

        def check(done: int) -> None:
            if timings.seconds["tokenize"] > half and done < len(texts) / 2:
                raise TimeTooShort(len(texts), done)

        return await self.tokenize(_candidate_steps(ranker, texts, check), letters_worth(texts), timings)

    async def context(
        self, ranker: LateScorer, context: list[int], deadline: float, timings: Timings
    ) -> ContextEncoding:
        """Encode a tokenised context; equal ones that wait at the same time are encoded once."""
        work = Work(ranker.represent_context_batch, [context], [len(context)], key=tuple(context))
        encoded: ContextEncoding
        [encoded] = await self.run("context", work, deadline, timings)
        return encoded

    async def contexts(
        self, ranker: LateScorer, contexts: Sequence[list[int]], deadline: float, timings: Timings
    ) -> list[ContextEncoding]:
        """Encode tokenised contexts; errors as `candidates`."""
        work = Work(ranker.represent_context_batch, contexts, list(map(len, contexts)))
        return await self.run("context", work, deadline, timings)

    async def candidates(
        self,
        ranker: LateScorer,
        tokens: Sequence[list[int]],
        deadline: float,
        timings: Timings,
        on_batch: OnBatch | None = None,
        resumes: bool = False,
    ) -> list[Representations]:
        """Encode tokenised candidates, each by itself; `on_batch` and `resumes` as in `Work`.

        Raises:
            TimeTooShort: they cannot be done by the deadline, and nobody keeps what is done.
        """
        work = Work(_CandidateBatch(ranker), tokens, list(map(len, tokens)), None, on_batch, resumes)
        return await self.run("candidate", work, deadline, timings)

    async def late(
        self,
        ranker: LateScorer,
        context: CountedContext,
        some: Representations,
        total: int,
        deadline: float,
        took: Timings,
    ) -> NDArray[np.float32]:
        """Score some of `total` stored candidates by the second stage, (N,).

        It does not begin where the scoring of all of them is predicted to miss the deadline.

        Raises:
            DeadlineExceeded: so it is.
        """
        assert some.counts is not None, "the model has a second stage"
        tokens = max(1, ranker.late_tokens(context.tokens, some.counts))
        if time.monotonic() + self.scheduler.predict("late", [tokens * total // len(some.first)]) > deadline:
            self.scheduler.doubt("late")
            raise DeadlineExceeded("the second stage would take longer")
        work = Work(LateBatch(ranker), [(context.encoding, some)], [tokens])
        scores: NDArray[np.float32]
        [scores] = await self.run("late", work, deadline, took)
        return scores

    async def pairs(
        self,
        scorer: PairScorer,
        conversation: Conversation,
        texts: Sequence[str],
        deadline: float,
        timings: Timings,
        within: float = math.inf,
    ) -> PairScores:
        """Let a cross-encoder read texts with a context; all of it is the stage "rerank".

        What has not begun by the deadline does not begin. Nothing begins where the time `within` is predicted to be
        missed. Both are on the monotonic clock.

        Raises:
            DeadlineExceeded: one of the two was missed, or would be.
            TimeTooShort: so many pairs cannot be read by the deadline.
        """
        pairs, lengths, truncation = await self.split(scorer, conversation, texts, timings)
        if time.monotonic() + self.scheduler.predict("pair", lengths) > within:
            self.scheduler.doubt("pair")
            raise DeadlineExceeded("the cross-encoder would take longer")
        scores = await self.run("pair", Work(PairBatch(scorer), pairs, lengths), deadline, timings)
        return PairScores(np.array(scores, np.float32), truncation, sum(lengths), timings.seconds)

    async def explain(
        self,
        run: RunBatch,
        sequences: Sequence[Any],
        lengths: Sequence[int],
        deadline: float,
        timings: Timings,
        stage: Stage = "encode",
    ) -> list[Any]:
        """Run what explains scores, in a lane of its own, behind which no ranking waits for more than a batch.

        Raises:
            TooMuchToExplain: so many sequences cannot be read by the deadline.
        """
        try:
            return await self.run("explain", Work(run, sequences, lengths), deadline, timings, stage)
        except TimeTooShort as error:
            raise TooMuchToExplain(len(sequences), error.fitting) from None

    async def split(
        self, scorer: PairScorer, conversation: Conversation, texts: Sequence[str], timings: Timings
    ) -> "SplitPairs":
        """Tokenise a conversation with each text, in the stage "rerank"."""
        steps = _split_pairs(scorer, conversation, texts)
        return await self.tokenize(steps, conversation.letters + letters_worth(texts), timings, "rerank")

    async def run(
        self, lane: Lane, work: Work, deadline: float, timings: Timings, stage: Stage | None = None
    ) -> list[Any]:
        """Run sequences through a model: their wait is queueing, the rest is the stage."""
        stage = stage or _STAGE_OF[lane]
        with timings.timed(stage):
            done = await self.scheduler.run(lane, work, deadline)
        timings.add(stage, -done.waited)
        timings.add("queue", done.waited)
        return done.outputs

    def close(self) -> None:
        """Finish what has begun, drop what waits."""
        self._tokenizer.close()
        self._long_texts.close()
        self.scheduler.close()


def is_finite(output: Any) -> bool:
    """Whether all numbers of an output are finite: of an array or tensor, or of those in a tuple."""
    if isinstance(output, tuple):
        return all(part is None or is_finite(part) for part in output)
    return bool(np.isfinite(np.asarray(output)).all())


_STAGE_OF: dict[Lane, Stage] = {
    "context": "encode",
    "candidate": "encode",
    "late": "late",
    "pair": "rerank",
    "explain": "encode",
}


def _candidate_steps(
    ranker: LateScorer, texts: Sequence[str], check: Callable[[int], None]
) -> Steps[tuple[list[list[int]], int]]:
    """Tokenise texts, part by part; also returns how many were cut. `check` is told how many are done."""
    tokens: list[list[int]] = []
    cut = 0
    for part in in_parts(texts):
        if tokens:
            yield
            check(len(tokens))
        some, cut_here = ranker.tokenize_candidates(part)
        tokens += some
        cut += cut_here
    return tokens, cut


class SplitPairs(NamedTuple):
    """Tokenised pairs, each by itself, its length in tokens, and what was cut of all."""

    pairs: list[Pairs]
    lengths: list[int]
    truncation: Truncation


def _split_pairs(scorer: PairScorer, conversation: Conversation, texts: Sequence[str]) -> Steps[SplitPairs]:
    pairs, truncation = yield from scorer.pair_steps(conversation, texts)
    of_candidates = zip(pairs.owners, pairs.candidates, strict=True)
    lengths = [len(pairs.contexts[owner]) + len(candidate) for owner, candidate in of_candidates]
    return SplitPairs([pairs.take([at]) for at in range(len(lengths))], lengths, truncation)


@dataclass(frozen=True)
class _CandidateBatch:
    """A model's forward pass over candidates of several requests; equal for the same model."""

    ranker: LateScorer

    def __call__(self, tokens: list[list[int]]) -> list[Representations]:
        made = self.ranker.represent_candidate_batch(tokens)
        return [made.take([at]) for at in range(len(tokens))]


@dataclass(frozen=True)
class LateBatch:
    """A model's second stage for several requests, one after the other; equal for the same model."""

    ranker: LateScorer

    def __call__(self, pairs: list[tuple[ContextEncoding, Representations]]) -> list[NDArray[np.float32]]:
        """Return the scores of each pair's candidates, (N,)."""
        return [self.ranker.late_scores(*pair) for pair in pairs]


@dataclass(frozen=True)
class PairBatch:
    """A cross-encoder's forward pass over pairs of several requests; equal for the same cross-encoder."""

    scorer: PairScorer

    def __call__(self, pairs: list[Pairs]) -> NDArray[np.float32]:
        """Return the score of each pair, (N,)."""
        return self.scorer.score_pair_batch(Pairs.join(pairs))
