"""A Cross-encoder over pairs: sorted by length, packed by tokens, scored."""

import threading
from collections import OrderedDict

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.model.architectures.attention import ContextCodes, poly_scores
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.poly import PolyEncoder
from polyrank.model.architectures.residual import ResidualEncoder
from polyrank.model.inference.backend import Backend
from polyrank.model.inference.late import LateForwards
from polyrank.model.inference.parts import PairPart
from polyrank.model.text.pairs import Pairs

_KNOWN_CONTEXTS = 64  # 98 KB each of MiniLM's


class PairForwards:
    """Scores pairs by a back-end, those of the first stage included. Safe to call from several threads."""

    def __init__(self, encoder: CrossEncoder, backend: Backend) -> None:
        self._encoder = encoder
        self._read = backend.compile(PairPart(encoder))
        self._budget = backend.token_budget
        self._first_stage = _FirstStage(encoder.poly, backend) if isinstance(encoder, ResidualEncoder) else None

    def scores(self, pairs: Pairs) -> NDArray[np.float32]:
        """One score a pair, (N,), in the order given."""
        scores = np.empty(len(pairs.owners), np.float32)
        for positions in self._encoder.batches(pairs, self._budget):
            (scores[positions],) = self._read(self._encoder.join(pairs.take(positions)))
        return self._with_first_stage(pairs, scores)

    def batch_scores(self, pairs: Pairs) -> NDArray[np.float32]:
        """Score pairs in one forward pass of the Cross-encoder, (B,)."""
        (scores,) = self._read(self._encoder.join(pairs))
        return self._with_first_stage(pairs, scores)

    def _with_first_stage(self, pairs: Pairs, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        return scores + self._first_stage.scores(pairs) if self._first_stage is not None and len(scores) else scores


class _FirstStage:
    """The Poly-encoder's scores that a residual Cross-encoder adds to; each text of a call is encoded once.

    A context comes with one batch of its candidates after another: the last few are remembered.
    """

    def __init__(self, encoder: PolyEncoder, backend: Backend) -> None:
        self._forwards = LateForwards(encoder, backend)
        self._known: OrderedDict[tuple[int, ...], NDArray[np.float32]] = OrderedDict()
        self._lock = threading.Lock()

    def scores(self, pairs: Pairs) -> NDArray[np.float32]:
        columns = {text: column for column, text in enumerate(dict.fromkeys(map(tuple, pairs.candidates)))}
        embeddings = torch.from_numpy(self._forwards.candidates([list(text) for text in columns]))
        column_of = np.array([columns[tuple(each)] for each in pairs.candidates])
        owners, scores = np.array(pairs.owners), np.empty(len(pairs.owners), np.float32)
        for owner, vectors in enumerate(self._contexts(pairs.contexts)):
            own = owners == owner
            codes = ContextCodes(torch.from_numpy(vectors)[None], torch.ones(1, len(vectors), dtype=torch.bool))
            scores[own] = poly_scores(codes, embeddings[column_of[own]])[0].numpy()
        return scores

    def _contexts(self, contexts: list[list[int]]) -> list[NDArray[np.float32]]:
        keys = [tuple(each) for each in contexts]
        with self._lock:
            found = {key: self._known[key] for key in keys if key in self._known}
        new = [key for key in dict.fromkeys(keys) if key not in found]
        found |= zip(new, self._forwards.contexts([list(key) for key in new]), strict=True)
        with self._lock:
            for key in keys:
                self._known[key] = found[key]
                self._known.move_to_end(key)
            while len(self._known) > _KNOWN_CONTEXTS:
                self._known.popitem(last=False)
        return [found[key] for key in keys]
