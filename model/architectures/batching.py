"""Cut token sequences of different lengths into batches that waste little padding. Importing this needs no torch."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.text.sequences import Pairs

TOKEN_BUDGET = 4096  # padded tokens in a batch; on a CPU larger batches gain nothing and fall out of cache
# The fixed cost of a forward, in tokens: docs/measurements/load.md.
FORWARD_TOKENS = 64
_LENGTH_STEP = 16
GPU_TOKEN_BUDGET = 65_536  # only batches of many tokens keep all cores of a GPU busy


class TokenBatch(NamedTuple):
    """Token ids (B, T), mask (B, T) True on real tokens, segment ids (B, T)."""

    ids: NDArray[np.int64]
    mask: NDArray[np.bool_]
    segments: NDArray[np.int64]


class BesideBatch(NamedTuple):
    """Candidates to read beside B contexts that have been read, n for each context, N = B n; absent ones have no token.

    ids, mask: (N, K), as in TokenBatch. places: of the tokens in the sequence that the context begins, (N, K). memory:
    what is made of the contexts' tokens, (B, T, W). memory_mask: which of these tokens count, (B, T).
    """

    ids: NDArray[np.int64]
    mask: NDArray[np.bool_]
    places: NDArray[np.int64]
    memory: NDArray[np.float32]
    memory_mask: NDArray[np.bool_]


Batch = TokenBatch | BesideBatch


def distinct_sequences(sequences: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Find each distinct sequence: returns a position of each, shortest first, and for each sequence its place there.

    Their order does not depend on that of the sequences.

    >>> distinct_sequences([[3, 1], [2], [3, 1], [1, 4]])
    ([1, 3, 2], [2, 0, 2, 1])
    """
    position_of = {tuple(sequence): position for position, sequence in enumerate(sequences)}
    ordered = sorted(position_of, key=lambda sequence: (len(sequence), sequence))
    place_of = {sequence: place for place, sequence in enumerate(ordered)}
    return [position_of[sequence] for sequence in ordered], [place_of[tuple(sequence)] for sequence in sequences]


def length_batches(lengths: Sequence[int], budget: int = TOKEN_BUDGET) -> list[list[int]]:
    """Group positions by length, longest first, each group within the budget of padded tokens.

    The cuts make the sum of padding and fixed costs of forwards smallest. A budget above TOKEN_BUDGET says that small
    batches waste the machine: a forward's own cost grows with it. A sequence longer than the budget gets a batch of its
    own.

    >>> length_batches([3, 9, 3, 2], budget=9)
    [[1], [0, 2, 3]]
    >>> length_batches([120, 14, 12, 118, 13, 15, 14])
    [[0, 3], [5, 1, 6, 4, 2]]
    >>> length_batches([120, 14, 12, 118, 13, 15, 14], budget=GPU_TOKEN_BUDGET)
    [[0, 3, 5, 1, 6, 4, 2]]
    """
    order = sorted(range(len(lengths)), key=lambda position: -lengths[position])
    return [batch for group in _groups(order, lengths, budget) for batch in _within(budget, group, lengths)]


def _groups(order: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Cut the order, longest first, where the total cost is least; only between lengths that round up differently."""
    runs = [list(run) for _, run in groupby(order, key=lambda position: -(-lengths[position] // _LENGTH_STEP))]
    forward = FORWARD_TOKENS * max(1.0, budget / TOKEN_BUDGET)
    least, cuts = [0.0], [0]  # for the first n runs: the least cost in tokens, and the run their last group begins with
    for end in range(1, len(runs) + 1):
        count, best = 0, (math.inf, 0)
        for start in range(end - 1, -1, -1):
            count += len(runs[start])
            tokens = count * lengths[runs[start][0]]
            best = min(best, (least[start] + tokens + forward * math.ceil(tokens / budget), start))
        least.append(best[0])
        cuts.append(best[1])
    groups, end = [], len(runs)
    while end:
        groups.append([position for run in runs[cuts[end] : end] for position in run])
        end = cuts[end]
    return groups[::-1]


def _within(budget: int, order: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Cut an order, longest first, into batches as large as the budget allows."""
    batches: list[list[int]] = []
    longest = 0
    for position in order:
        if batches and longest * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(position)
        else:
            batches.append([position])
            longest = lengths[position]
    return batches


def pad(sequences: Sequence[Sequence[int]], pad_id: int, segment_starts: Sequence[int] | None = None) -> TokenBatch:
    """Pad on the right. `segment_starts`: where segment 1 begins in each row; None: segment 0 throughout."""
    width = max(len(sequence) for sequence in sequences)
    ids = np.full((len(sequences), width), pad_id, dtype=np.int64)
    mask = np.zeros((len(sequences), width), dtype=np.bool_)
    segments = np.zeros((len(sequences), width), dtype=np.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = True
        if segment_starts is not None:
            segments[row, segment_starts[row] : len(sequence)] = 1
    return TokenBatch(ids, mask, segments)


def pair_batches(pairs: Pairs, budget: int) -> list[list[int]]:
    """Group the positions of pairs of similar length, each group within a budget of padded tokens."""
    return length_batches(pair_lengths(pairs), budget)


def joined(pairs: Pairs, pad_id: int) -> TokenBatch:
    """Join each context and its candidate to one sequence, padded: segment 0 for the context, 1 for the candidate."""
    heads = [pairs.contexts[owner] for owner in pairs.owners]
    joint = [[*head, *candidate[pairs.prefix :]] for head, candidate in zip(heads, pairs.candidates, strict=True)]
    return pad(joint, pad_id, [len(head) for head in heads])


def pair_lengths(pairs: Pairs) -> list[int]:
    """Return how many tokens are read for each pair, where each is joined."""
    return [len(pairs.contexts[owner]) + len(own) for owner, own in zip(pairs.owners, pairs.candidates, strict=True)]


def shared_lengths(pairs: Pairs) -> list[int]:
    """Return how many tokens are read for each pair, where a context is read once: a pair's own, and its share of it.

    >>> shared_lengths(Pairs([[7, 7, 7]], [[1], [2, 2]], [0, 0]))
    [3, 3]
    """
    lengths = [len(candidate) for candidate in pairs.candidates]
    for owner, positions in pairs.by_context().items():
        share, more = divmod(len(pairs.contexts[owner]), len(positions))
        for number, position in enumerate(positions):
            lengths[position] += share + (number < more)
    return lengths


def behind(
    candidates: Sequence[Sequence[int]], begins: Sequence[int], pad_id: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
    """Pad candidates, which may have no token, and of which each begins at a place of its own.

    Returns the first three fields of a BesideBatch.
    """
    ids, mask, _ = pad([own or [pad_id] for own in candidates], pad_id)
    mask &= np.array([len(own) > 0 for own in candidates])[:, None]
    return ids, mask, (np.array(begins)[:, None] + np.arange(ids.shape[1])) * mask
