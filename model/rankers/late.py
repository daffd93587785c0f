"""A loaded Bi- or Poly-encoder: it turns texts into vectors and rankings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from polyrank.model.architectures.late import LateEncoder
from polyrank.model.checkpoint.files import CheckpointFiles
from polyrank.model.inference.compiler import Compiler
from polyrank.model.inference.forwards import LateForwards
from polyrank.model.inference.network import Network
from polyrank.model.search import topk
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

        `top_k` is how many to return; None: all. `persona` holds facts about the replying side.

        Returns:
            (position in `candidates`, score), best first; equal scores in the order given.
        """
        require_positive(top_k)
        ids, _ = self.tokenize_context(Conversation.of(context, persona))
        if not candidates:
            return []
        embeddings = self.encode_candidates(self.tokenize_candidates(candidates)[0])
        best = topk.top_k(embeddings, self.encode_contexts([ids])[0], len(candidates) if top_k is None else top_k)
        return list(zip(best.rows.tolist(), best.scores.tolist(), strict=True))

    def save(self, directory: Path) -> None:
        """Write the checkpoint's files to a directory; base weights stay a reference."""
        self._files.write(directory)
