"""A loaded Cross-encoder: it scores a context with each of its candidates."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.checkpoint.files import CheckpointFiles
from polyrank.model.inference.compiler import Compiler
from polyrank.model.inference.forwards import PairForwards
from polyrank.model.inference.network import Network
from polyrank.model.text.assembly import Assembler, Conversation, Truncation, Turn, require_positive
from polyrank.model.text.pairs import Pairs
from polyrank.model.text.steps import Steps


class CrossRanker(PairForwards):
    """Ranks by reading context and candidate together: the most accurate and the slowest. Safe to call from threads.

    Attributes:
        name: the name it was loaded by.
        architecture: its name in polyrank.model.registry.
        retrieves: False: it scores pairs and has no candidate embeddings.
        fingerprint: identity of config, weights and tokenizer (64 hexadecimal digits).
        max_input_tokens: limit for a context and a candidate together; longer ones are cut.
    """

    retrieves: Literal[False] = False

    def __init__(
        self,
        name: str,
        network: Network[CrossEncoder],
        assembler: Assembler,
        files: CheckpointFiles,
        compiler: Compiler,
    ) -> None:
        super().__init__(network, compiler)
        self.name = name
        self.config = network.config
        self.architecture = network.config.architecture
        self.fingerprint = files.fingerprint
        self.max_input_tokens = network.config.max_context_tokens + network.config.max_candidate_tokens
        self._assembler = assembler
        self._files = files

    def tokenize_pairs(self, conversation: Conversation, texts: Sequence[str]) -> tuple[Pairs, Truncation]:
        """Return the token ids of the context and of each text, and what did not fit."""
        return self._assembler.pairs(conversation, texts)

    def pair_steps(self, conversation: Conversation, texts: Sequence[str]) -> Steps[tuple[Pairs, Truncation]]:
        """Do what `tokenize_pairs` does, in steps."""
        return self._assembler.pair_steps(conversation, texts)

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
