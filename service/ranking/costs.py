"""What requests cost, in tokens: estimated by the lengths of texts before any of them is read."""

import math
from collections.abc import Sequence

import numpy as np

from polyrank.model.rankers.classifier import Classifier
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.text.assembly import Conversation
from polyrank.service.live.models import PairScorer, VectorScorer
from polyrank.service.ranking.values import ExplainRequest, RankRequest
from polyrank.service.scheduling.admission import TOKENS_A_REQUEST

LETTERS_A_TOKEN = 4
LETTERS_A_WORD = 6  # with the space behind it
LETTERS_WORTH_A_TOKEN = 128  # a CPU tokenises so many letters in the time in which it encodes one token
MOST_TOKENS = 512  # an encoder sees no more of a text
TOKENS_A_CANDIDATE = 32  # a stored candidate that the cross-encoder will read
# The second stage may cost so much where every candidate is scored: some seconds of one core with a small model.
MOST_EXACT_TOKENS = 16_384
_SAMPLE = 1000


def ranking_tokens(request: RankRequest, ranker: VectorScorer, pool: int, scorer: PairScorer | None) -> int:
    """Estimate a ranking, without the candidates that came as texts: the vectors of some are known.

    pool: how many candidates that has. scorer: of the best candidates; None: of none.
    """
    context, count = _context_tokens(request.conversation), request.top_n or 0
    pairs = 0 if scorer is None else context * _readings(scorer, count) + count * TOKENS_A_CANDIDATE
    return search_tokens(request, ranker, pool) + context + pairs


def search_tokens(request: RankRequest, ranker: VectorScorer, pool: int) -> int:
    """Estimate a search by an encoded context, with the second stage if the model has one."""
    if ranker.late_rows is None:
        return TOKENS_A_REQUEST
    if request.candidates is not None:
        count = len(request.candidates)
    else:
        count = pool if request.exact else min(pool, request.retrieved)
    late = math.ceil(count * _sample_tokens(ranker, request.conversation) / _SAMPLE)
    return TOKENS_A_REQUEST + late


def most_exact(ranker: VectorScorer, conversation: Conversation) -> int:
    """Return how many candidates the second stage scores for one request at most."""
    return MOST_EXACT_TOKENS * _SAMPLE // _sample_tokens(ranker, conversation)


def _sample_tokens(ranker: VectorScorer, conversation: Conversation) -> int:
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
    contexts = _context_tokens(conversation) * _readings(scorer, len(texts))
    return TOKENS_A_REQUEST + contexts + text_tokens(texts)


def _readings(scorer: PairScorer, count: int) -> int:
    """Return how often a context is read for so many candidates."""
    return min(1, count) if ARCHITECTURES[scorer.architecture].reads_once else count


def class_tokens(classifier: Classifier, conversation: Conversation, texts: Sequence[str]) -> int:
    """Estimate telling the classes of texts, each beside the conversation or as its last turn."""
    network = classifier.network
    if not classifier.reads_pairs:
        conversations = [conversation.followed_by(text) for text in texts]
        return TOKENS_A_REQUEST + sum(_scored_tokens(classifier, each) for each in conversations)
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
