"""How many tokens a request may cost, told by the lengths of its texts alone: it may be refused before it is read."""

from collections.abc import Sequence

from polyrank.model.text.assembly import Conversation
from polyrank.service.ranking.values import RankRequest

LETTERS_A_TOKEN = 4
LETTERS_WORTH_A_TOKEN = 128  # so many are tokenised in the time in which a CPU reads a token
MOST_TOKENS = 512  # encoders see so many at most
TOKENS_A_CANDIDATE = 32  # of a stored one that the cross-encoder will read
TOKENS_A_REQUEST = 128  # what a request costs however short it is, forwards and search


def of_ranking(request: RankRequest) -> int:
    """Estimate a ranking, but for the candidates that came as texts: some of those may be known."""
    return TOKENS_A_REQUEST + _of_context(request.conversation) + of_second_look(request)


def of_given(request: RankRequest) -> int:
    """Estimate the candidates that came as texts."""
    return of_texts([given.text for given in request.candidates or () if given.text is not None])


def of_second_look(request: RankRequest) -> int:
    """Estimate what the cross-encoder reads of a ranking's candidates."""
    return (request.top_n or 0) * (_of_context(request.conversation) + TOKENS_A_CANDIDATE)


def of_pairs(conversation: Conversation, texts: Sequence[str]) -> int:
    """Estimate the reading of texts with a context."""
    return TOKENS_A_REQUEST + _of_context(conversation) * len(texts) + of_texts(texts)


def of_tokenizing(texts: Sequence[str]) -> int:
    """Estimate the tokenizer's work alone."""
    return sum(1 + len(text) // LETTERS_WORTH_A_TOKEN for text in texts)


def of_texts(texts: Sequence[str]) -> int:
    """Estimate texts, each alone."""
    return sum(2 + min(MOST_TOKENS, len(text) // LETTERS_A_TOKEN) for text in texts)


def _of_context(conversation: Conversation) -> int:
    letters = sum(len(turn.text) for turn in conversation.turns) + sum(map(len, conversation.persona))
    return min(MOST_TOKENS, letters // LETTERS_A_TOKEN)
