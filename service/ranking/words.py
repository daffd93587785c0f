"""What words say for the candidates of a request, beside the scores by vectors; on a thread, in parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.generation.words import Words
from polyrank.index_builder.store.snapshot import WordValues
from polyrank.model.representations import Additions
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.reading import Steps, in_parts
from polyrank.service.live.serving import Searchable

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PoolWords:
    """What words say for every row of a snapshot.

    Attributes:
        late_weight: of the scores by vectors beside it.
        values: of the generation's own rows, and of the added ones.
    """

    late_weight: float
    values: WordValues

    @property
    def own(self) -> Additions:
        """What is added to the scores of the generation's own rows."""
        return Additions(self.late_weight, self.values.own)

    @property
    def added(self) -> Additions:
        """What is added to the scores of the added rows, counted from 0."""
        return Additions(self.late_weight, self.values.added)

    def of(self, rows: Rows) -> NDArray[np.float32]:
        """Return the values of rows (n,) of the snapshot, (n,)."""
        own, added = self.values
        values = np.empty(len(rows), np.float32)
        is_own = rows < len(own)
        values[is_own], values[~is_own] = own[rows[is_own]], added[rows[~is_own] - len(own)]
        return values


def pool_words(serving: Searchable, conversation: Conversation) -> PoolWords | None:
    """Read what words say for every row; None where they do not count for the model."""
    words, values = serving.generation.words, serving.snapshot.word_values(conversation)
    return None if words is None or values is None else PoolWords(words.evidence.late_weight, values)


class ListWords(NamedTuple):
    """What words say for the candidates of a list, and how much of their weights the words of turns kept."""

    values: NDArray[np.float32]
    turns_share: float


def list_words(
    words: Words, conversation: Conversation, texts: Sequence[str], turns_share: float | None = None
) -> Steps[ListWords]:
    """Read what words say for texts (T,), in steps.

    turns_share: how much of their weights the words of the turns keep; None: the texts are a list that says it.
    """
    tables = []
    for part in in_parts(texts):
        tables.append(words.table_of(part))
        yield
    share = words.evidence.turns_share(conversation, tables) if turns_share is None else turns_share
    values = [np.empty(0, np.float32)]
    for found in words.evidence.sharing(share).values_of(conversation, words.table.statistics, tables):
        values.append(found)
        yield
    return ListWords(np.concatenate(values), share)
