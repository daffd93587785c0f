"""The right replies of each context, wrong ones drawn for it, and which examples are of one conversation.

Where a file does not name its dialogues, that is found out.

The examples of a conversation share its beginning: the context of a later one holds the context and the reply of an
earlier one. But many conversations begin with the same greeting. So the examples that share a beginning are one
conversation only if they are few. If they are more, the beginning is followed one turn further, as long as the examples
part ways. An example that ends where others part ways is taken for a conversation of its own, unless the next line
goes on from it.

Where contexts are cut to the last turns, no beginning is shared. Then lines that follow each other are one conversation
if the context of the second begins with the last two turns of the first, or more.

Persona counts for nothing here: in many files it is that of the side that replies, which alternates.
"""

import struct
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import orjson
from numpy.typing import NDArray

from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.folding import folded_line, hash64, text_key


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


def turns_key(conversation: Conversation) -> int:
    """Hash what was said to 64 bits, as `context_key`; whose persona answers makes no difference."""
    return context_key(replace(conversation, persona=()))


DRAWN = 20  # as the lists of ConvAI2; gold reply included


class ReplyDraw:
    """Draws lists of candidates from the replies of all examples of a file; the same for the same seed.

    A list holds no reply of its own dialogue and no other reply to the same context: they may be right. Texts that
    differ only in case, white space and encoding are one reply.
    """

    def __init__(self, dialogues: Iterable[Dialogue], count: int, seed: int) -> None:
        """`count` is how many candidates a list has, gold reply included; at least 2."""
        examples = list(dialogues)
        texts: dict[int, str] = {}
        self._of_dialogue: dict[str, set[int]] = defaultdict(set)
        for example in examples:
            key = text_key(example.response)
            texts.setdefault(key, example.response)
            self._of_dialogue[example.dialogue].add(key)
        self._keys, self._texts = list(texts), list(texts.values())
        self._positives = Positives(examples)
        self._count, self._seed = count, seed

    def candidates(self, number: int, example: Dialogue) -> Dialogue:
        """Return the example with candidates; as it is where it has some, or the file has no wrong reply for it.

        `number` is its place in the file, on which the draw depends, so that no other example changes it.
        """
        if example.candidates:
            return example
        draw = np.random.default_rng([self._seed, number])
        right = {*self._positives.of(example.conversation).tolist(), *self._of_dialogue[example.dialogue]}
        most = min(len(self._texts), self._count - 1 + len(right))
        places = draw.choice(len(self._texts), most, replace=False).tolist()
        wrong = [self._texts[at] for at in places if self._keys[at] not in right][: self._count - 1]
        if not wrong:
            return example
        label = int(draw.integers(len(wrong) + 1))
        return replace(example, candidates=(*wrong[:label], example.response, *wrong[label:]), label=label)


# So many examples that share one or two turns are one conversation, such as the answers to one question. Three turns
# say more than a greeting and its answer, so there is no such limit. But one conversation in twenty that parts ways is
# a script, and in a small file a greeting.
_FEW, _SEVERAL_TURNS, _SHARE = 8, 3, 1 / 20
_DEEPEST = 32  # turns kept of a beginning, so that a long context costs no more than 256 bytes

_APART, _GROWN, _MOVED = 0, 1, 2  # how an example is related to the line before

Keys = NDArray[np.uint64]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Conversations:
    """Which conversation each example is of."""

    keys: Keys  # 64-bit hash that names the conversation, equal in every process, (examples,)
    named: NDArray[np.bool_]  # whether the file names it, (examples,)

    def name(self, place: int, example: Dialogue) -> Dialogue:
        """Give the example at that place the name of its conversation, if it has none."""
        return example if example.dialogue else replace(example, dialogue=f"{self.keys[place]:016x}")

    def assumed(self) -> str | None:
        """Say in a clause what was assumed; None: the file names all its dialogues."""
        if self.named.all():
            return None
        counts = np.unique(self.keys[~self.named], return_counts=True)[1]
        sizes = counts[counts > 1]
        some = f"{counts.sum()} lines do not name their" if self.named.any() else "no line names its"
        if not len(sizes):
            return f"{some} dialogue; by how they begin each stands alone"
        of = f"{sizes.sum()} make {len(sizes)} conversations, {len(counts) - len(sizes)} stand alone"
        return f"{some} dialogue; by how they begin {of}"


def identified(examples: Iterable[Dialogue]) -> tuple[list[Dialogue], Conversations]:
    """Give all examples of a file, in its order, the names of their conversations; also returns what was found."""
    finder, dialogues = ConversationFinder(), list(examples)
    for example in dialogues:
        finder.add(example)
    conversations = finder.conversations()
    return [conversations.name(place, example) for place, example in enumerate(dialogues)], conversations


class ConversationFinder:
    """Reads examples one by one, in the order of their file, and keeps nothing of them but hashes."""

    def __init__(self) -> None:
        self._named, self._relations = array("b"), array("b")
        self._keys, self._lengths = array("Q"), array("B")  # of each beginning of an example, the shortest first
        self._line_before: list[int] = []  # turns of the line before, and its reply
        self._key_of: dict[str, int] = {}

    def add(self, example: Dialogue) -> None:
        if example.dialogue:
            hashes, beginnings, relation = [], [hash64(example.dialogue.encode())], _APART
        else:
            hashes = self._hashed([*(turn.text for turn in example.conversation.turns), example.response])
            both = accumulate(hashes, lambda one, other: hash64(struct.pack("<QQ", one, other)), initial=0)
            beginnings = list(both)[1:]
            relation = self._relation(hashes)
        self._line_before = hashes
        self._named.append(bool(example.dialogue))
        self._relations.append(relation)
        self._keys.extend(beginnings[:_DEEPEST])
        self._lengths.append(min(len(beginnings), _DEEPEST))

    def conversations(self) -> Conversations:
        """Tell the conversations of all examples that were read."""
        named = np.array(self._named, bool)
        relations = np.array(self._relations, np.int8)
        lengths = np.array(self._lengths, np.int64)
        keys = np.frombuffer(self._keys, np.uint64)  # the largest of them, not copied
        starts = np.cumsum(lengths) - lengths
        ids = keys[starts + lengths - 1]
        runs = np.cumsum(relations == _APART) - 1
        moved = np.bincount(runs, relations == _MOVED)[runs] > 0 if len(runs) else named
        sums = np.zeros(len(named), np.uint64)
        np.add.at(sums, runs, ids)  # modulo 2**64; the same for the same lines, whatever stands around them
        ids[moved] = sums[runs[moved]]
        unsettled = _by_beginnings(np.flatnonzero(~named & ~moved), keys, starts, lengths, ids)
        for place in unsettled[::-1].tolist():
            if place + 1 < len(ids) and relations[place + 1] != _APART:
                ids[place] = ids[place + 1]
        return Conversations(ids, named)

    def _hashed(self, texts: Sequence[str]) -> list[int]:
        """Hash the texts that are not blank; most of them were in the line before."""
        key_of = {text: self._key_of.get(text) or text_key(text) for text in texts if text.strip()}
        self._key_of = key_of
        return [key_of[text] for text in texts if text in key_of]

    def _relation(self, hashes: list[int]) -> int:
        """Tell how an example follows the line before, `_line_before`."""
        before = len(self._line_before)
        if 0 < before < len(hashes) and self._line_before == hashes[:before]:
            return _GROWN
        shared = range(2, min(before, len(hashes) - 1) + 1)
        return _MOVED if any(self._line_before[-turns:] == hashes[:turns] for turns in shared) else _APART


def _by_beginnings(active: Places, keys: Keys, starts: Places, lengths: Places, ids: Keys) -> Places:
    """Write into `ids` which conversation the examples at the places `active` are of, by how they begin.

    keys: of all beginnings of all examples; those of an example are the `lengths` ones from `starts` on, (examples,).
    Returns the places of those that end where others part ways, in order.
    """
    share = int(_SHARE * len(ids))
    few, several = min(_FEW, share), max(_FEW, share)
    ends = [active[:0]]
    current, turns = keys[starts[active]], 1
    while len(active):
        nodes, node_of, counts = np.unique(current, return_inverse=True, return_counts=True)
        goes_on = lengths[active] > turns
        many = counts > (few if turns < _SEVERAL_TURNS else several)
        deeper = (many & (np.bincount(node_of, goes_on, len(nodes)) > 0))[node_of]
        ids[active[~deeper]] = current[~deeper]
        active, node_of, goes_on, current = active[deeper], node_of[deeper], goes_on[deeper], current[deeper]
        next_keys = keys[starts[active[goes_on]] + turns]
        nexts, first = np.unique(next_keys, return_index=True)
        before = node_of[goes_on][first]
        ways = np.bincount(before, minlength=len(nodes))
        only = np.zeros(len(nodes), np.uint64)
        only[before] = nexts  # of no use where there are several
        parts = ~goes_on & (ways[node_of] > 1)
        ends.append(active[parts])
        ids[active[parts]] = ~current[parts]  # unlike any beginning
        current = only[node_of]
        current[goes_on] = next_keys
        active, current, turns = active[~parts], current[~parts], turns + 1
    return np.sort(np.concatenate(ends))
