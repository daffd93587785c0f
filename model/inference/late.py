"""The towers of a Bi- or Poly-encoder: tokenised texts in, vectors out, in batches of like length."""

import threading
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from polyrank.model.architectures.batching import length_batches, pad
from polyrank.model.architectures.bi import BiEncoder
from polyrank.model.architectures.poly import PolyEncoder
from polyrank.model.inference.backend import Backend, Forward
from polyrank.model.inference.parts import CandidatePart, ContextPart


class LateForwards:
    """Both sides of an encoder, run by a back-end. Safe to call from several threads."""

    def __init__(self, encoder: BiEncoder | PolyEncoder, backend: Backend) -> None:
        self._encoder, self._backend = encoder, backend
        self._compiling = threading.Lock()
        self._candidates = backend.compile(CandidatePart(encoder))

    @cached_property
    def _contexts(self) -> Forward:
        """Made when a context comes: a build has none."""
        return self._backend.compile(ContextPart(self._encoder))

    def contexts(self, contexts: Sequence[list[int]]) -> list[NDArray[np.float32]]:
        """Context vectors (M, D) of each; fewer where the kind takes token outputs and the context is short."""
        encoded: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(contexts)
        for positions in length_batches([len(ids) for ids in contexts], self._backend.token_budget):
            batch = self.context_batch([contexts[each] for each in positions])
            for position, vectors in zip(positions, batch, strict=True):
                encoded[position] = vectors
        return encoded

    def context_batch(self, contexts: Sequence[list[int]]) -> list[NDArray[np.float32]]:
        """Encode contexts in one forward pass, as `contexts` does in several."""
        with self._compiling:  # else two first contexts would compile it twice
            forward = self._contexts
        vectors_of, masks = forward(pad(contexts, self._encoder.context.pad_id))
        return [vectors[present] for vectors, present in zip(vectors_of, masks, strict=True)]

    def candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """Candidate embeddings (N, D), in the order given; `on_done` is told after each batch how many it held."""
        embeddings = np.empty((len(candidates), self._encoder.candidate.dim), np.float32)
        for positions in length_batches([len(ids) for ids in candidates], self._backend.token_budget):
            embeddings[positions] = self.candidate_batch([candidates[each] for each in positions])
            if on_done is not None:
                on_done(len(positions))
        return embeddings

    def candidate_batch(self, candidates: Sequence[list[int]]) -> NDArray[np.float32]:
        """Encode candidates in one forward pass, (B, D)."""
        (embeddings,) = self._candidates(pad(candidates, self._encoder.candidate.pad_id))
        return embeddings
