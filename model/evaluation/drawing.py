"""Draws candidates for examples that list none: the gold reply among replies of other dialogues of the same file."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.positives import Positives, text_key

DRAWN = 20  # as the lists of ConvAI2; gold reply included


class ReplyDraw:
    """Draws lists of candidates from the replies of all examples of a file; the same for the same seed.

    A list holds no reply of its own dialogue and no other reply to the same context: they may be right. Texts that
    differ only in case, white space and encoding are one reply.
    """

    def __init__(self, dialogues: Iterable[Dialogue], count: int, seed: int) -> None:
        """`count` is how many candidates a list has, gold reply included; at least 2."""
        known = list(dialogues)
        texts: dict[int, str] = {}
        self._of_dialogue: dict[str, set[int]] = defaultdict(set)
        for example in known:
            key = text_key(example.response)
            texts.setdefault(key, example.response)
            self._of_dialogue[example.dialogue].add(key)
        self._keys, self._texts = list(texts), list(texts.values())
        self._positives = Positives(known)
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
        drawn = draw.choice(len(self._texts), most, replace=False).tolist()
        wrong = [self._texts[at] for at in drawn if self._keys[at] not in right][: self._count - 1]
        if not wrong:
            return example
        label = int(draw.integers(len(wrong) + 1))
        return replace(example, candidates=(*wrong[:label], example.response, *wrong[label:]), label=label)
