"""Token ids of pairs, and tokens that know where they are from: which turn, and which of its characters."""

from collections.abc import Sequence
from typing import NamedTuple


class Pairs(NamedTuple):
    """Token ids of contexts and candidates, wrapped as the checkpoint's architecture expects (assembly.py).

    candidates: one for each pair. owners: for each pair, its context's place in `contexts`. prefix: how many ids a
    candidate begins with when it is wrapped alone; a joint sequence leaves them out.
    """

    contexts: list[list[int]]
    candidates: list[list[int]]
    owners: list[int]
    prefix: int = 0

    def take(self, positions: Sequence[int]) -> "Pairs":
        """Return the pairs at these positions, with the contexts that they need.

        >>> Pairs([[7], [8]], [[1], [2], [3]], [0, 1, 1]).take([2, 1])
        Pairs(contexts=[[8]], candidates=[[3], [2]], owners=[0, 0], prefix=0)
        """
        owners = [self.owners[position] for position in positions]
        numbers = {owner: number for number, owner in enumerate(dict.fromkeys(owners))}
        return Pairs(
            contexts=[self.contexts[owner] for owner in numbers],
            candidates=[self.candidates[position] for position in positions],
            owners=[numbers[owner] for owner in owners],
            prefix=self.prefix,
        )

    def by_context(self) -> dict[int, list[int]]:
        """Return the positions of the pairs of each context, by its place.

        >>> Pairs([[7], [8]], [[1], [2], [3]], [0, 1, 0]).by_context()
        {0: [0, 2], 1: [1]}
        """
        positions: dict[int, list[int]] = {}
        for position, owner in enumerate(self.owners):
            positions.setdefault(owner, []).append(position)
        return positions

    @classmethod
    def join(cls, parts: Sequence["Pairs"]) -> "Pairs":
        """Return the pairs of all parts, in order; a context list that several parts share occurs once.

        >>> all_three = Pairs([[7]], [[1], [2], [3]], [0, 0, 0])
        >>> Pairs.join([all_three.take([2]), all_three.take([0])])
        Pairs(contexts=[[7]], candidates=[[3], [1]], owners=[0, 0], prefix=0)
        """
        contexts = {id(context): context for part in parts for context in part.contexts}
        numbers = {identity: number for number, identity in enumerate(contexts)}
        return cls(
            contexts=list(contexts.values()),
            candidates=[candidate for part in parts for candidate in part.candidates],
            owners=[numbers[id(part.contexts[owner])] for part in parts for owner in part.owners],
            prefix=parts[0].prefix,
        )


class PlacedToken(NamedTuple):
    """A token, and where it is from."""

    id: int
    text: str  # the characters that it stands for; of a token without a place its name in the vocabulary
    # The number of the turn, or of the sentence of the persona, that has the token; None: it is of none, such as a
    # separator.
    turn: int | None = None
    persona: int | None = None
    # Its characters there; None: it stands for none.
    start: int | None = None
    end: int | None = None
    word: int | None = None  # the number of its word, counted through the context; None: it belongs to none
