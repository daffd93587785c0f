"""The right replies of each context, so that none of them is used as a negative.

Two texts count as the same if they differ only in white space and in what folding levels (`folding.py`): case,
ignorable characters, and how letters are encoded. Texts are kept as 64-bit hashes (16 bytes an example), because the
examples themselves are streamed.
"""

from array import array
from collections.abc import Iterable

import numpy as np
import orjson
from numpy.typing import NDArray

from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.folding import folded_line
from polyrank.model.text.hashes import hash64


def text_key(text: str) -> int:
    """Hash a text to 64 bits; texts that are equal but for case, white space and encoding have the same hash.

    >>> text_key("Yes,  please ") == text_key("yes, PLEASE")
    True
    >>> text_key("yesplease") == text_key("yes please")
    False
    """
    return hash64(folded_line(text).encode(errors="surrogatepass"))


class Positives:
    """The gold replies of every context; a context that occurs in several examples has several.

    A context is all that a model reads: turns and persona. Another persona makes another context, because a reply
    that fits one persona is a good negative for another.
    """

    def __init__(self, dialogues: Iterable[Dialogue]) -> None:
        contexts, replies = array("Q"), array("Q")
        for dialogue in dialogues:
            contexts.append(context_key(dialogue.conversation))
            replies.append(text_key(dialogue.response))
        unsorted = np.array(contexts, np.uint64)
        order = np.argsort(unsorted, kind="stable")
        self._contexts = unsorted[order]
        self._replies = np.array(replies, np.uint64)[order]

    def __len__(self) -> int:
        """Return the number of examples read."""
        return len(self._contexts)

    def of(self, conversation: Conversation) -> NDArray[np.uint64]:
        """Return the `text_key` of each right reply to the context, (positives,)."""
        key = np.uint64(context_key(conversation))
        first = np.searchsorted(self._contexts, key, side="left")
        last = np.searchsorted(self._contexts, key, side="right")
        return self._replies[first:last]


def context_key(conversation: Conversation) -> int:
    """Hash a context to 64 bits; equal for turns and personas that `text_key` takes for the same."""
    turns = [folded_line(turn.text) for turn in conversation.turns]
    persona = [folded_line(fact) for fact in conversation.persona]
    return hash64(orjson.dumps([[turn for turn in turns if turn], [fact for fact in persona if fact]]))
