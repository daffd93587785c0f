"""What every model that ranks can do, and the one that does it by words alone, without a network and torch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from polyrank.model.checkpoint.files import CONFIG_FILE, begin_directory, fingerprint_of, write_config
from polyrank.model.checkpoint.lookup import called
from polyrank.model.config import CalibrationConfig, LexicalConfig, ModelConfig
from polyrank.model.errors import InvalidInput
from polyrank.model.inference.runners import NO_RUNNER, Choice
from polyrank.model.lexical.score import LexicalScore, unread
from polyrank.model.lexical.table import WordTable
from polyrank.model.lexical.words import Statistics
from polyrank.model.representations import Additions, ContextEncoding, LateRows, Representations
from polyrank.model.text.assembly import (
    COUNTED_LETTERS,
    Conversation,
    Truncation,
    Turn,
    require_positive,
    require_several,
)
from polyrank.model.text.reading import Steps, finish
from polyrank.model.text.tokenizer import Token


class TextRanker(ABC):
    """Ranks texts as replies to a conversation. Safe to call from several threads.

    Attributes:
        fingerprint: identity of config, weights and tokenizer (64 hexadecimal digits).
        evidence: the lexical score, which a candidate's score includes; None: words do not count.
        calibration: what its scores say; None: that is not known.
        languages: those that it learnt, ISO 639-1; empty: all, or that is not known.
    """

    def __init__(self, name: str, config: ModelConfig, fingerprint: str) -> None:
        """Raise CheckpointInvalid for a weight of a feature that this release does not know."""
        self.name, self.config, self.fingerprint = called(name), config, fingerprint
        self.architecture, self.calibration = config.architecture, config.calibration
        self.languages = tuple(config.languages)
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


# Fitted by `polyrank train --only-evidence --base lexical` on four files of dialogues, with equal
# shares: 500 lists of 100 replies from each. See "Words alone" in docs/measurements/quality.md.
BUILT_IN: Final = ModelConfig(
    architecture="lexical",
    base_name="",
    evidence=LexicalConfig(
        weights={
            "persona": 0.508,
            "told": -0.6403,
            "last": 1.266,
            "before": 0.915,
            "older": 0.6103,
            "names": 0.2743,
            "said": -15.32,
            "length": -0.355,
        }
    ),
    # By `polyrank train --only-calibration --base lexical` on the same files: 2,000 lists.
    calibration=CalibrationConfig(prior=0.1, slope=0.8243, intercept=-1.831),
)

# A text counts as so many tokens in batches and in the estimates of a server: one for four letters, and no more than an
# encoder would see. That keeps the measure of work that other models have.
_LETTERS_A_TOKEN = 4
_MOST_TOKENS = 512


class LexicalRanker(TextRanker):
    """Ranks by the words that context and candidate share, weighed as in `polyrank.model.lexical`; thread-safe.

    It offers what a VectorRanker offers to builds and rankings. Every vector is a single 0, so the late score is 0, and
    the score is the lexical score to the bit, whatever the late weight.

    Attributes:
        max_input_tokens: how much of a context is read, in tokens of four letters; candidates are read whole.
        backend, precision: "none" and "float32": there are no forward passes.
    """

    retrieves: Literal[True] = True
    dim = 1
    max_input_tokens = COUNTED_LETTERS // _LETTERS_A_TOKEN
    backend, precision = NO_RUNNER
    rounding = precision
    choice: Choice | None = None
    late_rows: LateRows | None = None
    evidence: LexicalScore

    def __init__(self, name: str, config: ModelConfig) -> None:
        super().__init__(name, config, fingerprint_of(config))

    def tokenize_context(self, conversation: Conversation) -> tuple[list[int], Truncation]:
        """Return stand-ins for the tokens of a context, and what of its turns is not read."""
        return finish(self.context_steps(conversation))

    def context_steps(self, conversation: Conversation) -> Steps[tuple[list[int], Truncation]]:
        yield from ()
        return _tokens(conversation.letters), _unread(conversation)

    def tokenize_candidates(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Return stand-ins for the tokens of each text, and how many were cut: none."""
        return [_tokens(len(text)) for text in texts], 0

    def pieces(self, texts: Sequence[str], wrapped: bool) -> list[list[Token]]:
        """Raise InvalidInput: it has no tokens."""
        raise InvalidInput(f"{self.name} ranks by words alone and has no tokens")

    def represent_contexts(self, contexts: Sequence[list[int]]) -> list[ContextEncoding]:
        """Return the vectors (1, 1) of each context, 0."""
        return [ContextEncoding(np.zeros((1, 1), np.float32)) for _ in contexts]

    def represent_context_batch(self, contexts: Sequence[list[int]]) -> list[ContextEncoding]:
        return self.represent_contexts(contexts)

    def encode_contexts(self, contexts: Sequence[list[int]]) -> list[NDArray[np.float32]]:
        return [each.codes for each in self.represent_contexts(contexts)]

    def represent_candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> Representations:
        """Return vectors (N, 1), all 0; `on_done` is called once with their number."""
        if on_done is not None:
            on_done(len(candidates))
        return Representations(np.zeros((len(candidates), 1), np.float32))

    def represent_candidate_batch(self, candidates: Sequence[list[int]]) -> Representations:
        return self.represent_candidates(candidates)

    def encode_candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        return self.represent_candidates(candidates, on_done).first

    def late_scores(self, context: ContextEncoding, candidates: Representations) -> NDArray[np.float32]:
        return np.zeros(len(candidates.first), np.float32)

    def late_tokens(self, context_tokens: int, counts: NDArray[np.int64]) -> int:
        return 0

    def scores(
        self, context: ContextEncoding, candidates: Representations, additions: Additions | None
    ) -> NDArray[np.float32]:
        """Return the scores that place candidates, (N,): those by words; 0 without additions."""
        late = self.late_scores(context, candidates)
        return late if additions is None else additions.to(late)

    def score_texts(
        self, conversation: Conversation, texts: Sequence[str], statistics: Statistics | None
    ) -> NDArray[np.float32]:
        """Score texts as replies by their words, (N,)."""
        if statistics is None or not texts:
            return np.zeros(len(texts), np.float32)
        return self.evidence.values(conversation, WordTable.of(texts, statistics))

    def save(self, directory: Path) -> None:
        """Write its checkpoint, the file polyrank.json, to a directory."""
        begin_directory(directory)
        write_config(directory / CONFIG_FILE, self.config)


def _tokens(letters: int) -> list[int]:
    return [0] * (2 + min(_MOST_TOKENS, letters // _LETTERS_A_TOKEN))


def _unread(conversation: Conversation) -> Truncation:
    turns, letters = unread(conversation)
    return Truncation(turns, -(-letters // _LETTERS_A_TOKEN))
