"""What every loaded model that ranks can do, whatever computes its scores. Imports without torch."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from polyrank.model.config import ModelConfig
from polyrank.model.lexical.score import LexicalScore
from polyrank.model.lexical.table import WordTable
from polyrank.model.lexical.words import Statistics
from polyrank.model.representations import Additions
from polyrank.model.text.assembly import Conversation, Turn, require_positive, require_several


class TextRanker(ABC):
    """Ranks texts as replies to a conversation. Safe to call from several threads.

    Attributes:
        name: the name it was loaded by.
        architecture: its name in polyrank.model.registry.
        fingerprint: identity of config, weights and tokenizer (64 hexadecimal digits).
        evidence: what words say for a candidate, which its score includes; None: they do not count.
        calibration: what its scores say; None: that is not known.
    """

    def __init__(self, name: str, config: ModelConfig, fingerprint: str) -> None:
        """Raise CheckpointInvalid for a weight of a feature that this release does not know."""
        self.name, self.config, self.fingerprint = name, config, fingerprint
        self.architecture, self.calibration = config.architecture, config.calibration
        self.evidence = None if config.evidence is None else LexicalScore(config.evidence, config.has_network)

    @abstractmethod
    def score_texts(
        self, conversation: Conversation, texts: Sequence[str], statistics: Statistics | None
    ) -> NDArray[np.float32]:
        """Score texts as replies, (N,), with words if the model has evidence. No score depends on their order.

        statistics: of the pool that says how rare a word is; None: words do not count.
        """

    def rank(
        self,
        context: str | Sequence[str | Turn],
        candidates: Sequence[str],
        top_k: int | None = None,
        persona: str | Sequence[str] = (),
    ) -> list[tuple[int, float]]:
        """Rank candidate texts against a context, which is one text, or turns, oldest first.

        `top_k` is how many to return; None: all. `persona` holds facts about the replying side. How rare a word is
        follows from the candidates themselves; of fewer than 50 no word is known to be rare.

        Returns:
            (position in `candidates`, score), best first; equal scores in the order given.
        """
        require_positive(top_k)
        require_several(candidates)
        scores = self.score_texts(Conversation.of(context, persona), candidates, self.statistics(candidates))
        order = np.argsort(-scores, kind="stable")[:top_k]
        return list(zip(order.tolist(), scores[order].tolist(), strict=True))

    def statistics(self, pool: Iterable[str]) -> Statistics | None:
        """Return how common each word of a pool is; None for a model without evidence."""
        return None if self.evidence is None else Statistics.of(pool)

    def word_table(self, texts: Sequence[str]) -> WordTable | None:
        """Return the words of texts that are a pool by themselves; None for a model without evidence."""
        return None if self.evidence is None else WordTable.of(texts, Statistics.of(texts))

    def additions(self, conversation: Conversation, table: WordTable | None) -> Additions | None:
        """Return what words add to the scores of a table's rows; None for a model without evidence."""
        if self.evidence is None or table is None:
            return None
        return self.evidence.additions(conversation, table)

    def list_additions(self, conversation: Conversation, table: WordTable | None) -> Additions | None:
        """Do what `additions` does, where the rows are one list of candidates (`LexicalScore.turns_share`)."""
        if self.evidence is None or table is None:
            return None
        return self.evidence.in_list(conversation, table).additions(conversation, table)
