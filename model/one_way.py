"""One-way Cross-encoder: each candidate reads the context at every layer, the context does not read the candidate.

The interaction of Yang et al. 3.2, `Attn(Q', [K'; K], [V'; V])` with the context's keys and values K, V of the same
layer, with all of a candidate's tokens and in all layers. The context is therefore encoded once, however many
candidates are scored, and a pair costs the candidate's tokens alone. With no attention to the context it is the
Poly-encoder of the same weights, which is what training begins with.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from model.attention import poly_scores
from model.batching import pad
from model.pairs import Pairs
from model.polyencoder import PolyEncoder

# Added to the logits of context tokens. A hundred of them beside a reply of twelve would take nearly all of its
# attention; so they take about a quarter, and a Poly-encoder's weights rank as before.
CONTEXT_LOGIT = -3.0

ROW_TOKENS = 64  # longer rows waste attention between candidates that is masked, shorter ones copy the context's keys


class OneWayEncoder(PolyEncoder):
    """`score = sum_i softmax(s)_i s_i`, `s_i = y_i . red(T2(cand | ctxt))`: a Poly-encoder whose candidates have read.

    Attributes as `PolyEncoder`.
    """

    def batches(self, pairs: Pairs, budget: int) -> list[list[int]]:
        """Positions to score together: contexts of like length, within a budget of tokens that are attended to."""
        found: list[list[int]] = []
        room = 0
        for row in _rows(pairs):
            tokens = len(pairs.contexts[pairs.owners[row[0]]]) + sum(len(pairs.candidates[pair]) for pair in row)
            if tokens > room:
                found.append([])
                room = budget
            found[-1] += row
            room -= tokens
        return found

    def score_pairs(self, pairs: Pairs) -> Tensor:
        """Return one score a pair, (B,) float32."""
        device = next(self.parameters()).device
        contexts = pad(pairs.contexts, self.context.pad_id).to(device)
        rows = _pack(pairs, self.candidate.pad_id, device)
        memory = DynamicCache()  # keys and values of every layer
        states: Tensor = self.context(contexts, memory)
        codes = self.context_vectors(states, contexts.mask)
        memory.batch_select_indices(rows.owners)
        logits = _logits(contexts.mask[rows.owners], rows.segments)
        states = self.candidate.read(rows.ids, rows.positions, logits, memory)
        embeddings = self.reduce(states.flatten(0, 1)[rows.tokens], rows.mask)
        # Contexts may have different numbers of candidates: a table with a line for each, some places empty.
        owners, slots = torch.tensor(pairs.owners, device=device), torch.tensor(_slots(pairs.owners), device=device)
        table = embeddings.new_zeros(len(pairs.contexts), int(slots.max()) + 1, self.candidate.dim)
        table[owners, slots] = embeddings
        return poly_scores(codes, table)[owners, slots]


class _Rows(NamedTuple):
    """Candidates side by side in rows, each row of one context.

    ids, positions, segments: (R, Q); a candidate's positions count from 0, its segment is its pair's number, -1 is
    padding. owners: each row's context, (R,). tokens, mask: where each pair's tokens lie in the rows laid end to end,
    (B, t).
    """

    ids: Tensor
    positions: Tensor
    segments: Tensor
    owners: Tensor
    tokens: Tensor
    mask: Tensor


def _pack(pairs: Pairs, pad_id: int, device: torch.device) -> _Rows:
    rows = _rows(pairs)
    lengths = np.array([len(each) for each in pairs.candidates])
    shape = (len(rows), max(int(lengths[row].sum()) for row in rows))
    ids, positions = np.full(shape, pad_id), np.zeros(shape, np.int64)
    segments = np.full(shape, -1)
    first = np.zeros(len(lengths), np.int64)
    for number, row in enumerate(rows):
        at = 0
        for pair in row:
            span = slice(at, at + lengths[pair])
            ids[number, span] = pairs.candidates[pair]
            positions[number, span] = np.arange(lengths[pair])
            segments[number, span] = pair
            first[pair] = number * shape[1] + at
            at = span.stop
    steps = np.arange(lengths.max())
    mask: NDArray[np.bool_] = steps < lengths[:, None]
    tokens = np.where(mask, first[:, None] + steps, 0)
    owners = np.array([pairs.owners[row[0]] for row in rows])
    arrays = (ids, positions, segments, owners, tokens, mask)
    return _Rows(*(torch.from_numpy(each).to(device) for each in arrays))


def _rows(pairs: Pairs) -> list[list[int]]:
    """Pairs of one context, longest first, until a row is full."""
    rows: list[list[int]] = []
    room, owner = 0, -1
    for pair in sorted(range(len(pairs.owners)), key=lambda each: _place(pairs, each)):
        length = len(pairs.candidates[pair])
        if pairs.owners[pair] != owner or length > room:
            rows.append([])
            room, owner = ROW_TOKENS, pairs.owners[pair]
        rows[-1].append(pair)
        room -= length
    return rows


def _place(pairs: Pairs, pair: int) -> tuple[int, int, int]:
    """Order of pairs: long contexts first, those of one context together, their long candidates first."""
    owner = pairs.owners[pair]
    return -len(pairs.contexts[owner]), owner, -len(pairs.candidates[pair])


def _slots(owners: list[int]) -> list[int]:
    """Number of each pair among those of its context.

    >>> _slots([1, 0, 1])
    [0, 0, 1]
    """
    counts: dict[int, int] = {}
    slots = []
    for owner in owners:
        slots.append(counts.get(owner, 0))
        counts[owner] = slots[-1] + 1
    return slots


def _logits(context_mask: Tensor, segments: Tensor) -> Tensor:
    """What is added to the attention's logits, (R, 1, Q, T + Q): a token sees its context and its own candidate.

    context_mask: (R, T), of each row's context. segments: (R, Q).
    """
    n_rows, width = segments.shape
    context = torch.where(context_mask[:, None, :], CONTEXT_LOGIT, -torch.inf).expand(n_rows, width, -1)
    own = torch.where(segments[:, :, None] == segments[:, None, :], 0.0, -torch.inf)
    return torch.cat([context, own], dim=2)[:, None]
