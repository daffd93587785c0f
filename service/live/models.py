"""What the service asks of its models, and how it warms them up."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.model.config import CalibrationConfig
from polyrank.model.inference.runners import Choice
from polyrank.model.lexical.score import LexicalScore
from polyrank.model.rankers.classifier import Classifier
from polyrank.model.representations import ContextEncoding, LateRows, Representations
from polyrank.model.telling import telling
from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.model.text.reading import Steps, finish
from polyrank.model.text.sequences import Pairs
from polyrank.model.text.tokenizer import Token

# Loads a generation's model from its directory. Any: what comes is checked by its architecture.
LoadRanker = Callable[[str], Any]
# Loads a cross-encoder by its name or directory.
LoadScorer = Callable[[str], "PairScorer"]
# Loads a classifier by its directory.
LoadClassifier = Callable[[str], Classifier]


class Loaders(NamedTuple):
    """What loads the models of a server."""

    ranker: LoadRanker
    scorer: LoadScorer
    classifier: LoadClassifier


class VectorScorer(Protocol):
    """A Bi- or Poly-encoder, or a lexical model; see polyrank.VectorRanker and LexicalRanker."""

    name: str
    architecture: str
    fingerprint: str
    dim: int
    late_rows: LateRows | None
    calibration: CalibrationConfig | None
    languages: tuple[str, ...]
    max_input_tokens: int
    backend: str
    precision: str

    @property
    def rounding(self) -> str:
        """How its numbers are rounded: the precision, and of int8 which calibration."""

    @property
    def choice(self) -> Choice | None:
        """How it was chosen what runs; None: there was no choice."""

    def context_steps(self, conversation: Conversation) -> Steps[tuple[list[int], Truncation]]:
        """Make token ids, in steps; also returns what did not fit."""

    def tokenize_candidates(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Return the token ids of each text, and how many texts were cut."""

    def pieces(self, texts: Sequence[str], wrapped: bool) -> list[list[Token]]:
        """Return the tokens of each text, uncut."""

    def represent_context_batch(self, contexts: Sequence[list[int]]) -> list[ContextEncoding]:
        """Encode contexts in one forward pass."""

    def represent_candidate_batch(self, candidates: Sequence[list[int]]) -> Representations:
        """Encode candidates in one forward pass."""

    def represent_candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> Representations:
        """Encode any number of candidates."""

    def late_scores(self, context: ContextEncoding, candidates: Representations) -> NDArray[np.float32]:
        """Score candidates by the second stage, (N,), without a forward pass; only where there is one."""

    def late_tokens(self, context_tokens: int, counts: NDArray[np.int64]) -> int:
        """Return what that costs, in tokens of a forward pass, from how many rows each candidate has, (N,)."""


class PairScorer(Protocol):
    """A Cross-encoder; see polyrank.CrossRanker."""

    name: str
    architecture: str
    fingerprint: str
    max_input_tokens: int
    backend: str
    precision: str
    evidence: LexicalScore | None
    calibration: CalibrationConfig | None
    languages: tuple[str, ...]

    @property
    def rounding(self) -> str:
        """How its numbers are rounded: the precision, and of int8 which calibration."""

    @property
    def choice(self) -> Choice | None:
        """How it was chosen what runs; None: there was no choice."""

    def pair_steps(self, conversation: Conversation, texts: Sequence[str]) -> Steps[tuple[Pairs, Truncation]]:
        """Join the context with each text, in steps; also returns what did not fit."""

    def pair_lengths(self, pairs: Pairs) -> list[int]:
        """Return how many tokens are read for each tokenised pair."""

    def score_pair_batch(self, pairs: Pairs) -> NDArray[np.float32]:
        """Score tokenised pairs at once, (B,)."""


# A kernel's first call with a shape is slow, so no request should make it. Usual words a text and texts a batch:
_TEXTS = ((1, 1), (12, 1), (12, 8), (40, 8), (400, 1))
_PAIRS = ((1, 1), (30, 20), (300, 2))


@telling("warming up the model")
def warm_up_ranker(ranker: VectorScorer) -> None:
    """Encode contexts and candidates of usual lengths."""
    for words, count in _TEXTS:
        text = "hello " * words
        context, _ = finish(ranker.context_steps(Conversation.of(text)))
        contexts = ranker.represent_context_batch([context] * count)
        candidates = ranker.represent_candidate_batch(ranker.tokenize_candidates([text] * count)[0])
        if ranker.late_rows is not None:
            ranker.late_scores(contexts[0], candidates)


@telling("warming up the reranker")
def warm_up_scorer(scorer: PairScorer) -> None:
    """Score pairs of usual lengths."""
    for words, count in _PAIRS:
        pairs, _ = finish(scorer.pair_steps(Conversation.of("hello " * words), ["hello there"] * count))
        scorer.score_pair_batch(pairs)


@telling("warming up the classifier")
def warm_up_classifier(classifier: Classifier) -> None:
    """Tell classes of pairs of usual lengths."""
    for words, count in _PAIRS:
        classifier.classify("hello " * words, ["hello there"] * count)
