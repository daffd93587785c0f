"""Models whose scores are written in the texts: a text is its numbers, the last turn is a factor."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.model.rankers.networks import CrossRanker
from polyrank.model.representations import ContextEncoding, Representations
from polyrank.model.search.topk import scores_of
from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.model.text.sequences import Pairs


class NumberLate:
    """Embeds a text as its first number; has no evidence."""

    name, late_rows, retrieves = "late", None, True

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def tokenize_candidates(self, texts: Sequence[str]) -> tuple[list[Any], int]:
        self.encoded += texts
        return [[float(text.split()[0])] for text in texts], 0

    def represent_candidates(
        self, numbers: list[Any], on_done: Callable[[int], None] = lambda _: None
    ) -> Representations:
        for _ in numbers:
            on_done(1)
        return Representations(np.array(numbers, np.float32).reshape(-1, 1))

    def tokenize_context(self, conversation: Conversation) -> tuple[list[Any], Truncation]:
        return [float(conversation.turns[-1].text)], Truncation()

    def represent_contexts(self, contexts: list[list[Any]]) -> list[ContextEncoding]:
        return [ContextEncoding(np.array([numbers], np.float32)) for numbers in contexts]

    def scores(self, context: ContextEncoding, candidates: Representations, additions: None) -> NDArray[np.float32]:
        return scores_of(candidates.first, context.codes, additions)

    def statistics(self, pool: Iterable[str]) -> None: ...

    def word_table(self, texts: Sequence[str]) -> None: ...

    def list_additions(self, conversation: Conversation, table: None) -> None: ...

    def additions(self, conversation: Conversation, table: None) -> None: ...


class NumberCross(CrossRanker):
    """Scores a text by its last number, and remembers the texts that it read after the first one."""

    def __init__(self) -> None:
        self.name, self.evidence = "cross", None
        self.read: list[str] = []

    def tokenize_pairs(self, conversation: Conversation, texts: Sequence[str]) -> tuple[Pairs, Truncation]:
        self.read += texts[1:]
        factor = float(conversation.turns[-1].text)
        numbers: Any = [[factor * float(text.split()[-1])] for text in texts]
        return Pairs([[]], numbers, [0] * len(texts)), Truncation()

    def score_pairs(self, pairs: Pairs) -> NDArray[np.float32]:
        return np.array(pairs.candidates, np.float32)[:, 0]
