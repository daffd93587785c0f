"""A loaded Bi- or Poly-encoder: it turns texts into vectors and rankings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from polyrank.model.architectures.late import LateEncoder
from polyrank.model.checkpoint.files import CheckpointFiles
from polyrank.model.evidence.evidence import Evidence
from polyrank.model.evidence.statistics import Statistics
from polyrank.model.evidence.table import WordTable
from polyrank.model.inference.compiler import Compiler
from polyrank.model.inference.forwards import LateForwards
from polyrank.model.inference.network import Network
from polyrank.model.search import topk
from polyrank.model.search.additions import Additions
from polyrank.model.text.assembly import Assembler, Conversation, Truncation, Turn, require_positive
from polyrank.model.text.steps import Steps
from polyrank.model.text.tokenizer import Token


class LateRanker(LateForwards):
    """Ranks by vectors that can be computed ahead: a candidate's vector attends over those of the context.

    Safe to call from several threads.

    Attributes:
        name: the name it was loaded by.
        architecture: its name in polyrank.model.registry.
        retrieves: True: it has candidate embeddings, by which it can search a whole pool.
        fingerprint: identity of config, weights and tokenizer (64 hexadecimal digits).
        dim: D, the size of a candidate embedding.
        max_input_tokens: limit for a candidate; longer ones are cut.
        evidence: what words say for a candidate, which its score includes; None: its vector alone counts.
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
        super().__init__(network, compiler)
        self.name = name
        self.config = network.config
        self.architecture = network.config.architecture
        self.fingerprint = files.fingerprint
        self.max_input_tokens = network.config.max_candidate_tokens
        self.evidence = None if network.config.evidence is None else Evidence(network.config.evidence)
        self._assembler = assembler
        self._files = files

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
        conversation = Conversation.of(context, persona)
        ids, _ = self.tokenize_context(conversation)
        if not candidates:
            return []
        embeddings = self.encode_candidates(self.tokenize_candidates(candidates)[0])
        codes, k = self.encode_contexts([ids])[0], len(candidates) if top_k is None else top_k
        best = topk.top_k(embeddings, codes, k, additions=self.additions(conversation, self.word_table(candidates)))
        return list(zip(best.rows.tolist(), best.scores.tolist(), strict=True))

    def word_table(self, texts: Sequence[str]) -> WordTable | None:
        """Return the words of texts that are a pool by themselves; None for a model without evidence."""
        return None if self.evidence is None else WordTable.of(texts, Statistics.of(texts))

    def additions(self, conversation: Conversation, table: WordTable | None) -> Additions | None:
        """Return what words add to the scores of a table's rows; None for a model without evidence."""
        if self.evidence is None or table is None:
            return None
        return self.evidence.additions(conversation, table)

    def save(self, directory: Path) -> None:
        """Write the checkpoint's files to a directory; base weights stay a reference."""
        self._files.write(directory)
