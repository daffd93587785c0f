"""A loaded Bi- or Poly-encoder: texts in, vectors and rankings out."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from model.batching import TokenBatch, budget_of, length_batches, pad
from model.biencoder import BiEncoder
from model.files import CheckpointFiles
from model.polyencoder import PolyEncoder
from model.text import Assembler, Conversation, Truncation, Turn, require_positive
from model.tokenizer import Piece
from model.topk import top_k


class LateRanker:
    """Ranks by vectors that can be computed ahead: the context's are attended to by each candidate's.

    Safe to call from several threads.

    Attributes:
        name: what it was loaded by.
        architecture: "bi" or "poly".
        fingerprint: identity of config, weights and tokenizer (64 hexadecimal digits).
        dim: D, the size of a candidate embedding.
        max_input_tokens: of a candidate; more are cut.
    """

    def __init__(
        self, name: str, encoder: BiEncoder | PolyEncoder, assembler: Assembler, files: CheckpointFiles
    ) -> None:
        self.name = name
        self.config = encoder.config
        self.architecture: str = encoder.config.architecture
        self.fingerprint = files.fingerprint
        self.dim = encoder.candidate.dim
        self.max_input_tokens = encoder.config.max_candidate_tokens
        self.encoder = encoder.eval()
        self._assembler = assembler
        self._files = files

    def tokenize_context(self, conversation: Conversation) -> tuple[list[int], Truncation]:
        """Token ids of a context, and what did not fit."""
        return self._assembler.context(conversation)

    def tokenize_candidates(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        """Token ids of each candidate, and how many lost their end."""
        return self._assembler.candidates(texts)

    def pieces(self, texts: Sequence[str], wrapped: bool) -> list[list[Piece]]:
        """Tokens of each text with the characters they stand for, uncut; `wrapped` in special tokens."""
        return self._assembler.pieces(texts, wrapped)

    def encode_contexts(self, contexts: Sequence[list[int]]) -> list[NDArray[np.float32]]:
        """Encode tokenised contexts.

        Returns:
            For each its context vectors (M, D), the score scale multiplied in; fewer than `n_codes` where the kind
            takes token outputs and the context is short.
        """
        encoded: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(contexts)
        with torch.inference_mode():
            for positions in length_batches([len(ids) for ids in contexts], budget_of(self._device)):
                codes = self.encoder.encode_context(self._pad(contexts, positions, self.encoder.context.pad_id))
                vectors_of, masks = codes.vectors.cpu(), codes.mask.cpu()
                for position, vectors, present in zip(positions, vectors_of, masks, strict=True):
                    encoded[position] = vectors[present].numpy()
        return encoded

    def encode_candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """Encode tokenised candidates, in batches of like length.

        Args:
            candidates: token ids of each.
            on_done: called after each batch with the number of candidates it held.

        Returns:
            Candidate embeddings, (N, D), in the order given.
        """
        embeddings = np.empty((len(candidates), self.dim), np.float32)
        with torch.inference_mode():
            for positions in length_batches([len(ids) for ids in candidates], budget_of(self._device)):
                batch = self._pad(candidates, positions, self.encoder.candidate.pad_id)
                embeddings[positions] = self.encoder.encode_candidates(batch).cpu().numpy()
                if on_done is not None:
                    on_done(len(positions))
        return embeddings

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

    @property
    def _device(self) -> torch.device:
        return next(self.encoder.parameters()).device

    def _pad(self, sequences: Sequence[list[int]], positions: Sequence[int], pad_id: int) -> TokenBatch:
        return pad([sequences[position] for position in positions], pad_id).to(self._device)


_top_k = top_k  # `rank` has a parameter of that name, as its callers expect
