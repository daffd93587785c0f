"""A loaded Bi- or Poly-encoder: it turns texts into vectors and rankings."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyrank.model.architectures.late import LateEncoder
from polyrank.model.checkpoint.files import CheckpointFiles
from polyrank.model.inference.backend import Backend
from polyrank.model.inference.forwards import LateForwards
from polyrank.model.search.topk import top_k
from polyrank.model.text.assembly import Assembler, Conversation, Truncation, Turn, require_positive
from polyrank.model.text.tokenizer import Token


class LateRanker:
    """Ranks by vectors that can be computed ahead: each candidate's attends over its context's.

    Safe to call from several threads.

    Attributes:
        name: the name it was loaded by.
        architecture: its name in polyrank.model.registry.
        retrieves: True: it has candidate embeddings, by which it can search a whole pool.
        fingerprint: identity of config, weights and tokenizer (64 hexadecimal digits).
        dim: D, the size of a candidate embedding.
        max_input_tokens: limit for a candidate; longer ones are cut.
        backend: name of what runs its forward passes.
    """

    retrieves: Literal[True] = True

    def __init__(
        self,
        name: str,
        encoder: LateEncoder,
        assembler: Assembler,
        files: CheckpointFiles,
        backend: Backend,
    ) -> None:
        self.name = name
        self.config = encoder.config
        self.architecture = encoder.config.architecture
        self.fingerprint = files.fingerprint
        self.dim = encoder.candidate.dim
        self.max_input_tokens = encoder.config.max_candidate_tokens
        self.encoder = encoder.eval()
        self._forwards = LateForwards(encoder, backend)
        self.backend = backend.name  # after the forwards: `auto` chooses by measuring them
        self._assembler = assembler
        self._files = files

    def tokenize_context(self, conversation: Conversation) -> tuple[list[int], Truncation]:
        """Return token ids of a context, and what did not fit."""
        return self._assembler.context(conversation)

    def tokenize_candidates(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Return token ids of each candidate, and how many were cut."""
        return self._assembler.candidates(texts)

    def pieces(self, texts: Sequence[str], wrapped: bool) -> list[list[Token]]:
        """Return the tokens of each text with the characters they stand for, uncut; `wrapped` in special tokens."""
        return self._assembler.pieces(texts, wrapped)

    def encode_contexts(self, contexts: Sequence[list[int]]) -> list[NDArray[np.float32]]:
        """Encode tokenised contexts.

        Returns:
            The context vectors (M, D) of each, with the score scale multiplied in; M is below `n_codes` where the kind
            takes token outputs and the context is short.
        """
        return self._forwards.contexts(contexts)

    def encode_candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """Encode tokenised candidates, in batches of similar length.

        Args:
            candidates: token ids of each.
            on_done: called after each batch with the number of candidates in it.

        Returns:
            Candidate embeddings, (N, D), in the order given.
        """
        return self._forwards.candidates(candidates, on_done)

    def encode_context_batch(self, contexts: Sequence[list[int]]) -> list[NDArray[np.float32]]:
        """Encode tokenised contexts in one forward pass, whatever their lengths; result as `encode_contexts`."""
        return self._forwards.context_batch(contexts)

    def encode_candidate_batch(self, candidates: Sequence[list[int]]) -> NDArray[np.float32]:
        """Encode tokenised candidates in one forward pass, whatever their lengths; returns (B, D)."""
        return self._forwards.candidate_batch(candidates)

    def rank(
        self,
        context: str | Sequence[str | Turn],
        candidates: Sequence[str],
        top_k: int | None = None,
        persona: str | Sequence[str] = (),
    ) -> list[tuple[int, float]]:
        """Rank candidate texts against a context.

        Args:
            context: one text, or turns, oldest first.
            candidates: the texts to rank.
            top_k: how many to return; None: all.
            persona: facts about the replying side.

        Returns:
            (position in `candidates`, score), best first; equal scores in the order given.
        """
        require_positive(top_k)
        ids, _ = self.tokenize_context(Conversation.of(context, persona))
        if not candidates:
            return []
        embeddings = self.encode_candidates(self.tokenize_candidates(candidates)[0])
        best = _top_k(embeddings, self.encode_contexts([ids])[0], len(candidates) if top_k is None else top_k)
        return list(zip(best.rows.tolist(), best.scores.tolist(), strict=True))

    def save(self, directory: Path) -> None:
        """Write the checkpoint's files to a directory; base weights stay a reference."""
        self._files.write(directory)


_top_k = top_k  # `rank` has a parameter of that name, as its callers expect
