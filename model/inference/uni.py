"""Forward passes of a Uni-Encoder: one for a context, whose outcome is kept, then its candidates in batches."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polyrank.model.architectures.batching import BesideBatch, behind, length_batches, pad, shared_lengths
from polyrank.model.inference.compiler import Compiler
from polyrank.model.inference.network import Network
from polyrank.model.inference.passes import PairForwards
from polyrank.model.inference.runners import PartName
from polyrank.model.registry import UniConfig
from polyrank.model.text.sequences import Pairs

if TYPE_CHECKING:
    from polyrank.model.architectures.pairs import PairEncoder

CACHE_BYTES = 64 * 2**20  # a context of 256 tokens takes 4.7 MB with MiniLM, and 19 MB with BERT-base


class UniForwards(PairForwards):
    """Scores pairs with a Uni-Encoder; a residual one adds its first stage's scores.

    A context has a forward pass of its own, so its candidates get the same scores whether its outcome was kept or not.
    """

    _part: PartName = "beside"

    def __init__(self, network: "Network[PairEncoder]", compiler: Compiler) -> None:
        super().__init__(network, compiler)
        self._contexts = compiler.compile(network.part("known"))
        self._cuts = network.config.block(UniConfig).mask == "one-way"
        self._cache = ContextCache()

    def pair_lengths(self, pairs: Pairs) -> list[int]:
        """Return how many tokens are read for each tokenised pair: its own, and its share of the context's."""
        return shared_lengths(pairs)

    def _in_batches(self, pairs: Pairs, shape: tuple[int, ...]) -> NDArray[np.float32]:
        return self._own_scores(pairs, self._compiler.token_budget if self._cuts else None)

    def _joint_scores(self, pairs: Pairs) -> NDArray[np.float32]:
        return self._own_scores(pairs, None)

    def _own_scores(self, pairs: Pairs, budget: int | None) -> NDArray[np.float32]:
        """Score the candidates of each context, in batches within a budget of tokens; None: all at once."""
        scores = np.empty(len(pairs.owners), np.float32)
        for owner, own in pairs.by_context().items():
            context = pairs.contexts[owner]
            candidates = [pairs.candidates[position][pairs.prefix :] for position in own]
            lengths = [len(ids) for ids in candidates]
            for some in [[*range(len(own))]] if budget is None else length_batches(lengths, budget):
                scores[[own[at] for at in some]] = self._beside(context, [candidates[at] for at in some])
        return scores

    def _beside(self, context: list[int], candidates: Sequence[list[int]]) -> NDArray[np.float32]:
        memory = self._memory(context)[None]
        own = behind(candidates, [len(context)] * len(candidates), self._first.sizes.pad_id)
        (scores,) = self._first.run(BesideBatch(*own, memory, np.ones(memory.shape[:2], np.bool_)))
        return scores

    def _memory(self, context: list[int]) -> NDArray[np.float32]:
        """Return what candidates read of a context, (T, W)."""
        key = tuple(context)
        if (memory := self._cache.get(key)) is None:
            outputs, _ = self._contexts.run(pad([context], self._contexts.sizes.pad_id))
            memory = np.ascontiguousarray(outputs[0, : len(context)])  # a back-end may have padded it
            self._cache.put(key, memory)
        return memory


class ContextCache:
    """What was made of the last context, and of those before it up to a number of bytes. Safe under threads."""

    def __init__(self, most: int = CACHE_BYTES) -> None:
        self._most, self._bytes = most, 0
        self._rows: OrderedDict[tuple[int, ...], NDArray[np.float32]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, context: tuple[int, ...]) -> NDArray[np.float32] | None:
        """Return what was made of a context; None: it is not kept."""
        with self._lock:
            if context in self._rows:
                self._rows.move_to_end(context)
            return self._rows.get(context)

    def put(self, context: tuple[int, ...], rows: NDArray[np.float32]) -> None:
        """Keep what was made of a context, and forget what was not asked for the longest time."""
        with self._lock:
            self._bytes += rows.nbytes - (before.nbytes if (before := self._rows.pop(context, None)) is not None else 0)
            self._rows[context] = rows
            while self._bytes > self._most and len(self._rows) > 1:
                self._bytes -= self._rows.popitem(last=False)[1].nbytes
