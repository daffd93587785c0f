"""A loaded classifier: it tells which of its classes a text is, beside a context or alone."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyrank.model.rankers.networks import CrossRanker, VectorRanker
from polyrank.model.representations import Representations
from polyrank.model.text.assembly import Conversation, Turn, require_several
from polyrank.model.text.dialogues import Dialogue


class Classifier:
    """Tells the classes of texts. Safe to call from several threads.

    One of pairs reads a context and a text. One of single texts reads a text as the last turn of what was said, and
    scores the name of each class as a reply.

    Attributes:
        label_rows: what the network makes of the names of the classes, where it scores them apart; else None.
    """

    def __init__(self, network: VectorRanker | CrossRanker) -> None:
        self.network = network
        self.name, self.config, self.fingerprint = network.name, network.config, network.fingerprint
        self.labels = tuple(network.config.labels)
        self.reads_pairs = network.config.class_from == "head"
        self.label_rows: Representations | None = None
        if network.retrieves and not self.reads_pairs:
            self.label_rows = network.represent_candidates(network.tokenize_candidates(self.labels)[0])

    def classify(
        self, context: str | Sequence[str | Turn], texts: Sequence[str], persona: str | Sequence[str] = ()
    ) -> list[dict[str, float]]:
        """Return the probability of each class for each of the texts, the likeliest class first.

        context: what was said before; it may be empty for a classifier of single texts. Other arguments and errors as
        `VectorRanker.rank`.
        """
        require_several(texts)
        if self.reads_pairs:
            conversation = Conversation.of(context, persona)
            rows = self.probabilities([(conversation, text) for text in texts])
        else:
            turns = [context] if isinstance(context, str) else context
            said = [turn for turn in turns if turn]
            rows = self.of_conversations([Conversation.of([*said, text], persona) for text in texts])
        return [self.by_label(row) for row in rows]

    def by_label(self, probabilities: NDArray[np.float32]) -> dict[str, float]:
        """Return the probabilities of one text, (C,), by label, the likeliest first."""
        order = np.argsort(-probabilities, kind="stable")
        return {self.labels[place]: float(probabilities[place]) for place in order}

    def of_examples(self, examples: Sequence[Dialogue]) -> NDArray[np.float32]:
        """Return the probability of each class for each example, (N, C), in the order of `labels`."""
        if self.reads_pairs:
            return self.probabilities([(each.conversation, each.response) for each in examples])
        return self.of_conversations([each.conversation for each in examples])

    def probabilities(self, pairs: Sequence[tuple[Conversation, str]]) -> NDArray[np.float32]:
        """Return the probability of each class for each pair, (N, C), in the order of `labels`."""
        logits = np.empty((len(pairs), len(self.labels)), np.float32)
        positions_of: dict[Conversation, list[int]] = {}
        for at, (conversation, _) in enumerate(pairs):
            positions_of.setdefault(conversation, []).append(at)
        for conversation, positions in positions_of.items():
            logits[positions] = self._logits(conversation, [pairs[at][1] for at in positions])
        return shares(logits)

    def of_conversations(self, conversations: Sequence[Conversation]) -> NDArray[np.float32]:
        """Return the probability of each class for the last turn of each conversation, (N, C), as `probabilities`."""
        network, logits = self.network, np.empty((len(conversations), len(self.labels)), np.float32)
        if not network.retrieves:
            for row, conversation in enumerate(conversations):
                logits[row] = network.score_pairs(network.tokenize_pairs(conversation, self.labels)[0])
            return shares(logits)
        assert self.label_rows is not None
        tokens = [network.tokenize_context(conversation)[0] for conversation in conversations]
        for row, context in enumerate(network.represent_contexts(tokens)):
            logits[row] = network.late_scores(context, self.label_rows)
        return shares(logits)

    def _logits(self, conversation: Conversation, texts: Sequence[str]) -> NDArray[np.float32]:
        network = self.network
        if not network.retrieves:
            return network.class_logits(network.tokenize_pairs(conversation, texts)[0])
        [context] = network.represent_contexts([network.tokenize_context(conversation)[0]])
        return network.class_logits(context, network.represent_candidates(network.tokenize_candidates(texts)[0]))


def shares(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the softmax of each row of logits, (N, C).

    >>> shares(np.log(np.array([[1.0, 3.0]], np.float32))).tolist()
    [[0.25, 0.75]]
    """
    powers = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    of_all: NDArray[np.float32] = powers / powers.sum(axis=1, keepdims=True)
    return of_all
