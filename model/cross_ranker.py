"""A loaded Cross-encoder: a context and candidate texts in, one score each out."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from model.batching import length_batches, pad
from model.crossencoder import CrossEncoder
from model.files import CheckpointFiles
from model.text import Assembler, Conversation, Truncation, Turn, require_positive


class TokenizedPairs(NamedTuple):
    """Joint token ids of one context with each candidate, and where the candidate begins in all of them."""

    ids: list[list[int]]
    candidate_start: int


class CrossRanker:
    """Ranks by reading context and candidate together: the most accurate and the slowest. Safe to call from threads.

    Attributes:
        name: what it was loaded by.
        architecture: "cross".
        fingerprint: identity of config, weights and tokenizer (64 hexadecimal digits).
    """

    architecture = "cross"

    def __init__(self, name: str, encoder: CrossEncoder, assembler: Assembler, files: CheckpointFiles) -> None:
        self.name = name
        self.config = encoder.config
        self.fingerprint = files.fingerprint
        self.encoder = encoder.eval()
        self._assembler = assembler
        self._files = files

    def tokenize_pairs(self, conversation: Conversation, texts: Sequence[str]) -> tuple[TokenizedPairs, Truncation]:
        """Token ids of the context joined with each text, and what did not fit."""
        ids, start, truncation = self._assembler.pairs(conversation, texts)
        return TokenizedPairs(ids, start), truncation

    def score_pairs(self, pairs: TokenizedPairs) -> NDArray[np.float32]:
        """Score tokenised pairs in batches of like length; returns (N,) in the order given."""
        scores = np.empty(len(pairs.ids), np.float32)
        with torch.inference_mode():
            for positions in length_batches([len(ids) for ids in pairs.ids]):
                sequences = [pairs.ids[position] for position in positions]
                batch = pad(sequences, self.encoder.encoder.pad_id, [pairs.candidate_start] * len(sequences))
                scores[positions] = self.encoder.score_pairs(batch).numpy()
        return scores

    def rank(
        self,
        context: str | Sequence[str | Turn],
        candidates: Sequence[str],
        top_k: int | None = None,
        persona: str | Sequence[str] = (),
    ) -> list[tuple[int, float]]:
        """Rank candidate texts against a context; arguments and result as `LateRanker.rank`."""
        require_positive(top_k)
        pairs, _ = self.tokenize_pairs(Conversation.of(context, persona), candidates)
        scores = self.score_pairs(pairs)
        order = np.argsort(-scores, kind="stable")[:top_k]
        return [(int(position), float(scores[position])) for position in order]

    def save(self, directory: Path) -> None:
        """Write the checkpoint's files to a directory; base weights stay a reference."""
        self._files.write(directory)
