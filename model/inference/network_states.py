"""What lies before and behind the parts of an encoder, by its network's own class: second stages, heads of classes."""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.model import threads
from polyrank.model.architectures.attention import ContextCodes
from polyrank.model.architectures.backbone import TensorBatch
from polyrank.model.architectures.batching import TokenBatch
from polyrank.model.architectures.vector import CandidateState, ContextState, VectorEncoder
from polyrank.model.inference.network import Network
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.representations import ContextEncoding, Representations

_AT_ONCE = 1024  # candidates that are compared: what lies between is a few times their rows


class NetworkStates:
    """See `polyrank.model.inference.passes.States`. The network is read when something is first compared."""

    def __init__(self, network: Network[VectorEncoder], dim: int) -> None:
        """`dim`: of the transformer's states."""
        threads.tell_torch()
        self._network, self._config, self._states_dim = network, network.config, dim
        self._kind: type[VectorEncoder] = ARCHITECTURES[network.config.architecture].network
        self.dim = self._kind.first_dim(network.config, dim)
        self.late_rows = self._kind.late_rows(network.config, dim)

    def context_batch(self, contexts: Sequence[list[int]], pad_id: int) -> TokenBatch:
        return self._kind.context_batch(self._config, contexts, pad_id)

    def candidate_batch(self, candidates: Sequence[list[int]], pad_id: int) -> TokenBatch:
        return self._kind.candidate_batch(self._config, candidates, pad_id)

    def contexts(self, outputs: tuple[NDArray[np.float32], ...], batch: TokenBatch) -> list[ContextEncoding]:
        tensors = tuple(map(torch.from_numpy, outputs))
        state = self._kind.context_state(self._config, tensors, TensorBatch.of(batch))
        vectors_of, present_of = (each.numpy() for each in state.first)
        codes = [vectors[present] for vectors, present in zip(vectors_of, present_of, strict=True)]
        if state.late is None or state.mask is None:
            return [ContextEncoding(each) for each in codes]
        late = zip(state.late.numpy(), state.mask.numpy(), strict=True)
        return [ContextEncoding(own, (rows[mask],)) for own, (rows, mask) in zip(codes, late, strict=True)]

    def candidates(self, outputs: tuple[NDArray[np.float32], ...], batch: TokenBatch) -> Representations:
        tensors = tuple(map(torch.from_numpy, outputs))
        state = self._kind.candidate_state(self._config, tensors, TensorBatch.of(batch))
        if state.late is None or state.mask is None:
            return Representations(state.first.numpy())
        mask = state.mask.numpy()
        return Representations(state.first.numpy(), state.late.numpy()[mask], mask.sum(axis=1))

    def late_scores(self, context: ContextEncoding, candidates: Representations) -> NDArray[np.float32]:
        return self._compared(lambda contexts, some: self._scorer.late_scores(contexts, some)[0], context, candidates)

    def class_logits(self, context: ContextEncoding, candidates: Representations) -> NDArray[np.float32]:
        return self._compared(self._scorer.class_logits, context, candidates)

    def late_cost(self, context_tokens: int, rows: int) -> float:
        """Return how many multiplications scoring a candidate of so many rows takes in the second stage."""
        return self._kind.late_cost(self._config, self._states_dim, context_tokens, rows)

    def _compared(
        self,
        compare: Callable[[ContextState, CandidateState], torch.Tensor],
        context: ContextEncoding,
        candidates: Representations,
    ) -> NDArray[np.float32]:
        """Compare a context with candidates, (N, ...), so many at a time that what lies between stays small."""
        device, count = next(self._scorer.parameters()).device, len(candidates.first)
        contexts = _context_state(context, device)
        starts = range(0, max(1, count), _AT_ONCE)
        cut = (candidates.take(np.arange(start, min(start + _AT_ONCE, count))) for start in starts)
        with torch.inference_mode():
            parts = [compare(contexts, _candidate_state(some, device)) for some in cut]
        found: NDArray[np.float32] = torch.cat(parts).cpu().numpy()
        return found

    @cached_property
    def _scorer(self) -> VectorEncoder:
        return self._network.encoder


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
