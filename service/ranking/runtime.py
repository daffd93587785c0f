"""What requests run on: the models beside those of generations, and all threads beside the event loop.

    tokenizer    one thread: texts to token ids, but for short ones; one more thread for long ones
    model        one thread: every forward pass of every model, batched over requests
    model-trial  the same of models that are on trial alone, so that a bad one holds up no others
    search       one thread: scans and FAISS, and the scores of vectors that are on this machine (retrieval.py)
    search-trial the same of generations that are on trial
    candidates   a few threads: stored texts, vectors from Redis and their scores (sent_candidates.py, retrieval.py)

Rankings, updates, explanations and embeddings share it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass
from typing import TypeVar

from polyrank.model.rankers.classifier import Classifier
from polyrank.service.errors import NotConfigured
from polyrank.service.live.models import PairScorer
from polyrank.service.observe.metrics import Metrics
from polyrank.service.observe.tracing import OFF, Tracing
from polyrank.service.scheduling.admission import Admission, Rate
from polyrank.service.scheduling.forwards import Forwards
from polyrank.service.scheduling.scheduler import TURN_BATCHES, Scheduler
from polyrank.service.scheduling.stages import Journey, Threads

CANDIDATE_THREADS = 4
# Requests that share a pass over the pool: with more, the first of them would wait too long for the last.
MOST_SCANS = 16
# Requests that hold the lexical scores of every row, 4 bytes each, and 8 for each row that a filter lets through: those
# in a pass, and those of the next.
MOST_WORDS = 2 * MOST_SCANS

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """Bounds of what runs at a time; see `Scheduler` and `Admission`."""

    batch_tokens: int = 512
    max_queue_tokens: int = 262_144
    threads: int | None = None  # of FAISS; None leaves it to FAISS
    min_searched: float = 0.0  # an answer of parts that hold less than this share of the pool is refused


class Runtime:
    """Models and threads. Made, and used, in one event loop.

    `scorer` is the cross-encoder, warm; None: no request may ask for it. `classifier`: the same of what tells classes.
    """

    def __init__(
        self,
        settings: RuntimeSettings,
        metrics: Metrics,
        scorer: PairScorer | None = None,
        tracing: Tracing = OFF,
        classifier: Classifier | None = None,
    ) -> None:
        self.settings, self.metrics, self.scorer, self.classifier = settings, metrics, scorer, classifier
        self.forwards = Forwards(settings.batch_tokens, metrics, tracing)
        self.admission = self._admission()
        self._on_trial = self.forwards.set_apart("model-trial")
        self.candidates = Threads("candidates", CANDIDATE_THREADS)
        self.retrieval = Rate()  # of searching an index
        self.searches = Scheduler("search", ["search"], MOST_SCANS)
        self._searches_on_trial = Scheduler("search-trial", ["search"], MOST_SCANS)
        # Held by those who hold the lexical scores of every row. They do so for a short while: no text that the caller
        # sent is tokenised meanwhile, and no candidate is encoded.
        self.words = asyncio.Semaphore(MOST_WORDS)
        self.explains = asyncio.Lock()  # held by the one request that is explained
        self._loads = asyncio.Lock()

    def for_trials(self) -> "Runtime":
        """Return the same for what is on trial, which holds up nothing else however slow it is; it needs no closing."""
        own = copy(self)
        own.forwards, own.searches = self._on_trial, self._searches_on_trial
        own.retrieval, own.words = Rate(), asyncio.Semaphore(MOST_WORDS)
        own.admission = own._admission()
        return own

    def _admission(self) -> Admission:
        turn = TURN_BATCHES * self.settings.batch_tokens
        return Admission(self.settings.max_queue_tokens, turn, self.metrics, self.forwards.generations)

    @asynccontextmanager
    async def admitted(self, journey: Journey, tokens: int) -> AsyncIterator[None]:
        """Let a request in for the block, and end that at the deadline; errors as `Admission.admitted`."""
        with self.admission.admitted(journey, tokens):
            async with journey.in_time():
                yield

    async def loaded(self, load: Callable[[], T], journey: Journey) -> T:
        """Call a function that takes seconds the first time; others wait for it without a thread."""
        with journey.queued():
            async with self._loads:
                return await self.candidates.run(load, journey)

    @property
    def failed(self) -> str | None:
        """Why no answers can be expected at the moment; None: all is well."""
        models = self.forwards.scheduler
        return self.searches.failed or ("the model's thread does not answer" if models.stuck else models.failed)

    @property
    def stuck(self) -> bool:
        """Whether only a restart will help; a search may take long, so only the end of its thread counts."""
        return self.forwards.scheduler.stuck or self.searches.failed is not None

    def required_scorer(self) -> PairScorer:
        """Return the cross-encoder; raises NotConfigured where there is none."""
        if self.scorer is None:
            raise NotConfigured("rerank: no cross-encoder is loaded; start the server with --reranker MODEL")
        return self.scorer

    def required_classifier(self) -> Classifier:
        """Return the classifier; raises NotConfigured where there is none."""
        if self.classifier is None:
            raise NotConfigured("classify: no classifier is loaded; start the server with --classifier MODEL")
        return self.classifier

    def close(self) -> None:
        """Finish what has begun, drop what waits."""
        for threads in (self._on_trial, self.forwards, self._searches_on_trial, self.searches, self.candidates):
            threads.close()
