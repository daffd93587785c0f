"""A loaded Cross-encoder: it scores a context with each of its candidates."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyrank.model.architectures.batching import distinct_sequences
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.checkpoint.files import CheckpointFiles
from polyrank.model.evidence.evidence import Evidence
from polyrank.model.evidence.statistics import Statistics
from polyrank.model.evidence.table import WordTable
from polyrank.model.explanation.cross import CrossExplainer
from polyrank.model.inference.compiler import Compiler
from polyrank.model.inference.forwards import PairForwards
from polyrank.model.inference.network import Network
from polyrank.model.text.assembly import Assembler, Conversation, Truncation, Turn, require_positive, require_several
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
        evidence: what words say for a candidate, which its score includes; None: the pair alone counts.
        calibration: what its scores say; None: that is not known.
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
        self.evidence = None if network.config.evidence is None else Evidence(network.config.evidence)
        self.calibration = network.config.calibration
        self._assembler = assembler
        self._files = files

    @cached_property
    def explainer(self) -> CrossExplainer:
        """What tells the parts of its scores; the first access may read the network."""
        return CrossExplainer(self.encoder, self._assembler)

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
        require_several(candidates)
        scores = self.score_texts(Conversation.of(context, persona), candidates, self.statistics(candidates))
        order = np.argsort(-scores, kind="stable")[:top_k]
        return [(int(position), float(scores[position])) for position in order]

    def statistics(self, pool: Iterable[str]) -> Statistics | None:
        """Return how common each word of a pool is; None for a model without evidence."""
        return None if self.evidence is None else Statistics.of(pool)

    def score_texts(
        self, conversation: Conversation, texts: Sequence[str], statistics: Statistics | None, found: bool = False
    ) -> NDArray[np.float32]:
        """Score texts as replies, (N,): by the pairs and, if the model has evidence, by words.

        Texts that are read alike tie, and no score depends on their order.

        statistics: of the pool that says how rare a word is; None: the pairs alone count. found: the texts were found
        in that pool, where words count as in a search; else they are one list (`Evidence.turns_share`).
        """
        pairs, _ = self.tokenize_pairs(conversation, texts)
        distinct, places = distinct_sequences(pairs.candidates)
        scores = self.score_pairs(pairs.take(distinct))[places]
        if self.evidence is None or statistics is None:
            return scores
        table = WordTable.of(texts, statistics)
        evidence = self.evidence if found else self.evidence.in_list(conversation, table)
        return self.evidence.scores(scores, evidence.values(conversation, table))

    def save(self, directory: Path) -> None:
        """Write the checkpoint's files to a directory; base weights stay a reference."""
        self._files.write(directory)
