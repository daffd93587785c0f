"""A loaded encoder that keeps both sides apart, such as a Poly-encoder: it turns texts into vectors and rankings."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyrank.model.architectures.batching import distinct_sequences
from polyrank.model.architectures.late import LateEncoder
from polyrank.model.checkpoint.files import CheckpointFiles, backbone_file, read_object
from polyrank.model.evidence.evidence import Evidence
from polyrank.model.evidence.statistics import Statistics
from polyrank.model.evidence.table import WordTable
from polyrank.model.explanation.late import LateExplainer
from polyrank.model.inference.compiler import Compiler
from polyrank.model.inference.forwards import LateForwards
from polyrank.model.inference.network import Network
from polyrank.model.representations import ContextEncoding, Representations
from polyrank.model.search.additions import Additions
from polyrank.model.search.topk import scores_of
from polyrank.model.text.assembly import Assembler, Conversation, Truncation, Turn, require_positive, require_several
from polyrank.model.text.steps import Steps
from polyrank.model.text.tokenizer import Token

_USUAL_LAYERS = 12  # of a transformer whose config.json does not say


class LateRanker(LateForwards):
    """Ranks by vectors of candidates that can be computed ahead.

    Safe to call from several threads.

    Attributes:
        name: the name it was loaded by.
        architecture: its name in polyrank.model.registry.
        retrieves: True: it has candidate embeddings, by which it can search a whole pool.
        fingerprint: identity of config, weights and tokenizer (64 hexadecimal digits).
        dim: D1, the size of a candidate's first-stage vector.
        late_rows: what is kept of each candidate for the second stage; None: there is none.
        max_input_tokens: limit for a candidate; longer ones are cut.
        evidence: what words say for a candidate, which its score includes; None: its vector alone counts.
        calibration: what its scores say; None: that is not known.
    """

    retrieves: Literal[True] = True

    def __init__(
        self,
        name: str,
        network: Network[LateEncoder],
        assembler: Assembler,
        files: CheckpointFiles,
        compiler: Compiler,
    ) -> None:
        layers = read_object(backbone_file(files.source)).get("num_hidden_layers", _USUAL_LAYERS)
        super().__init__(network, compiler, layers)
        self.name = name
        self.config = network.config
        self.architecture = network.config.architecture
        self.fingerprint = files.fingerprint
        self.max_input_tokens = network.config.max_candidate_tokens
        self.evidence = None if network.config.evidence is None else Evidence(network.config.evidence)
        self.calibration = network.config.calibration
        self._assembler = assembler
        self._files = files

    @cached_property
    def explainer(self) -> LateExplainer:
        """What takes its scores apart; the first access may read the network."""
        return LateExplainer(self.encoder, self._assembler)

    def tokenize_context(self, conversation: Conversation) -> tuple[list[int], Truncation]:
        """Return the token ids of a context, and what did not fit."""
        return self._assembler.context(conversation)

    def context_steps(self, conversation: Conversation) -> Steps[tuple[list[int], Truncation]]:
        """Do what `tokenize_context` does, in steps."""
        return self._assembler.context_steps(conversation)

    def tokenize_candidates(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Return the token ids of each candidate, and how many were cut."""
        return self._assembler.candidates(texts)

    def pieces(self, texts: Sequence[str], wrapped: bool) -> list[list[Token]]:
        """Return the tokens of each text with the characters they stand for, uncut; `wrapped` in special tokens."""
        return self._assembler.tokenizer.pieces(texts, wrapped)

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

    def score_texts(
        self, conversation: Conversation, texts: Sequence[str], statistics: Statistics | None
    ) -> NDArray[np.float32]:
        """Score texts as replies, (N,): by vectors and, if the model has evidence, by words.

        Texts that are read alike have one vector, which does not depend on their order.

        statistics: of the pool that says how rare a word is; None: vectors alone count.
        """
        ids, _ = self.tokenize_context(conversation)
        if not texts:
            return np.zeros(0, np.float32)
        tokens, _ = self.tokenize_candidates(texts)
        distinct, places = distinct_sequences(tokens)
        made = self.represent_candidates([tokens[position] for position in distinct]).take(places)
        table = None if statistics is None else WordTable.of(texts, statistics)
        return self.scores(self.represent_contexts([ids])[0], made, self.list_additions(conversation, table))

    def scores(
        self, context: ContextEncoding, candidates: Representations, additions: Additions | None
    ) -> NDArray[np.float32]:
        """Return the scores that place candidates, (N,): by vectors and, where they count, by words."""
        if self.late_rows is None:
            return scores_of(candidates.first, context.codes, additions)
        late = self.late_scores(context, candidates)
        return late if additions is None else additions.to(late)

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
        """Do what `additions` does, where the rows are one list of candidates (`Evidence.turns_share`)."""
        if self.evidence is None or table is None:
            return None
        return self.evidence.in_list(conversation, table).additions(conversation, table)

    def save(self, directory: Path) -> None:
        """Write the checkpoint's files to a directory; base weights stay a reference."""
        self._files.write(directory)
