"""What a Cross-encoder reads: contexts, and candidates that each go with one of them."""

from collections.abc import Sequence
from typing import NamedTuple


class Pairs(NamedTuple):
    """Token ids of contexts and of candidates, wrapped as the checkpoint's kind wants them (model.text).

    contexts: each read by one pair or more. candidates: one a pair. owners: number of each pair's context.
    prefix: ids that a candidate begins with where it is wrapped alone, and that a joint sequence leaves out.
    """

    contexts: list[list[int]]
    candidates: list[list[int]]
    owners: list[int]
    prefix: int = 0

    def take(self, positions: Sequence[int]) -> "Pairs":
        """The pairs at these positions, with the contexts that they need.

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
