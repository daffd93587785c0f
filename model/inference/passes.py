"""A model's forward passes over tokenised texts: batches of similar length, run by a back-end. Safe under threads.

Importing this needs no torch. A model whose scores are those of vectors alone is also used without it
(`VectorStates`); what others make of a part's outputs is torch's (network_states.py).
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.model.architectures.batching import TokenBatch, joined, length_batches, pad, pair_batches, pair_lengths
from polyrank.model.config import ModelConfig
from polyrank.model.inference.compiler import Compiler
from polyrank.model.inference.network import E, Network, Ready, first_stage
from polyrank.model.inference.runners import INT8, Choice, PartName
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.representations import ContextEncoding, LateRows, Representations
from polyrank.model.search.topk import scores_of
from polyrank.model.text.sequences import Pairs

if TYPE_CHECKING:
    from polyrank.model.architectures.pairs import PairEncoder
    from polyrank.model.architectures.vector import VectorEncoder

_KNOWN_CONTEXTS = 64  # 98 KB each with MiniLM

Outputs = tuple[NDArray[Any], ...]


class Passes(Generic[E]):
    """Runs a network's forward passes.

    `backend`, `precision`: what runs them (polyrank.model.inference.runners.Runner).
    """

    def __init__(self, network: Network[E], compiler: Compiler, first: PartName) -> None:
        """`first` is the part that is compiled at once; others follow when they are needed."""
        self._network, self._compiler = network, compiler
        self._first = compiler.compile(network.part(first))
        self.backend, self.precision = self._first.runner

    @property
    def encoder(self) -> E:
        """The torch module; what runs by another back-end reads it when it is first asked for."""
        return self._network.encoder

    @property
    def rounding(self) -> str:
        """How its numbers are rounded: the precision, and of int8 which calibration."""
        said = self._network.config.quantisation
        return f"{INT8}-{said.sha256[:16]}" if said and self.precision == INT8 else self.precision

    @property
    def choice(self) -> Choice | None:
        """How it was chosen what runs; None: there was no choice."""
        return self._compiler.choice


class States(Protocol):
    """What lies before and behind the parts of an encoder: it lays out texts, and compares what was made of them."""

    dim: int  # D1, the size of a candidate's first-stage vector
    late_rows: LateRows | None  # what is kept of each candidate for the second stage; None: there is none

    def context_batch(self, contexts: Sequence[list[int]], pad_id: int) -> TokenBatch:
        """Lay out tokenised contexts as the transformer is to read them."""

    def candidate_batch(self, candidates: Sequence[list[int]], pad_id: int) -> TokenBatch:
        """Lay out tokenised candidates as the transformer is to read them."""

    def contexts(self, outputs: Outputs, batch: TokenBatch) -> list[ContextEncoding]:
        """Return the contexts of a batch, of the outputs of their part."""

    def candidates(self, outputs: Outputs, batch: TokenBatch) -> Representations:
        """Return the candidates of a batch, of the outputs of their part."""

    def late_scores(self, context: ContextEncoding, candidates: Representations) -> NDArray[np.float32]: ...

    def class_logits(self, context: ContextEncoding, candidates: Representations) -> NDArray[np.float32]: ...

    def late_cost(self, context_tokens: int, rows: int) -> float:
        """Return how many multiplications scoring a candidate of so many rows takes in the second stage."""


class VectorStates:
    """Those of a model that ranks by vectors alone, and reads its texts as they are. They need no torch."""

    late_rows: LateRows | None = None

    def __init__(self, config: ModelConfig, dim: int) -> None:
        """`dim`: of the transformer's states."""
        self.dim = config.vector_dim(dim)

    def context_batch(self, contexts: Sequence[list[int]], pad_id: int) -> TokenBatch:
        return pad(contexts, pad_id)

    def candidate_batch(self, candidates: Sequence[list[int]], pad_id: int) -> TokenBatch:
        return pad(candidates, pad_id)

    def contexts(self, outputs: Outputs, batch: TokenBatch) -> list[ContextEncoding]:
        return [ContextEncoding(vectors[present]) for vectors, present in zip(*outputs, strict=True)]

    def candidates(self, outputs: Outputs, batch: TokenBatch) -> Representations:
        (vectors,) = outputs
        return Representations(vectors)

    def late_scores(self, context: ContextEncoding, candidates: Representations) -> NDArray[np.float32]:
        return scores_of(candidates.first, context.codes)

    def class_logits(self, context: ContextEncoding, candidates: Representations) -> NDArray[np.float32]:
        raise AssertionError("it is no classifier")

    def late_cost(self, context_tokens: int, rows: int) -> float:
        return 0.0


class VectorForwards(Passes["VectorEncoder"]):
    """Encodes both sides with an encoder that keeps them apart, and scores what it keeps of candidates.

    `represent_...` gives all that the encoder makes, `encode_...` the vectors of the first stage alone. `dim` and
    `late_rows` are those of its `States`.
    """

    def __init__(self, network: "Network[VectorEncoder]", compiler: Compiler, layers: int = 1) -> None:
        """`layers`: of the transformer, by which the second stage is priced."""
        super().__init__(network, compiler, "candidates")
        self._states = states_of(network, self._first.sizes.dim)
        self.dim, self.late_rows = self._states.dim, self._states.late_rows
        self._compiling = threading.Lock()
        self._forward_cost = 12 * layers * self._first.sizes.dim**2

    @cached_property
    def _contexts(self) -> Ready:
        """Compiled when the first context comes: a build has none."""
        return self._compiler.compile(self._network.part("contexts"))

    def represent_contexts(self, contexts: Sequence[list[int]]) -> list[ContextEncoding]:
        """Encode tokenised contexts, in batches of similar length.

        M is below `n_codes` where token outputs serve as context vectors and the context is short.
        """
        encoded: dict[int, ContextEncoding] = {}
        for positions in length_batches([len(ids) for ids in contexts], self._compiler.token_budget):
            batch = self.represent_context_batch([contexts[position] for position in positions])
            encoded |= zip(positions, batch, strict=True)
        return [encoded[position] for position in range(len(contexts))]

    def represent_context_batch(self, contexts: Sequence[list[int]]) -> list[ContextEncoding]:
        """Encode tokenised contexts in one forward pass, whatever their lengths."""
        with self._compiling:  # else two threads would both compile it
            ready = self._contexts
        batch = self._states.context_batch(contexts, ready.sizes.pad_id)
        return self._states.contexts(ready.run(batch), batch)

    def encode_contexts(self, contexts: Sequence[list[int]]) -> list[NDArray[np.float32]]:
        """Return the first-stage vectors (M, D1) of each context, with the score scale multiplied in."""
        return [each.codes for each in self.represent_contexts(contexts)]

    def represent_candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> Representations:
        """Encode tokenised candidates in batches of similar length; the result is in the order given.

        `on_done` is called after each batch with the number of candidates in it.
        """
        parts, order = list[Representations](), list[int]()
        for positions in length_batches([len(ids) for ids in candidates], self._compiler.token_budget):
            parts.append(self.represent_candidate_batch([candidates[position] for position in positions]))
            order += positions
            if on_done is not None:
                on_done(len(positions))
        if not parts:
            return Representations.none(self.dim, self.late_rows)
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return Representations.join(parts).take(back)

    def represent_candidate_batch(self, candidates: Sequence[list[int]]) -> Representations:
        """Encode tokenised candidates in one forward pass, whatever their lengths."""
        batch = self._states.candidate_batch(candidates, self._first.sizes.pad_id)
        return self._states.candidates(self._first.run(batch), batch)

    def encode_candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """Return the first-stage vectors of tokenised candidates, (N, D1); arguments as `represent_candidates`."""
        return self.represent_candidates(candidates, on_done).first

    def late_scores(self, context: ContextEncoding, candidates: Representations) -> NDArray[np.float32]:
        """Score candidates by the vectors that place them, (N,): those of the second stage, if there is one.

        Makes no encoder call. A candidate's score does not depend on the others.
        """
        return self._states.late_scores(context, candidates)

    def class_logits(self, context: ContextEncoding, candidates: Representations) -> NDArray[np.float32]:
        """Return a classifier's logits of each candidate's class beside the context, (N, C)."""
        return self._states.class_logits(context, candidates)

    def late_tokens(self, context_tokens: int, counts: NDArray[np.int64]) -> int:
        """Return the cost of `late_scores` in tokens of a forward pass, from the rows of each candidate, (N,)."""
        if not len(counts):
            return 0
        rows, times = np.unique(counts, return_counts=True)
        cost = [self._states.late_cost(context_tokens, each) for each in rows.tolist()]
        return int(np.ceil(np.dot(cost, times) / self._forward_cost))


def states_of(network: "Network[VectorEncoder]", dim: int) -> States:
    """Return what lies before and behind the parts of an encoder whose transformer's states have `dim` components."""
    config = network.config
    row = ARCHITECTURES[config.architecture]
    # A Cross-encoder that has an encoder within has a Poly-encoder. The head of a classifier is the network's.
    if not row.retrieves or (row.by_vectors and not config.head_classes):
        return VectorStates(config, dim)
    from polyrank.model.inference.network_states import NetworkStates

    return NetworkStates(network, dim)


class PairForwards(Passes["PairEncoder"]):
    """Scores pairs with a Cross-encoder; a residual one adds its first stage's scores."""

    _part: PartName = "pairs"

    def __init__(self, network: "Network[PairEncoder]", compiler: Compiler) -> None:
        super().__init__(network, compiler, self._part)
        self._first_stage = FirstStage(first_stage(network), compiler) if network.config.residual else None

    def score_pairs(self, pairs: Pairs) -> NDArray[np.float32]:
        """Score tokenised pairs in batches of similar length, (N,), in the order given."""
        return self._with_first_stage(pairs, self._in_batches(pairs, ()))

    def class_logits(self, pairs: Pairs) -> NDArray[np.float32]:
        """Return a classifier's logits of each tokenised pair's class, (N, C), in the order given."""
        return self._in_batches(pairs, (self._network.config.head_classes,))

    def pair_lengths(self, pairs: Pairs) -> list[int]:
        """Return how many tokens are read for each tokenised pair."""
        return pair_lengths(pairs)

    def _in_batches(self, pairs: Pairs, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Run batches of similar length; returns what the head gives, `shape` for each pair."""
        outputs = np.empty((len(pairs.owners), *shape), np.float32)
        for positions in pair_batches(pairs, self._compiler.token_budget):
            outputs[positions] = self._joint_scores(pairs.take(positions))
        return outputs

    def score_pair_batch(self, pairs: Pairs) -> NDArray[np.float32]:
        """Score tokenised pairs at once, whatever their lengths, (B,)."""
        return self._with_first_stage(pairs, self._joint_scores(pairs))

    def _joint_scores(self, pairs: Pairs) -> NDArray[np.float32]:
        (scores,) = self._first.run(joined(pairs, self._first.sizes.pad_id))
        return scores

    def _with_first_stage(self, pairs: Pairs, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        return scores + self._first_stage.scores(pairs) if self._first_stage is not None and len(scores) else scores


class FirstStage:
    """The scores of the Poly-encoder in a residual encoder of pairs, for serving and for training.

    Each text of a call is encoded once. The vectors of the last few contexts are kept, because one batch after another
    of a context's candidates is scored.
    """

    def __init__(self, network: "Network[VectorEncoder]", compiler: Compiler) -> None:
        self._forwards = VectorForwards(network, compiler)
        self._known: OrderedDict[tuple[int, ...], NDArray[np.float32]] = OrderedDict()
        self._lock = threading.Lock()

    def scores(self, pairs: Pairs) -> NDArray[np.float32]:
        """Score tokenised pairs, (N,), in the order given."""
        columns = {text: column for column, text in enumerate(dict.fromkeys(map(tuple, pairs.candidates)))}
        embeddings = self._forwards.encode_candidates([list(text) for text in columns])
        column_of = np.array([columns[tuple(candidate)] for candidate in pairs.candidates])
        owners, scores = np.array(pairs.owners), np.empty(len(pairs.owners), np.float32)
        for owner, vectors in enumerate(self._contexts(pairs.contexts)):
            own = owners == owner
            scores[own] = scores_of(embeddings[column_of[own]], vectors)
        return scores

    def _contexts(self, contexts: list[list[int]]) -> list[NDArray[np.float32]]:
        keys = [tuple(context) for context in contexts]
        with self._lock:
            found = {key: self._known[key] for key in keys if key in self._known}
        new = [key for key in dict.fromkeys(keys) if key not in found]
        found |= zip(new, self._forwards.encode_contexts([list(key) for key in new]), strict=True)
        with self._lock:
            for key in keys:
                self._known[key] = found[key]
                self._known.move_to_end(key)
            while len(self._known) > _KNOWN_CONTEXTS:
                self._known.popitem(last=False)
        return [found[key] for key in keys]
