"""What a classifier's network gives for each text of a request, from which the probabilities of classes follow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.rankers.classifier import Classifier
from polyrank.model.rankers.networks import CrossRanker, LateRanker
from polyrank.model.representations import ContextEncoding, Representations
from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.model.text.sequences import Pairs
from polyrank.service.observe.labels import Lane
from polyrank.service.ranking.forwards import AT_ONCE, Forwards, LateBatch, PairBatch
from polyrank.service.ranking.scheduler import Work
from polyrank.service.ranking.stages import Timings


class ClassLogits(NamedTuple):
    """A classifier's logits (N, C), what it did not see, and how many tokens it saw."""

    logits: NDArray[np.float32]
    truncation: Truncation
    tokens: int


class Classifying:
    """Runs the forward passes of a classifier for one request; errors of all methods are those of `Forwards`."""

    def __init__(self, forwards: Forwards, deadline: float, timings: Timings) -> None:
        self._forwards, self._deadline, self._timings = forwards, deadline, timings

    async def logits(self, classifier: Classifier, conversation: Conversation, texts: Sequence[str]) -> ClassLogits:
        """Return the logits of the classes of texts, each beside the conversation or as its last turn."""
        network = classifier.network
        if classifier.reads_pairs:
            if network.retrieves:
                return await self._pairs_apart(network, conversation, texts)
            return await self._pairs_joined(network, conversation, texts)
        said = [conversation.followed_by(text) for text in texts]
        if network.retrieves:
            assert classifier.label_rows is not None
            return await self._scored_apart(network, said, classifier.label_rows)
        return await self._scored_joined(network, said, classifier.labels)

    async def _pairs_joined(
        self, network: CrossRanker, conversation: Conversation, texts: Sequence[str]
    ) -> ClassLogits:
        """Read each text together with the conversation."""
        pairs, lengths, truncation = await self._forwards.split(network, conversation, texts, self._timings)
        logits = await self._run("pair", Work(_PairClassBatch(network), pairs, lengths))
        return ClassLogits(np.array(logits, np.float32), truncation, sum(lengths))

    async def _pairs_apart(self, network: LateRanker, conversation: Conversation, texts: Sequence[str]) -> ClassLogits:
        """Read the conversation and each text alone, and compare them."""
        forwards, deadline, timings = self._forwards, self._deadline, self._timings
        [ids], truncation = await self._tokens(network, [conversation])
        tokens, cut = await forwards.tokenize_candidates(network, texts, deadline, timings)
        context = await forwards.context(network, ids, deadline, timings)
        made = Representations.join(await forwards.candidates(network, tokens, deadline, timings))
        logits = []
        for start in range(0, len(texts), AT_ONCE):
            some = made.take(np.arange(start, min(start + AT_ONCE, len(texts))))
            cost = len(some.first) if some.counts is None else max(1, network.late_tokens(len(ids), some.counts))
            logits += await self._run("late", Work(_LateClassBatch(network), [(context, some)], [cost]))
        seen = len(ids) + sum(map(len, tokens))
        return ClassLogits(np.concatenate(logits), replace(truncation, candidates=cut), seen)

    async def _scored_joined(
        self, network: CrossRanker, said: Sequence[Conversation], labels: Sequence[str]
    ) -> ClassLogits:
        """Read each conversation together with the name of each class."""
        read = [await self._forwards.split(network, each, labels, self._timings) for each in said]
        pairs, lengths = [pair for each in read for pair in each.pairs], [n for each in read for n in each.lengths]
        scores = await self._run("pair", Work(PairBatch(network), pairs, lengths))
        logits = np.array(scores, np.float32).reshape(len(said), len(labels))
        return ClassLogits(logits, _sum([each.truncation for each in read]), sum(lengths))

    async def _scored_apart(
        self, network: LateRanker, said: Sequence[Conversation], labels: Representations
    ) -> ClassLogits:
        """Read each conversation, and score what was made of the names of the classes."""
        tokens, truncation = await self._tokens(network, said)
        contexts = await self._forwards.contexts(network, tokens, self._deadline, self._timings)
        counts = np.zeros(0, np.int64) if labels.counts is None else labels.counts
        costs = [max(1, network.late_tokens(len(ids), counts)) for ids in tokens]
        work = Work(LateBatch(network), [(context, labels) for context in contexts], costs)
        return ClassLogits(np.stack(await self._run("late", work)), truncation, sum(map(len, tokens)))

    async def _tokens(self, network: LateRanker, said: Sequence[Conversation]) -> tuple[list[list[int]], Truncation]:
        """Tokenise conversations; also returns what was cut of all."""
        read = [
            await self._forwards.tokenize(network.context_steps(each), each.letters, self._timings) for each in said
        ]
        return [ids for ids, _ in read], _sum([truncation for _, truncation in read])

    async def _run(self, lane: Lane, work: Work) -> list[Any]:
        return await self._forwards.run(lane, work, self._deadline, self._timings)


def _sum(cuts: Sequence[Truncation]) -> Truncation:
    return Truncation(sum(cut.turns for cut in cuts), sum(cut.tokens for cut in cuts))


@dataclass(frozen=True)
class _PairClassBatch:
    """A classifier's forward pass over pairs of several requests; equal for the same classifier."""

    network: CrossRanker

    def __call__(self, pairs: list[Pairs]) -> NDArray[np.float32]:
        return self.network.class_logits(Pairs.join(pairs))


@dataclass(frozen=True)
class _LateClassBatch:
    """A classifier's comparisons for several requests, one after the other; equal for the same classifier."""

    network: LateRanker

    def __call__(self, pairs: list[tuple[ContextEncoding, Representations]]) -> list[NDArray[np.float32]]:
        return [self.network.class_logits(*pair) for pair in pairs]
