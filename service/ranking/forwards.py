"""Texts to what the models make of them: tokenised, run in the model's thread, batched over all requests."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.model.text.pairs import Pairs
from polyrank.service.errors import DeadlineExceeded, TimeTooShort
from polyrank.service.live.models import LateScorer, PairScorer
from polyrank.service.observe.labels import Lane, Stage
from polyrank.service.observe.metrics import Metrics
from polyrank.service.observe.tracing import Tracing
from polyrank.service.ranking.batching.batcher import Batcher
from polyrank.service.ranking.batching.lanes import OnBatch, Work
from polyrank.service.ranking.stages import Threads, Timings

# Tokenised in one go, in some 20 ms; after so many texts or letters, others have their turn.
TEXTS_A_TURN, LETTERS_A_TURN = 256, 2**15
# So many letters are tokenised in half a millisecond. To hand them to a thread and take up the result costs the loop
# nearly as much, and the request more.
INLINE_LETTERS = 1000

T = TypeVar("T")


class PairScores(NamedTuple):
    """Cross-encoder scores (N,), what it did not see, how many tokens it saw, and seconds by stage."""

    scores: NDArray[np.float32]
    truncation: Truncation
    tokens: int
    seconds: dict[str, float]


class Forwards:
    """The tokenizer's thread and the models' thread; `batch_tokens` as the batcher's `budget`."""

    def __init__(self, batch_tokens: int, metrics: Metrics, tracing: Tracing) -> None:
        self.batcher = Batcher(batch_tokens, metrics, tracing)
        self._tokenizer = Threads("tokenizer", 1)

    async def tokenize(
        self, work: Callable[[], T], timings: Timings, stage: Stage = "tokenize", letters: float = math.inf
    ) -> T:
        """Call a function that tokenises so many letters: on the tokenizer's thread, or at once if there are few."""
        if letters <= INLINE_LETTERS:
            return timings.measure(stage, work)
        return await self._tokenizer.run(partial(timings.measure, stage, work), timings)

    async def tokenize_candidates(
        self, ranker: LateScorer, texts: Sequence[str], deadline: float, timings: Timings
    ) -> tuple[list[list[int]], int]:
        """Tokenise texts; also returns how many texts were cut. Raises TimeTooShort as `_in_turns`."""
        parts = await self._in_turns(ranker.tokenize_candidates, texts, deadline, timings, "tokenize")
        return [ids for tokens, _ in parts for ids in tokens], sum(cut for _, cut in parts)

    async def _in_turns(
        self,
        tokenize: Callable[[Sequence[str]], T],
        texts: Sequence[str],
        deadline: float,
        timings: Timings,
        stage: Stage,
    ) -> list[T]:
        """Tokenise texts a few at a time, with the work of others in between; returns the result of each turn.

        Raises:
            TimeTooShort: this alone takes longer than there is time, so the same request would never get any further.
        """
        done: list[T] = []
        half = (deadline - time.monotonic()) / 2
        for start, end in _turns(texts):
            if timings.seconds[stage] > half and 0 < start < len(texts) / 2:
                raise TimeTooShort(len(texts), start)
            done.append(await self.tokenize(partial(tokenize, texts[start:end]), timings, stage))
        return done

    async def context(
        self, ranker: LateScorer, context: list[int], deadline: float, timings: Timings
    ) -> NDArray[np.float32]:
        """Encode a tokenised context, (M, D); equal ones that wait at the same time are encoded once."""
        work = Work(ranker.encode_context_batch, [context], [len(context)], key=tuple(context))
        codes: NDArray[np.float32]
        [codes] = await self._run("context", work, deadline, timings)
        return codes

    async def candidates(
        self,
        ranker: LateScorer,
        tokens: Sequence[list[int]],
        deadline: float,
        timings: Timings,
        on_batch: OnBatch | None = None,
        resumes: bool = False,
    ) -> list[NDArray[np.float32]]:
        """Encode tokenised candidates, (D,) each; `on_batch` and `resumes` as in `Work`.

        Raises:
            TimeTooShort: they cannot be done by the deadline, and nobody keeps what is done.
        """
        work = Work(ranker.encode_candidate_batch, tokens, list(map(len, tokens)), None, on_batch, resumes)
        return await self._run("candidate", work, deadline, timings)

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
            TimeTooShort: so many pairs cannot be tokenised or read by the deadline.
        """
        tokenize = partial(_split_pairs, scorer, conversation)
        parts = await self._in_turns(tokenize, texts, deadline, timings, "rerank")
        pairs = [pair for part in parts for pair in part.pairs]
        lengths = [length for part in parts for length in part.lengths]
        if time.monotonic() + self.batcher.predict("pair", lengths) > within:
            self.batcher.doubt("pair")
            raise DeadlineExceeded("the cross-encoder would take longer")
        scores = await self._run("pair", Work(_PairBatch(scorer), pairs, lengths), deadline, timings)
        cut = sum(part.truncation.candidates for part in parts)
        truncation = replace(parts[0].truncation, candidates=cut) if parts else Truncation()
        return PairScores(np.array(scores, np.float32), truncation, sum(lengths), timings.seconds)

    async def _run(self, lane: Lane, work: Work, deadline: float, timings: Timings) -> list[Any]:
        """Run sequences through a model: their wait is queueing, the rest is the stage."""
        stage: Stage = "rerank" if lane == "pair" else "encode"
        with timings.timed(stage):
            done = await self.batcher.run(lane, work, deadline)
        timings.add(stage, -done.waited)
        timings.add("queue", done.waited)
        return done.outputs

    def close(self) -> None:
        """Finish what has begun, drop what waits."""
        self._tokenizer.close()
        self.batcher.close()


def _turns(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield where the texts of each turn begin and end."""
    start = letters = 0
    for at, text in enumerate(texts, 1):
        letters += len(text)
        if at - start == TEXTS_A_TURN or letters >= LETTERS_A_TURN or at == len(texts):
            yield start, at
            start, letters = at, 0


class _SplitPairs(NamedTuple):
    """Tokenised pairs, each by itself, its length in tokens, and what was cut of all."""

    pairs: list[Pairs]
    lengths: list[int]
    truncation: Truncation


def _split_pairs(scorer: PairScorer, conversation: Conversation, texts: Sequence[str]) -> _SplitPairs:
    pairs, truncation = scorer.tokenize_pairs(conversation, texts)
    of_candidates = zip(pairs.owners, pairs.candidates, strict=True)
    lengths = [len(pairs.contexts[owner]) + len(candidate) for owner, candidate in of_candidates]
    return _SplitPairs([pairs.take([at]) for at in range(len(lengths))], lengths, truncation)


@dataclass(frozen=True)
class _PairBatch:
    """A cross-encoder's forward pass over pairs of several requests; equal for the same cross-encoder."""

    scorer: PairScorer

    def __call__(self, pairs: list[Pairs]) -> NDArray[np.float32]:
        return self.scorer.score_pair_batch(Pairs.join(pairs))
