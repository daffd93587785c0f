"""What words say for the pairs of a batch, where a Cross-encoder's first stage counts words."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyrank.model.evidence.evidence import Evidence
from polyrank.model.evidence.statistics import Statistics
from polyrank.model.evidence.table import WordTable
from polyrank.model.text.assembly import Conversation
from polyrank.model.training.data.corpus import Corpus


class PairWords:
    """The evidence of a first stage; how rare a word is follows from the replies of all training files.

    Attributes:
        late_weight: of the network's score beside it.
    """

    def __init__(self, evidence: Evidence, corpora: Sequence[Corpus]) -> None:
        """Read the files once; at least one."""
        self.late_weight = evidence.late_weight
        self._evidence = evidence
        first, *others = (Statistics.of(corpus.replies()) for corpus in corpora)
        for other in others:
            first = first.plus(other)
        self._statistics = first

    def values(self, conversation: Conversation, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return what words say for texts (N,), which are one list, as replies, (N,)."""
        table = WordTable.of(texts, self._statistics)
        return self._evidence.in_list(conversation, table).values(conversation, table)
