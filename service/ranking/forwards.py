"""Texts to what the models make of them: tokenised in one thread, run in another, batched over all requests."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.model.text.pairs import Pairs
from polyrank.service.errors import DeadlineExceeded
from polyrank.service.live.models import LateScorer, PairScorer
from polyrank.service.observe.metrics import Metrics
from polyrank.service.observe.tracing import Tracing
from polyrank.service.ranking.batcher import Batcher
from polyrank.service.ranking.threads import Threads
from polyrank.service.ranking.values import Stages

T = TypeVar("T")


class Vectors(NamedTuple):
    """Vectors of N sequences, and the seconds these waited."""

    vectors: list[NDArray[np.float32]]
    waited: float


class PairScores(NamedTuple):
    """Cross-encoder scores (N,), what it did not see, and how many tokens it saw."""

    scores: NDArray[np.float32]
    truncation: Truncation
    tokens: int


class Forwards:
    """The tokenizer's thread and the model's.

    Args:
        batch_tokens: of a batch, padding included; 0: each sequence alone.
        metrics: told of each batch.
        tracing: told of each batch, too.
    """

    def __init__(self, batch_tokens: int, metrics: Metrics, tracing: Tracing) -> None:
        self._batcher = Batcher(batch_tokens, metrics, tracing)
        self._tokenizer = Threads("tokenizer", 1)

    @property
    def failed(self) -> str | None:
        """Why nothing can be expected at the moment; None: all is well."""
        return "the model's thread does not answer" if self.stuck else self._batcher.failed

    @property
    def stuck(self) -> bool:
        """Whether only a restart will help."""
        return self._batcher.stuck

    @property
    def done_tokens(self) -> int:
        """How many tokens have gone through the models, ever."""
        return self._batcher.done_tokens

    async def tokenize(self, work: Callable[[], T], stages: Stages, stage: str = "tokenize") -> T:
        """Run something that tokenises; its time counts to the stage."""

        def timed() -> T:
            with stages.timed(stage):
                return work()

        return await self._tokenizer.run(timed, stages)

    async def contexts(self, ranker: LateScorer, context: list[int], deadline: float) -> Vectors:
        """The vectors (M, D) of a tokenised context; equal ones that wait at the same time are encoded once."""
        done = await self._batcher.run(
            "context", ranker.encode_context_batch, [context], [len(context)], deadline, tuple(context)
        )
        return Vectors(*done)

    async def candidates(self, encoder: LateScorer, tokens: Sequence[list[int]], deadline: float) -> Vectors:
        """The vectors (D,) of tokenised candidates."""
        lengths = [len(each) for each in tokens]
        return Vectors(*await self._batcher.run("candidate", encoder.encode_candidate_batch, tokens, lengths, deadline))

    async def pairs(
        self,
        scorer: PairScorer,
        conversation: Conversation,
        texts: Sequence[str],
        deadline: float,
        stages: Stages,
        within: float = math.inf,
    ) -> PairScores:
        """Let a cross-encoder read texts with a context.

        Args:
            scorer: the cross-encoder.
            conversation: the context.
            texts: candidates.
            deadline: on the monotonic clock; what has not begun by then does not begin.
            stages: told the time, as "rerank".
            within: like `deadline`, and nothing begins where it is foreseen that it will not be kept.

        Raises:
            DeadlineExceeded: one of the two.
        """

        def tokenize() -> tuple[list[Pairs], list[int], Truncation]:
            pairs, truncation = scorer.tokenize_pairs(conversation, texts)
            of_candidates = zip(pairs.owners, pairs.candidates, strict=True)
            lengths = [len(pairs.contexts[owner]) + len(candidate) for owner, candidate in of_candidates]
            return [pairs.take([at]) for at in range(len(lengths))], lengths, truncation

        pairs, lengths, truncation = await self.tokenize(tokenize, stages, "rerank")
        if time.monotonic() + self._batcher.predict("pair", lengths) > within:
            self._batcher.doubt("pair")
            raise DeadlineExceeded("the cross-encoder would take longer")
        with stages.timed("rerank"):
            done = await self._batcher.run("pair", _Reads(scorer), pairs, lengths, deadline)
        stages.move("rerank", "queue", done.waited)
        return PairScores(np.array(done.outputs, np.float32), truncation, sum(lengths))

    def close(self) -> None:
        """Finish what has begun, drop what waits."""
        self._tokenizer.close()
        self._batcher.close()


@dataclass(frozen=True)
class _Reads:
    """A cross-encoder's forward over pairs of several requests; equal for the same cross-encoder."""

    scorer: PairScorer

    def __call__(self, pairs: list[Pairs]) -> NDArray[np.float32]:
        return self.scorer.score_pair_batch(Pairs.join(pairs))
