"""What requests cost, how fast such work is done, and which requests are let in: those that get done in time.

Costs are in tokens, estimated by the lengths of texts before any of them is read.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from polyrank.model.rankers.classifier import Classifier
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.text.assembly import Conversation
from polyrank.service.errors import DeadlineExceeded, Overloaded
from polyrank.service.live.models import LateScorer, PairScorer
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking.stages import SHARE_OF_TIME, Journey, Ticket
from polyrank.service.ranking.values import ExplainRequest, RankRequest

LETTERS_A_TOKEN = 4
LETTERS_A_WORD = 6  # with the space behind it
LETTERS_WORTH_A_TOKEN = 128  # a CPU tokenises so many letters in the time in which it encodes one token
MOST_TOKENS = 512  # an encoder sees no more of a text
TOKENS_A_CANDIDATE = 32  # a stored candidate that the cross-encoder will read
# The second stage may cost so much where every candidate is scored: some seconds of one core with a small model.
MOST_EXACT_TOKENS = 16_384
_SAMPLE = 1000
TOKENS_A_REQUEST = 128  # what any request costs, however short: forward passes and search


def ranking_tokens(request: RankRequest, scorer: PairScorer | None) -> int:
    """Estimate a ranking, without the candidates that came as texts: the vectors of some are known.

    scorer: of its best candidates; None: of none.
    """
    context, count = _context_tokens(request.conversation), request.top_n or 0
    read = 0 if scorer is None else context * _readings(scorer, count) + count * TOKENS_A_CANDIDATE
    return TOKENS_A_REQUEST + context + read


def round_tokens(ranker: LateScorer, request: RankRequest, pool: int) -> int:
    """Estimate one more search of the pool for a request that was let in: the context is encoded."""
    return TOKENS_A_REQUEST + late_tokens(ranker, request, pool)


def late_tokens(ranker: LateScorer, request: RankRequest, pool: int) -> int:
    """Estimate the second stage, if the model has one; the generation has so many candidates."""
    if ranker.late_rows is None:
        return 0
    if request.candidates is not None:
        count = len(request.candidates)
    else:
        count = pool if request.exact else min(pool, max(request.retrieve_k, request.depth))
    return math.ceil(count * _sample_tokens(ranker, request.conversation) / _SAMPLE)


def most_exact(ranker: LateScorer, conversation: Conversation) -> int:
    """Return how many candidates the second stage scores for one request at most."""
    return MOST_EXACT_TOKENS * _SAMPLE // _sample_tokens(ranker, conversation)


def _sample_tokens(ranker: LateScorer, conversation: Conversation) -> int:
    """Estimate the second stage over `_SAMPLE` candidates; its cost grows evenly with their number."""
    assert ranker.late_rows is not None, "the model has a second stage"
    rows = np.full(_SAMPLE, ranker.late_rows.usual_count, np.int64)
    return max(1, ranker.late_tokens(_context_tokens(conversation), rows))


def explaining_tokens(request: ExplainRequest) -> int:
    """Estimate what an explanation reads beyond the ranking of its candidates: tokens times forward passes."""
    conversation, count = request.ranking.conversation, len(request.ranking.candidates or ())
    context = _context_tokens(conversation)
    tokens = context + count * TOKENS_A_CANDIDATE
    if request.occlusion:
        tokens += context * context
    if request.cross is not None:
        turns = len(conversation.turns) + len(conversation.persona)
        parts = turns if request.cross == "turns" else min(context, conversation.letters // LETTERS_A_WORD)
        tokens += count * (1 + parts) * (context + TOKENS_A_CANDIDATE)
    return tokens


def pair_tokens(scorer: PairScorer, conversation: Conversation, texts: Sequence[str]) -> int:
    """Estimate reading each text together with a context."""
    read = _context_tokens(conversation) * _readings(scorer, len(texts))
    return TOKENS_A_REQUEST + read + text_tokens(texts)


def _readings(scorer: PairScorer, count: int) -> int:
    """Return how often a context is read for so many candidates."""
    return min(1, count) if ARCHITECTURES[scorer.architecture].reads_once else count


def class_tokens(classifier: Classifier, conversation: Conversation, texts: Sequence[str]) -> int:
    """Estimate telling the classes of texts, each beside the conversation or as its last turn."""
    network = classifier.network
    if not classifier.reads_pairs:
        said = [conversation.followed_by(text) for text in texts]
        return TOKENS_A_REQUEST + sum(_scored_tokens(classifier, each) for each in said)
    if not network.retrieves:
        return pair_tokens(network, conversation, texts)
    context, each = _context_tokens(conversation), [text_tokens([text]) for text in texts]
    late = 0
    if network.late_rows is not None:
        late = network.late_tokens(context, np.array([network.late_rows.count or rows for rows in each]))
    return TOKENS_A_REQUEST + context + sum(each) + late


def _scored_tokens(classifier: Classifier, conversation: Conversation) -> int:
    """Estimate scoring the names of all classes as replies."""
    network, rows, context = classifier.network, classifier.label_rows, _context_tokens(conversation)
    if not network.retrieves:
        return context * len(classifier.labels) + text_tokens(classifier.labels)
    assert rows is not None
    return context + (0 if rows.counts is None else network.late_tokens(context, rows.counts))


def text_tokens(texts: Sequence[str]) -> int:
    """Estimate texts, each alone."""
    return sum(2 + min(MOST_TOKENS, len(text) // LETTERS_A_TOKEN) for text in texts)


def tokenizer_tokens(texts: Sequence[str]) -> int:
    """Estimate texts that are tokenised and not encoded."""
    return sum(1 + len(text) // LETTERS_WORTH_A_TOKEN for text in texts)


def _context_tokens(conversation: Conversation) -> int:
    return min(MOST_TOKENS, conversation.letters // LETTERS_A_TOKEN)


# So many measurements are remembered.
MEASUREMENTS = 16
# The n-th refusal in a row lowers a prediction by the n-th power of this; after so many all is measured anew.
DOUBT, MOST_DOUBTS = 0.92, 8


class Rate:
    """Seconds a unit of work: the median of the last measurements, each as heavy as its work.

    A moment in which the machine stood still, or a model's slow first batches, do not move it. It decides what is
    refused, and refused work teaches nothing: each refusal in a row lowers it more, so that some work is soon tried.
    """

    def __init__(self, fewest: int = 1) -> None:
        self._fewest, self._median, self._doubts = fewest, 0.0, 0
        self._measured: deque[tuple[float, float]] = deque(maxlen=MEASUREMENTS)  # seconds a unit, and units

    def learn(self, units: float, seconds: float) -> None:
        """Take in a measurement."""
        if self._doubts >= MOST_DOUBTS:
            self._measured.clear()
        self._measured.append((seconds / units, units))
        self._doubts, half = 0, sum(weight for _, weight in self._measured) / 2
        for seconds_a_unit, weight in sorted(self._measured):
            half -= weight
            if half <= 0:
                self._median = seconds_a_unit
                break

    def doubt(self) -> None:
        """Count a refusal."""
        self._doubts += 1

    def predict(self, units: float) -> float:
        """Return the seconds that so many units will take, lowered by refusals."""
        doubted: float = DOUBT ** (self._doubts * (self._doubts + 1) / 2)
        return self.measured(units) * doubted

    def measured(self, units: float) -> float:
        """Return the seconds by measurements alone; 0 before there are the `fewest`."""
        return units * self._median if len(self._measured) >= self._fewest else 0.0


# The speed is that of the last seconds in which there was anything to do. While little is known, that of a CPU is
# assumed, because a few short requests say nothing about long ones.
MEMORY_SECONDS = 5.0
FIRST_SECONDS, FIRST_TOKENS = 0.1, 1000.0
MOST_RETRY_SECONDS = 30


class Admission:
    """Counts the work of all requests in progress, and how fast it gets done; for the event loop's thread.

    With `most_tokens` in progress no other request is let in; one request may exceed that. `turn_tokens` of a long
    request are done at a time, before others have their turn. `progress` returns how many tokens were done, ever.
    """

    def __init__(
        self,
        most_tokens: int,
        turn_tokens: int,
        metrics: Metrics,
        progress: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._turn, self._metrics = most_tokens, turn_tokens, metrics
        self._progress, self._clock = progress, clock
        self._inside: dict[Ticket, None] = {}
        self._looked_at, self._seen = clock(), progress()
        self._busy_seconds = self._done_tokens = 0.0  # of the last few seconds in which there was a request

    @property
    def tokens(self) -> int:
        """Tokens of all requests in progress."""
        return sum(ticket.tokens for ticket in self._inside)

    @contextmanager
    def admitted(self, journey: Journey, tokens: int, kept: int = 0) -> Iterator[None]:
        """Let a request in for the block; its tokens are estimated.

        What is done of the `kept` ones of its tokens is kept even if the request is late, so time for one turn of them
        is enough.

        Raises:
            DeadlineExceeded: its time is already over.
            Overloaded: there is too much before it; carries when to try again.
        """
        if self._clock() >= journey.deadline:
            raise DeadlineExceeded("before it began")
        others = [*self._inside]
        if not self._has_room(others, tokens, tokens - kept + min(kept, self._turn), journey.deadline):
            wait = self._seconds(self._before(others, tokens))
            raise Overloaded(len(others), max(1, min(MOST_RETRY_SECONDS, math.ceil(wait))))
        ticket = journey.ticket = Ticket(tokens)
        self._inside[ticket] = None
        self._metrics.add_to_queue(1, tokens)
        try:
            yield
            self._done_tokens += TOKENS_A_REQUEST * ticket.searches
        finally:
            self._look(self._clock())
            del self._inside[ticket]
            self._metrics.add_to_queue(-1, -ticket.tokens)

    def searches_again(self, journey: Journey, tokens: int) -> bool:
        """Let a request that is in search once more, if there is room beside the others; returns whether there is."""
        ticket = journey.ticket
        assert ticket is not None, "it is in"
        others = [each for each in self._inside if each is not ticket]
        if not self._has_room(others, tokens, tokens, journey.deadline):
            return False
        ticket.tokens, ticket.searches = ticket.tokens + tokens, ticket.searches + 1
        self._metrics.add_to_queue(0, tokens)
        return True

    def _has_room(self, others: Sequence[Ticket], tokens: int, least: int, deadline: float) -> bool:
        """Whether so many tokens, of which `least` must be done in time, can be taken on beside other requests."""
        now = self._clock()
        self._look(now)
        before = self._before(others, tokens)
        # A request that is alone may take all its time, because no other could use it. Else the rest of the time is for
        # requests that overtake it, and for chance.
        late = bool(others) and self._seconds(before + least) > SHARE_OF_TIME * (deadline - now)
        full = before >= self._most or (tokens > self._turn and sum(each.tokens for each in others) >= self._most)
        return not (late or full)

    def _before(self, others: Sequence[Ticket], tokens: int) -> int:
        """Return what is done before a request of so many tokens: of longer ones only as much as turns allow."""
        most = max(tokens, self._turn)
        return sum(min(ticket.tokens, most) for ticket in others)

    def _look(self, now: float) -> None:
        """Take in what was done since the last look, and how long it took."""
        progress = self._progress()
        if self._inside:
            kept = math.exp((self._looked_at - now) / MEMORY_SECONDS)
            self._busy_seconds = kept * self._busy_seconds + (1 - kept) * MEMORY_SECONDS
            self._done_tokens = kept * self._done_tokens + progress - self._seen
        self._looked_at, self._seen = now, progress

    def _seconds(self, tokens: int) -> float:
        """Return how long so many tokens take at the recent speed."""
        return tokens * (FIRST_SECONDS + self._busy_seconds) / (FIRST_TOKENS + self._done_tokens)
