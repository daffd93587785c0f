"""A model's forward passes over tokenised texts: batches of similar length, run by a back-end. Safe under threads."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Generic

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.model.architectures.attention import ContextCodes, poly_scores
from polyrank.model.architectures.batching import length_batches
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.late import CandidateState, ContextState, LateEncoder
from polyrank.model.architectures.poly import PolyEncoder
from polyrank.model.inference.compiler import Compiler
from polyrank.model.inference.network import (
    CandidatePart,
    ContextPart,
    E,
    Network,
    PairPart,
    PartClass,
    Ready,
    first_stage,
)
from polyrank.model.inference.runners import Choice
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.representations import ContextEncoding, Representations
from polyrank.model.text.sequences import Pairs

_KNOWN_CONTEXTS = 64  # 98 KB each with MiniLM
_AT_ONCE = 1024  # candidates that are compared: what lies between is a few times their rows


class Passes(Generic[E]):
    """Runs a network's forward passes.

    Attributes:
        backend, precision: what runs them (polyrank.model.inference.runners.Runner).
    """

    def __init__(self, network: Network[E], compiler: Compiler, first: PartClass[E]) -> None:
        """`first` is the part that is compiled at once; others follow when they are needed."""
        self._network, self._compiler = network, compiler
        self._first = compiler.compile(network.part(first))
        self.backend, self.precision = self._first.runner

    @property
    def encoder(self) -> E:
        """The torch module; what runs by another back-end reads it when it is first asked for."""
        return self._network.encoder

    @property
    def choice(self) -> Choice | None:
        """How it was chosen what runs; None: there was no choice."""
        return self._compiler.choice


class LateForwards(Passes[LateEncoder]):
    """Encodes both sides with an encoder that keeps them apart, and scores what it keeps of candidates.

    `represent_...` gives all that the encoder makes, `encode_...` the vectors of the first stage alone.

    Attributes:
        dim: D1, the size of a candidate's first-stage vector.
        late_rows: what is kept of each candidate for the second stage; None: there is none.
    """

    def __init__(self, network: Network[LateEncoder], compiler: Compiler, layers: int = 1) -> None:
        """`layers`: of the transformer, by which the second stage is priced."""
        super().__init__(network, compiler, CandidatePart)
        row = ARCHITECTURES[network.config.architecture]
        self._kind: type[LateEncoder] = row.network if row.retrieves else PolyEncoder  # of a residual Cross-encoder
        self._compiling = threading.Lock()
        self._forward_cost = 12 * layers * self._first.sizes.dim**2
        self.dim = self._kind.first_dim(network.config, self._first.sizes.dim)
        self.late_rows = self._kind.late_rows(network.config, self._first.sizes.dim)

    @cached_property
    def _contexts(self) -> Ready:
        """Compiled when the first context comes: a build has none."""
        return self._compiler.compile(self._network.part(ContextPart))

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
        batch = self._kind.context_batch(self._network.config, contexts, ready.sizes.pad_id)
        outputs = tuple(map(torch.from_numpy, ready.run(batch)))
        state = self._kind.context_state(self._network.config, outputs, batch)
        vectors_of, present_of = (each.numpy() for each in state.first)
        codes = [vectors[present] for vectors, present in zip(vectors_of, present_of, strict=True)]
        if state.late is None or state.mask is None:
            return [ContextEncoding(each) for each in codes]
        late = zip(state.late.numpy(), state.mask.numpy(), strict=True)
        return [ContextEncoding(own, (rows[mask],)) for own, (rows, mask) in zip(codes, late, strict=True)]

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
        batch = self._kind.candidate_batch(self._network.config, candidates, self._first.sizes.pad_id)
        outputs = tuple(map(torch.from_numpy, self._first.run(batch)))
        state = self._kind.candidate_state(self._network.config, outputs, batch)
        if state.late is None or state.mask is None:
            return Representations(state.first.numpy())
        mask = state.mask.numpy()
        return Representations(state.first.numpy(), state.late.numpy()[mask], mask.sum(axis=1))

    def encode_candidates(
        self, candidates: Sequence[list[int]], on_done: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """Return the first-stage vectors of tokenised candidates, (N, D1); arguments as `represent_candidates`."""
        return self.represent_candidates(candidates, on_done).first

    def late_scores(self, context: ContextEncoding, candidates: Representations) -> NDArray[np.float32]:
        """Score candidates by the vectors that place them, (N,): those of the second stage, if there is one.

        Makes no encoder call. A candidate's score does not depend on the others.
        """
        return self._compared(lambda contexts, some: self._scorer.late_scores(contexts, some)[0], context, candidates)

    def class_logits(self, context: ContextEncoding, candidates: Representations) -> NDArray[np.float32]:
        """Return a classifier's logits of each candidate's class beside the context, (N, C)."""
        return self._compared(self._scorer.class_logits, context, candidates)

    def _compared(
        self,
        compare: Callable[[ContextState, CandidateState], torch.Tensor],
        context: ContextEncoding,
        candidates: Representations,
    ) -> NDArray[np.float32]:
        """Compare a context with candidates, (N, ...), so many at a time that what lies between stays small."""
        device, count = next(self._scorer.parameters()).device, len(candidates.first)
        contexts = _context_state(context, device)
        with torch.inference_mode():
            parts = [
                compare(
                    contexts,
                    _candidate_state(candidates.take(np.arange(start, min(start + _AT_ONCE, count))), device),
                )
                for start in range(0, max(1, count), _AT_ONCE)
            ]
        found: NDArray[np.float32] = torch.cat(parts).cpu().numpy()
        return found

    @cached_property
    def _scorer(self) -> LateEncoder:
        return self.encoder

    def late_tokens(self, context_tokens: int, counts: NDArray[np.int64]) -> int:
        """Return the cost of `late_scores` in tokens of a forward pass, from the rows of each candidate, (N,)."""
        if not len(counts):
            return 0
        config, dim = self._network.config, self._first.sizes.dim
        rows, times = np.unique(counts, return_counts=True)
        cost = [self._kind.late_cost(config, dim, context_tokens, each) for each in rows.tolist()]
        return int(np.ceil(np.dot(cost, times) / self._forward_cost))


def _context_state(context: ContextEncoding, device: torch.device) -> ContextState:
    codes = torch.from_numpy(context.codes)[None].to(device)
    first = ContextCodes(codes, torch.ones(codes.shape[:2], dtype=torch.bool, device=device))
    if not context.late:
        return ContextState(first)
    late = torch.from_numpy(context.late[0])[None].to(device)
    return ContextState(first, late, torch.ones(late.shape[:2], dtype=torch.bool, device=device))


def _candidate_state(candidates: Representations, device: torch.device) -> CandidateState:
    first = torch.from_numpy(np.ascontiguousarray(candidates.first, np.float32)).to(device)
    if candidates.late is None or candidates.counts is None:
        return CandidateState(first)
    mask = np.arange(max(1, candidates.counts.max(initial=0))) < candidates.counts[:, None]
    late = np.zeros((*mask.shape, candidates.late.shape[1]), np.float32)
    late[mask] = candidates.late
    return CandidateState(first, torch.from_numpy(late).to(device), torch.from_numpy(mask).to(device))


class PairForwards(Passes[CrossEncoder]):
    """Scores pairs with a Cross-encoder; a residual one adds its first stage's scores."""

    def __init__(self, network: Network[CrossEncoder], compiler: Compiler) -> None:
        super().__init__(network, compiler, PairPart)
        self._first_stage = FirstStage(first_stage(network), compiler) if network.config.residual else None

    def score_pairs(self, pairs: Pairs) -> NDArray[np.float32]:
        """Score tokenised pairs in batches of similar length, (N,), in the order given."""
        return self._with_first_stage(pairs, self._in_batches(pairs, ()))

    def class_logits(self, pairs: Pairs) -> NDArray[np.float32]:
        """Return a classifier's logits of each tokenised pair's class, (N, C), in the order given."""
        return self._in_batches(pairs, (self._network.config.head_classes,))

    def _in_batches(self, pairs: Pairs, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Run batches of similar length; returns what the head gives, `shape` for each pair."""
        outputs = np.empty((len(pairs.owners), *shape), np.float32)
        for positions in CrossEncoder.batches(pairs, self._compiler.token_budget):
            outputs[positions] = self._joint_scores(pairs.take(positions))
        return outputs

    def score_pair_batch(self, pairs: Pairs) -> NDArray[np.float32]:
        """Score tokenised pairs in one forward pass of the Cross-encoder, whatever their lengths, (B,)."""
        return self._with_first_stage(pairs, self._joint_scores(pairs))

    def _joint_scores(self, pairs: Pairs) -> NDArray[np.float32]:
        (scores,) = self._first.run(CrossEncoder.join(pairs, self._first.sizes.pad_id))
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
