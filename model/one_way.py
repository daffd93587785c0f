"""One-way Cross-encoder: each candidate reads the context at every layer, the context does not read the candidate.

The interaction of Yang et al. 3.2, `Attn(Q', [K'; K], [V'; V])` with the context's keys and values K, V of the same
layer, with all of a candidate's tokens and in all layers. The context is therefore encoded once, however many
candidates are scored, and a pair costs the candidate's tokens alone. What a candidate has read corrects the score that
it has without reading: training begins with the ranking of the Poly-encoder of the same weights.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import DynamicCache

from model.attention import ContextCodes, poly_scores
from model.backbone import Backbone
from model.batching import length_batches, pad
from model.config import ModelConfig
from model.pairs import Pairs
from model.polyencoder import PolyEncoder
from model.pooling import reduce_states

# Added to the logits of context tokens. A hundred of them beside a reply of twelve would take nearly all of its
# attention; so they take about half, and its outputs stay near those that the transformer was trained to give.
CONTEXT_LOGIT = -2.0

ROW_TOKENS = 64  # longer rows waste attention between candidates that is masked, shorter ones copy the context's keys


class OneWayEncoder(PolyEncoder):
    """`score = poly(ctxt, cand) + red(T2(cand | ctxt)) W`: a Poly-encoder's score, corrected by what a candidate read.

    Attributes:
        code_vectors: as `PolyEncoder`.
        head: W, D to 1; zero before training.
    """

    def __init__(self, config: ModelConfig, context: Backbone, candidate: Backbone) -> None:
        super().__init__(config, context, candidate)
        self.head = nn.Linear(candidate.dim, 1, bias=False)  # a constant would rank nothing
        nn.init.zeros_(self.head.weight)

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
        contexts = pad(pairs.contexts, self.context.pad_id).to(self.head.weight.device)
        memory = DynamicCache()  # keys and values of every layer
        states: Tensor = self.context(contexts, memory)
        codes = self.context_vectors(states, contexts.mask)
        return self._unread(codes, pairs) + self._correction(memory, contexts.mask, pairs)

    def _unread(self, codes: ContextCodes, pairs: Pairs) -> Tensor:
        """The Poly-encoder's scores, (B,); a text that goes with several contexts is encoded once."""
        distinct = list(dict.fromkeys(map(tuple, pairs.candidates)))
        chunks = [[distinct[each] for each in chunk] for chunk in length_batches([len(each) for each in distinct])]
        batches = [pad(chunk, self.candidate.pad_id).to(codes.vectors.device) for chunk in chunks]
        scores = poly_scores(codes, torch.cat([self.encode_candidates(batch) for batch in batches]))
        columns = {text: column for column, text in enumerate(text for chunk in chunks for text in chunk)}
        return scores[pairs.owners, [columns[tuple(each)] for each in pairs.candidates]]

    def _correction(self, memory: DynamicCache, context_mask: Tensor, pairs: Pairs) -> Tensor:
        """What reading adds to each score, (B,)."""
        rows = _pack(pairs, self.candidate.pad_id, context_mask.device)
        memory.batch_select_indices(rows.owners)
        logits = _logits(context_mask[rows.owners], rows.segments)
        states = self.candidate.read(rows.ids, rows.positions, logits, memory)
        read = reduce_states(states.flatten(0, 1)[rows.tokens], rows.mask, self.config)
        correction: Tensor = self.head(read)[:, 0]
        return correction


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


def _logits(context_mask: Tensor, segments: Tensor) -> Tensor:
    """What is added to the attention's logits, (R, 1, Q, T + Q): a token sees its context and its own candidate.

    context_mask: (R, T), of each row's context. segments: (R, Q).
    """
    n_rows, width = segments.shape
    context = torch.where(context_mask[:, None, :], CONTEXT_LOGIT, -torch.inf).expand(n_rows, width, -1)
    own = torch.where(segments[:, :, None] == segments[:, None, :], 0.0, -torch.inf)
    return torch.cat([context, own], dim=2)[:, None]
