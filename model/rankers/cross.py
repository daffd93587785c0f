"""A loaded Cross-encoder: it scores a context with each of its candidates."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.checkpoint.files import CheckpointFiles
from polyrank.model.inference.backend import Backend
from polyrank.model.inference.forwards import PairForwards
from polyrank.model.text.assembly import Assembler, Conversation, Truncation, Turn, require_positive
from polyrank.model.text.pairs import Pairs


class CrossRanker:
    """Ranks by reading context and candidate together: the most accurate and the slowest. Safe to call from threads.

    Attributes:
        name: the name it was loaded by.
        architecture: its name in polyrank.model.registry.
        retrieves: False: it scores pairs and has no candidate embeddings.
        fingerprint: identity of config, weights and tokenizer (64 hexadecimal digits).
        max_input_tokens: limit for a context and a candidate together; longer ones are cut.
        backend: name of what runs its forward passes.
    """

    retrieves: Literal[False] = False

    def __init__(
        self, name: str, encoder: CrossEncoder, assembler: Assembler, files: CheckpointFiles, backend: Backend
    ) -> None:
        self.name = name
        self.config = encoder.config
        self.architecture = encoder.config.architecture
        self.fingerprint = files.fingerprint
        self.max_input_tokens = encoder.longest_input
        self.encoder = encoder.eval()
        self._forwards = PairForwards(encoder, backend)
        self.backend = backend.name  # after the forwards: `auto` chooses by measuring them
        self._assembler = assembler
        self._files = files

    def tokenize_pairs(self, conversation: Conversation, texts: Sequence[str]) -> tuple[Pairs, Truncation]:
        """Return token ids of the context and of each text, and what did not fit."""
        return self._assembler.pairs(conversation, texts)

    def score_pairs(self, pairs: Pairs) -> NDArray[np.float32]:
        """Score tokenised pairs in batches of similar length; returns (N,) in the order given."""
        return self._forwards.scores(pairs)

    def score_pair_batch(self, pairs: Pairs) -> NDArray[np.float32]:
        """Score tokenised pairs in one forward pass, whatever their lengths; returns (B,)."""
        return self._forwards.batch_scores(pairs)

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
