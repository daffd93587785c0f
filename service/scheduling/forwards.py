"""Texts to what the models make of them: tokenised, run in the model's thread, batched over all requests."""

import time
from collections.abc import Callable, Sequence
from copy import copy
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
from polyrank.service.live.models import PairScorer, VectorScorer
from polyrank.service.observe.labels import LANES, OF_GENERATIONS, Lane, Stage
from polyrank.service.observe.metrics import Metrics
from polyrank.service.observe.tracing import Tracing
from polyrank.service.scheduling.scheduler import OnBatch, RunBatch, Scheduler, Work
from polyrank.service.scheduling.stages import FairThread, Journey, lower_priority

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


@dataclass(eq=False)
class ContextOnce:
    """A tokenised context of one request. The model encodes it once, however often it is asked for."""

    forwards: "Forwards"
    ranker: VectorScorer
    tokens: list[int]
    _encoded: CountedContext | None = None

    async def encoded(self, journey: Journey) -> CountedContext:
        """Return what the model makes of it; for one who asks at a time. Errors as `Forwards.context`."""
        if self._encoded is None:
            self._encoded = await self.forwards.context(self.ranker, self.tokens, journey)
        return self._encoded


class PairScores(NamedTuple):
    """Cross-encoder scores (N,), what it did not see, how many tokens it saw, and seconds by stage."""

    scores: NDArray[np.float32]
    truncation: Truncation
    tokens: int
    seconds: dict[str, float]


class Embeddings(NamedTuple):
    """What was made of N texts, how many tokens it saw, how many texts lost their end, and seconds by stage."""

    representations: Representations
    tokens: int
    cut: int
    seconds: dict[str, float]


class Forwards:
    """The tokenizer's threads and the models' thread; `batch_tokens` as the scheduler's `budget`.

    `generations`: of the thread that runs the models of generations; the same one, unless it is set apart.
    """

    def __init__(self, batch_tokens: int, metrics: Metrics, tracing: Tracing) -> None:
        self._scheduler_named = partial(
            Scheduler, lanes=LANES, budget=batch_tokens, metrics=metrics, tracing=tracing, is_sound=is_finite
        )
        self.scheduler = self.generations = self._scheduler_named("model")
        self._tokenizer, self._long_texts = FairThread("tokenizer"), FairThread("tokenizer-long", lower_priority)

    def set_apart(self, name: str) -> "Forwards":
        """Return the same, but for a thread of this name of its own for the models of generations.

        What these models do holds up no others, and what they fail at is not counted with others. Close it first.
        """
        apart = copy(self)
        apart.generations = self._scheduler_named(name)
        return apart

    async def tokenize(self, steps: Steps[T], letters: int, journey: Journey, stage: Stage = "tokenize") -> T:
        """Tokenise what costs so many letters: at once if they are few, else on a thread, step by step.

        The next step is that of whoever has had the fewest, and then of whoever has the fewest letters. Many letters
        have a thread of their own. Its priority is lower, because the library, which holds no lock of Python, would
        take processors from the model. Cancelling drops the steps that have not begun.
        """
        if letters <= INLINE_LETTERS:
            return journey.measure(stage, partial(finish, steps))
        thread = self._tokenizer if letters <= SHARED_LETTERS else self._long_texts
        one = partial(journey.measure, stage, partial(step, steps))
        for turns in count():
            is_done, result = await thread.run(turns, letters, one, journey)
            if is_done:
                break
        return cast(T, result)

    async def tokenize_candidates(
        self, ranker: VectorScorer, texts: Sequence[str], journey: Journey
    ) -> tuple[list[list[int]], int]:
        """Tokenise texts, with the work of others between many; also returns how many texts were cut.

        Raises:
            TimeTooShort: this alone takes longer than there is time, so the request cannot be answered.
        """
        half = journey.left / 2

        def check(ready: int) -> None:
            if journey.seconds["tokenize"] > half and ready < len(texts) / 2:
                raise TimeTooShort(len(texts), ready)

        return await self.tokenize(_candidate_steps(ranker, texts, check), letters_worth(texts), journey)

    async def tokenize_context(
        self, ranker: VectorScorer, conversation: Conversation, journey: Journey
    ) -> tuple[list[int], Truncation]:
        """Tokenise a context; also returns what was cut."""
        return await self.tokenize(ranker.context_steps(conversation), conversation.letters, journey)

    async def context(self, ranker: VectorScorer, context: list[int], journey: Journey) -> CountedContext:
        """Encode a tokenised context; equal ones that wait at the same time are encoded once."""
        work = Work(ranker.represent_context_batch, [context], [len(context)], key=tuple(context))
        [encoded] = await self.run("context", work, journey)
        return CountedContext(encoded, len(context))

    async def contexts(
        self, ranker: VectorScorer, contexts: Sequence[list[int]], journey: Journey
    ) -> list[ContextEncoding]:
        """Encode tokenised contexts; errors as `candidates`."""
        work = Work(ranker.represent_context_batch, contexts, list(map(len, contexts)))
        return await self.run("context", work, journey)

    async def candidates(
        self, ranker: VectorScorer, tokens: Sequence[list[int]], journey: Journey, on_batch: OnBatch | None = None
    ) -> list[Representations]:
        """Encode tokenised candidates, each by itself; `on_batch` as in `Work`.

        Raises TimeTooShort if they cannot be done by the deadline.
        """
        work = Work(_CandidateBatch(ranker), tokens, list(map(len, tokens)), None, on_batch)
        return await self.run("candidate", work, journey)

    async def encode(self, ranker: VectorScorer, texts: Sequence[str], journey: Journey) -> Embeddings:
        """Encode texts as candidates; errors as `candidates`."""
        tokens, cut = await self.tokenize_candidates(ranker, texts, journey)
        parts = await self.candidates(ranker, tokens, journey)
        representations = Representations.join(parts) if parts else Representations.none(ranker.dim, ranker.late_rows)
        return Embeddings(representations, sum(map(len, tokens)), cut, journey.seconds)

    async def late(
        self, ranker: VectorScorer, context: CountedContext, some: Representations, total: int, journey: Journey
    ) -> NDArray[np.float32]:
        """Score some of `total` stored candidates by the second stage, (N,).

        It does not begin where the scoring of all of them is predicted to miss the deadline.

        Raises:
            DeadlineExceeded: so it is.
        """
        assert some.counts is not None, "the model has a second stage"
        tokens = max(1, ranker.late_tokens(context.tokens, some.counts))
        if self.generations.predict("late", [tokens * total // len(some.first)]) > journey.left:
            self.generations.doubt("late")
            raise DeadlineExceeded("the second stage would take longer")
        work = Work(LateBatch(ranker), [(context.encoding, some)], [tokens])
        scores: NDArray[np.float32]
        [scores] = await self.run("late", work, journey)
        return scores

    async def pairs(
        self,
        scorer: PairScorer,
        conversation: Conversation,
        texts: Sequence[str],
        journey: Journey,
        must_fit: bool = False,
    ) -> PairScores:
        """Let a cross-encoder read texts with a context; all of it is the stage "rerank".

        What has not begun by the deadline does not begin. If it `must_fit`, nothing begins where the deadline is
        predicted to be missed.

        Raises:
            DeadlineExceeded: it was missed, or would be.
            TimeTooShort: so many pairs cannot be read by the deadline.
        """
        pairs, lengths, truncation = await self.split(scorer, conversation, texts, journey)
        if must_fit and self.scheduler.predict("pair", lengths) > journey.left:
            self.scheduler.doubt("pair")
            raise DeadlineExceeded("the cross-encoder would take longer")
        scores = await self.run("pair", Work(PairBatch(scorer), pairs, lengths), journey)
        return PairScores(np.array(scores, np.float32), truncation, sum(lengths), journey.seconds)

    async def explain(
        self, run: RunBatch, sequences: Sequence[Any], lengths: Sequence[int], journey: Journey, stage: Stage = "encode"
    ) -> list[Any]:
        """Run what explains scores, in a lane of its own, behind which no ranking waits for more than a batch.

        Raises TooMuchToExplain if so many sequences cannot be read by the deadline.
        """
        try:
            return await self.run("explain", Work(run, sequences, lengths), journey, stage)
        except TimeTooShort as error:
            raise TooMuchToExplain(len(sequences), error.fitting) from None

    async def split(
        self, scorer: PairScorer, conversation: Conversation, texts: Sequence[str], journey: Journey
    ) -> "SplitPairs":
        """Tokenise a conversation with each text, in the stage "rerank"."""
        steps = _split_pairs(scorer, conversation, texts)
        return await self.tokenize(steps, conversation.letters + letters_worth(texts), journey, "rerank")

    async def run(self, lane: Lane, work: Work, journey: Journey, stage: Stage | None = None) -> list[Any]:
        """Run sequences through a model: their wait is queueing, the rest is the stage."""
        stage = stage or _STAGE_OF[lane]
        scheduler = self.generations if lane in OF_GENERATIONS else self.scheduler
        began, ran = time.perf_counter(), 0.0
        try:
            outcome = await scheduler.run(lane, work, journey.deadline)
            ran = time.perf_counter() - began - outcome.waited
        except BaseException:
            ran = work.had
            raise
        finally:
            journey.seconds[stage] += ran
            journey.seconds["queue"] += time.perf_counter() - began - ran
        return outcome.outputs

    def close(self) -> None:
        """Finish what has begun, drop what waits."""
        if self.generations is not self.scheduler:
            self.generations.close()
            return
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
    ranker: VectorScorer, texts: Sequence[str], check: Callable[[int], None]
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
    lengths = scorer.pair_lengths(pairs)
    return SplitPairs([pairs.take([at]) for at in range(len(lengths))], lengths, truncation)


@dataclass(frozen=True)
class _CandidateBatch:
    """A model's forward pass over candidates of several requests; equal for the same model."""

    ranker: VectorScorer

    def __call__(self, tokens: list[list[int]]) -> list[Representations]:
        representations = self.ranker.represent_candidate_batch(tokens)
        return [representations.take([at]) for at in range(len(tokens))]


@dataclass(frozen=True)
class LateBatch:
    """A model's second stage for several requests, one after the other; equal for the same model."""

    ranker: VectorScorer

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
