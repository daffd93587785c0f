"""A loaded classifier: it tells which of its classes a context and a text are."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyrank.model.rankers.cross import CrossRanker
from polyrank.model.rankers.late import LateRanker
from polyrank.model.text.assembly import Conversation, Turn


class Classifier:
    """Tells the class of a context and a text. Safe to call from several threads.

    Attributes:
        name: the name it was loaded by.
        config: what its checkpoint says.
        labels: the names of its C classes.
        network: what runs its forward passes.
        fingerprint: identity of config, weights and tokenizer (64 hexadecimal digits).
    """

    def __init__(self, network: LateRanker | CrossRanker) -> None:
        """Wrap a network whose config has labels."""
        self.network = network
        self.name, self.config, self.fingerprint = network.name, network.config, network.fingerprint
        self.labels = tuple(network.config.labels)

    def classify(
        self, context: str | Sequence[str | Turn], texts: Sequence[str], persona: str | Sequence[str] = ()
    ) -> list[dict[str, float]]:
        """Return the probability of each class for each of the texts beside a context, the likeliest class first.

        Arguments as `LateRanker.rank`.
        """
        conversation = Conversation.of(context, persona)
        return [self.by_label(row) for row in self.probabilities([(conversation, text) for text in texts])]

    def by_label(self, probabilities: NDArray[np.float32]) -> dict[str, float]:
        """Return the probabilities of one pair, (C,), by label, the likeliest first."""
        order = np.argsort(-probabilities, kind="stable")
        return {self.labels[place]: float(probabilities[place]) for place in order}

    def probabilities(self, pairs: Sequence[tuple[Conversation, str]]) -> NDArray[np.float32]:
        """Return the probability of each class for each pair, (N, C), in the order of `labels`."""
        logits = np.empty((len(pairs), len(self.labels)), np.float32)
        for conversation, positions in _by_conversation(pairs).items():
            logits[positions] = self._logits(conversation, [pairs[at][1] for at in positions])
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


def _by_conversation(pairs: Sequence[tuple[Conversation, str]]) -> dict[Conversation, list[int]]:
    found: dict[Conversation, list[int]] = {}
    for at, (conversation, _) in enumerate(pairs):
        found.setdefault(conversation, []).append(at)
    return found
