"""A model's forward passes over tokenised texts: batches of similar length, run by a back-end. Safe under threads."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.model.architectures.attention import ContextCodes, poly_scores
from polyrank.model.architectures.batching import length_batches, pad
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.late import LateEncoder
from polyrank.model.inference.backend import Ready
from polyrank.model.inference.compiler import Compiler
from polyrank.model.inference.names import Choice
from polyrank.model.inference.network import Network, first_stage
from polyrank.model.inference.parts import CandidatePart, ContextPart, PairPart
from polyrank.model.text.pairs import Pairs

_KNOWN_CONTEXTS = 64  # 98 KB each with MiniLM


class LateForwards:
    """Encodes both sides with a Bi- or Poly-encoder.

    Attributes:
        backend, precision: what runs the forward passes (polyrank.model.inference.names.Runner).
        dim: D, the size of a candidate embedding.
    """

    def __init__(self, network: Network[LateEncoder], compiler: Compiler) -> None:
        self._network, self._compiler = network, compiler
        self._compiling = threading.Lock()
        self._candidates = compiler.compile(network.part(CandidatePart))
        self.dim = self._candidates.sizes.dim
        self.backend, self.precision = self._candidates.runner

    @property
    def encoder(self) -> LateEncoder:
        """The torch module; what runs by another back-end reads it when it is first asked for."""
        return self._network.encoder

    @property
    def choice(self) -> Choice | None:
        """How it was chosen what runs; None: there was no choice."""
        return self._compiler.choice

    @cached_property
    def _contexts(self) -> Ready:
        """Compiled when the first context comes: a build has none."""
        return self._compiler.compile(self._network.part(ContextPart))

    def encode_contexts(self, contexts: Sequence[list[int]]) -> list[NDArray[np.float32]]:
        """Encode tokenised contexts, in batches of similar length.

        Returns the vectors (M, D) of each context, with the score scale multiplied in. M is below `n_codes` where token
        outputs serve as context vectors and the context is short.
        """
        encoded: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(contexts)
        for positions in length_batches([len(ids) for ids in contexts], self._compiler.token_budget):
            batch = self.encode_context_batch([contexts[position] for position in positions])
            for position, vectors in zip(positions, batch, strict=True):
                encoded[position] = vectors
        return encoded

    def encode_context_batch(self, contexts: Sequence[list[int]]) -> list[NDArray[np.float32]]:
        """Encode tokenised contexts in one forward pass, whatever their lengths; result as `encode_contexts`."""
        with self._compiling:  # else two threads would both compile it
            ready = self._contexts
        vectors_of, masks = ready.run(pad(contexts, ready.sizes.pad_id))
        return [vectors[present] for vectors, present in zip(vectors_of, masks, strict=True)]

    def encode_candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """Encode tokenised candidates in batches of similar length, (N, D), in the order given.

        `on_done` is called after each batch with the number of candidates in it.
        """
        embeddings = np.empty((len(candidates), self.dim), np.float32)
        for positions in length_batches([len(ids) for ids in candidates], self._compiler.token_budget):
            embeddings[positions] = self.encode_candidate_batch([candidates[position] for position in positions])
            if on_done is not None:
                on_done(len(positions))
        return embeddings

    def encode_candidate_batch(self, candidates: Sequence[list[int]]) -> NDArray[np.float32]:
        """Encode tokenised candidates in one forward pass, whatever their lengths, (B, D)."""
        (embeddings,) = self._candidates.run(pad(candidates, self._candidates.sizes.pad_id))
        return embeddings


class PairForwards:
    """Scores pairs with a Cross-encoder; a residual one adds its first stage's scores.

    Attributes:
        backend, precision: what runs the forward passes (polyrank.model.inference.names.Runner).
    """

    def __init__(self, network: Network[CrossEncoder], compiler: Compiler) -> None:
        self._network, self._compiler = network, compiler
        self._pairs = compiler.compile(network.part(PairPart))
        self._first_stage = FirstStage(first_stage(network), compiler) if network.config.residual else None
        self.backend, self.precision = self._pairs.runner

    @property
    def encoder(self) -> CrossEncoder:
        """The torch module; what runs by another back-end reads it when it is first asked for."""
        return self._network.encoder

    @property
    def choice(self) -> Choice | None:
        """How it was chosen what runs; None: there was no choice."""
        return self._compiler.choice

    def score_pairs(self, pairs: Pairs) -> NDArray[np.float32]:
        """Score tokenised pairs in batches of similar length, (N,), in the order given."""
        scores = np.empty(len(pairs.owners), np.float32)
        for positions in CrossEncoder.batches(pairs, self._compiler.token_budget):
            scores[positions] = self._joint_scores(pairs.take(positions))
        return self._with_first_stage(pairs, scores)

    def score_pair_batch(self, pairs: Pairs) -> NDArray[np.float32]:
        """Score tokenised pairs in one forward pass of the Cross-encoder, whatever their lengths, (B,)."""
        return self._with_first_stage(pairs, self._joint_scores(pairs))

    def _joint_scores(self, pairs: Pairs) -> NDArray[np.float32]:
        (scores,) = self._pairs.run(CrossEncoder.join(pairs, self._pairs.sizes.pad_id))
        return scores

    def _with_first_stage(self, pairs: Pairs, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        return scores + self._first_stage.scores(pairs) if self._first_stage is not None and len(scores) else scores


class FirstStage:
    """The scores of the Poly-encoder in a residual Cross-encoder, for serving and for training.

    Each text of a call is encoded once. The vectors of the last few contexts are kept, because one batch after another
    of a context's candidates is scored.
    """

    def __init__(self, network: Network[LateEncoder], compiler: Compiler) -> None:
        self._forwards = LateForwards(network, compiler)
        self._known: OrderedDict[tuple[int, ...], NDArray[np.float32]] = OrderedDict()
        self._lock = threading.Lock()

    def scores(self, pairs: Pairs) -> NDArray[np.float32]:
        """Score tokenised pairs, (N,), in the order given."""
        columns = {text: column for column, text in enumerate(dict.fromkeys(map(tuple, pairs.candidates)))}
        embeddings = torch.from_numpy(self._forwards.encode_candidates([list(text) for text in columns]))
        column_of = np.array([columns[tuple(candidate)] for candidate in pairs.candidates])
        owners, scores = np.array(pairs.owners), np.empty(len(pairs.owners), np.float32)
        for owner, vectors in enumerate(self._contexts(pairs.contexts)):
            own = owners == owner
            codes = ContextCodes(torch.from_numpy(vectors)[None], torch.ones(1, len(vectors), dtype=torch.bool))
            scores[own] = poly_scores(codes, embeddings[column_of[own]])[0].numpy()
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
