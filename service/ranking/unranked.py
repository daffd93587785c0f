"""What models make of texts where nothing is ranked: vectors, tokens, classes."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyrank.model.errors import InvalidInput
from polyrank.model.rankers.classifier import Classifier, shares
from polyrank.model.rankers.networks import CrossRanker, VectorRanker
from polyrank.model.representations import ContextEncoding, Representations
from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.model.text.reading import letters_worth, one_by_one
from polyrank.model.text.sequences import Pairs
from polyrank.service.errors import InferenceFailed, NotConfigured
from polyrank.service.observe.labels import Lane
from polyrank.service.ranking import costs
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.rescoring import score_pairs
from polyrank.service.ranking.runtime import Runtime
from polyrank.service.scheduling.forwards import AT_ONCE, Embeddings, Forwards, LateBatch, PairBatch
from polyrank.service.scheduling.scheduler import Work
from polyrank.service.scheduling.stages import Journey

T = TypeVar("T")


class Classes(NamedTuple):
    """Probabilities of classes (N, C), what the model did not see, how many tokens it saw, and seconds by stage."""

    probabilities: NDArray[np.float32]
    truncation: Truncation
    tokens: int
    seconds: dict[str, float]


async def embed(runtime: Runtime, serving: Serving, texts: Sequence[str], journey: Journey) -> Embeddings:
    """Encode texts as candidates; errors as `Engine.rank`."""
    async with runtime.admitted(journey, costs.text_tokens(texts)):
        return await runtime.forwards.encode(serving.ranker, texts, journey)


async def embed_queries(runtime: Runtime, serving: Serving, texts: Sequence[str], journey: Journey) -> Embeddings:
    """Encode each text as a context; errors as `embed`, and InvalidInput where a context has several vectors."""
    ranker, forwards = serving.ranker, runtime.forwards
    async with runtime.admitted(journey, costs.text_tokens(texts)):
        contexts = [await forwards.tokenize_context(ranker, Conversation.of(text), journey) for text in texts]
        encoded = await forwards.contexts(ranker, [tokens for tokens, _ in contexts], journey)
    if any(len(each.codes) != 1 for each in encoded):
        why = f"a {ranker.architecture}-encoder makes several vectors of one query, not one"
        raise InvalidInput(f"{why}; ask /rank, or embed texts as documents")
    cut = sum(truncation.tokens > 0 for _, truncation in contexts)
    vectors = Representations(np.concatenate([each.codes for each in encoded]))
    return Embeddings(vectors, sum(len(tokens) for tokens, _ in contexts), cut, journey.seconds)


async def tokenize(runtime: Runtime, work: Callable[[str], T], texts: Sequence[str], journey: Journey) -> list[T]:
    """Call a function for each text, as `Forwards.tokenize` does steps; errors as `embed`."""
    async with runtime.admitted(journey, costs.tokenizer_tokens(texts)):
        return await runtime.forwards.tokenize(one_by_one(work, texts), letters_worth(texts), journey)


async def probe(runtime: Runtime, serving: Serving | None) -> None:
    """Try a model while it seems to have failed: a success makes the service ready again.

    Without a generation the reranker is tried, or the classifier.
    """
    if runtime.failed is None or runtime.stuck:
        return
    hello = Conversation.of("hello")
    if serving is None:
        with suppress(InferenceFailed, NotConfigured):
            await score_pairs(runtime, None, hello, ["hello"], Journey())
        with suppress(InferenceFailed, NotConfigured):
            await classify(runtime, hello, ["hello"], Journey())
        return
    with suppress(InferenceFailed):
        context, _ = await runtime.forwards.tokenize_context(serving.ranker, hello, Journey())
        await runtime.forwards.context(serving.ranker, context, Journey())
        await runtime.forwards.encode(serving.ranker, ["hello"], Journey())


async def classify(runtime: Runtime, conversation: Conversation, texts: Sequence[str], journey: Journey) -> Classes:
    """Tell the classes of texts, each beside the conversation or as its last turn; errors as `embed`."""
    classifier = runtime.required_classifier()
    async with runtime.admitted(journey, costs.class_tokens(classifier, conversation, texts)):
        output = await _Classifying(runtime.forwards, journey).logits(classifier, conversation, texts)
    return Classes(shares(output.logits), output.truncation, output.tokens, journey.seconds)


class _ClassLogits(NamedTuple):
    """A classifier's logits (N, C), what it did not see, and how many tokens it saw."""

    logits: NDArray[np.float32]
    truncation: Truncation
    tokens: int


class _Classifying:
    """Runs the forward passes of a classifier for one request; errors of all methods are those of `Forwards`."""

    def __init__(self, forwards: Forwards, journey: Journey) -> None:
        self._forwards, self._journey = forwards, journey

    async def logits(self, classifier: Classifier, conversation: Conversation, texts: Sequence[str]) -> _ClassLogits:
        network = classifier.network
        if classifier.reads_pairs:
            if network.retrieves:
                return await self._pairs_apart(network, conversation, texts)
            return await self._pairs_joined(network, conversation, texts)
        conversations = [conversation.followed_by(text) for text in texts]
        if network.retrieves:
            assert classifier.label_rows is not None
            return await self._scored_apart(network, conversations, classifier.label_rows)
        return await self._scored_joined(network, conversations, classifier.labels)

    async def _pairs_joined(
        self, network: CrossRanker, conversation: Conversation, texts: Sequence[str]
    ) -> _ClassLogits:
        pairs, lengths, truncation = await self._forwards.split(network, conversation, texts, self._journey)
        logits = await self._run("pair", Work(_PairClassBatch(network), pairs, lengths))
        return _ClassLogits(np.array(logits, np.float32), truncation, sum(lengths))

    async def _pairs_apart(
        self, network: VectorRanker, conversation: Conversation, texts: Sequence[str]
    ) -> _ClassLogits:
        """Read the conversation and each text alone, and compare them."""
        forwards, journey = self._forwards, self._journey
        [ids], truncation = await self._tokens(network, [conversation])
        tokens, cut = await forwards.tokenize_candidates(network, texts, journey)
        context = await forwards.context(network, ids, journey)
        representations = Representations.join(await forwards.candidates(network, tokens, journey))
        logits = []
        for start in range(0, len(texts), AT_ONCE):
            some = representations.take(np.arange(start, min(start + AT_ONCE, len(texts))))
            cost = len(some.first) if some.counts is None else max(1, network.late_tokens(len(ids), some.counts))
            logits += await self._run("late", Work(_VectorClassBatch(network), [(context.encoding, some)], [cost]))
        token_count = len(ids) + sum(map(len, tokens))
        return _ClassLogits(np.concatenate(logits), replace(truncation, candidates=cut), token_count)

    async def _scored_joined(
        self, network: CrossRanker, conversations: Sequence[Conversation], labels: Sequence[str]
    ) -> _ClassLogits:
        """Read each conversation together with the name of each class."""
        splits = [await self._forwards.split(network, each, labels, self._journey) for each in conversations]
        pairs, lengths = [pair for each in splits for pair in each.pairs], [n for each in splits for n in each.lengths]
        scores = await self._run("pair", Work(PairBatch(network), pairs, lengths))
        logits = np.array(scores, np.float32).reshape(len(conversations), len(labels))
        return _ClassLogits(logits, _sum([each.truncation for each in splits]), sum(lengths))

    async def _scored_apart(
        self, network: VectorRanker, conversations: Sequence[Conversation], labels: Representations
    ) -> _ClassLogits:
        """Read each conversation, and score what was made of the names of the classes."""
        tokens, truncation = await self._tokens(network, conversations)
        contexts = await self._forwards.contexts(network, tokens, self._journey)
        counts = np.zeros(0, np.int64) if labels.counts is None else labels.counts
        costs = [max(1, network.late_tokens(len(ids), counts)) for ids in tokens]
        work = Work(LateBatch(network), [(context, labels) for context in contexts], costs)
        return _ClassLogits(np.stack(await self._run("late", work)), truncation, sum(map(len, tokens)))

    async def _tokens(
        self, network: VectorRanker, conversations: Sequence[Conversation]
    ) -> tuple[list[list[int]], Truncation]:
        """Tokenise conversations; also returns what was cut of all."""
        contexts = [await self._forwards.tokenize_context(network, each, self._journey) for each in conversations]
        return [ids for ids, _ in contexts], _sum([truncation for _, truncation in contexts])

    async def _run(self, lane: Lane, work: Work) -> list[Any]:
        return await self._forwards.run(lane, work, self._journey)


def _sum(cuts: Sequence[Truncation]) -> Truncation:
    return Truncation(sum(cut.turns for cut in cuts), sum(cut.tokens for cut in cuts))


@dataclass(frozen=True)
class _PairClassBatch:
    """A classifier's forward pass over pairs of several requests; equal for the same classifier."""

    network: CrossRanker

    def __call__(self, pairs: list[Pairs]) -> NDArray[np.float32]:
        return self.network.class_logits(Pairs.join(pairs))


@dataclass(frozen=True)
class _VectorClassBatch:
    """A classifier's comparisons for several requests, one after the other; equal for the same classifier."""

    network: VectorRanker

    def __call__(self, pairs: list[tuple[ContextEncoding, Representations]]) -> list[NDArray[np.float32]]:
        return [self.network.class_logits(*pair) for pair in pairs]
