"""Cut token sequences of different lengths into batches that waste little padding."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

TOKEN_BUDGET = 4096  # padded tokens a batch; on a CPU larger batches gain nothing and fall out of cache
GPU_TOKEN_BUDGET = 65_536  # a GPU has work for all its cores only in batches of many tokens


class TokenBatch(NamedTuple):
    """Token ids (B, T), mask (B, T) True on real tokens, segment ids (B, T)."""

    ids: Tensor
    mask: Tensor
    segments: Tensor

    def to(self, device: torch.device) -> "TokenBatch":
        """The same on a device."""
        return TokenBatch(*(each.to(device) for each in self))


def length_batches(lengths: Sequence[int], budget: int = TOKEN_BUDGET) -> list[list[int]]:
    """Group positions by length, longest first, each group within the budget of padded tokens.

    A sequence longer than the budget gets a batch of its own.

    >>> length_batches([3, 9, 3, 2], budget=9)
    [[1], [0, 2, 3]]
    """
    batches: list[list[int]] = []
    longest = 0
    for position in sorted(range(len(lengths)), key=lambda p: -lengths[p]):
        if batches and longest * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(position)
        else:
            batches.append([position])
            longest = lengths[position]
    return batches


def pad(sequences: Sequence[Sequence[int]], pad_id: int, segment_starts: Sequence[int] | None = None) -> TokenBatch:
    """Pad on the right. `segment_starts[b]`: where segment 1 begins in row b (Cross-encoder); absent: all 0."""
    width = max(len(sequence) for sequence in sequences)
    ids = np.full((len(sequences), width), pad_id, dtype=np.int64)
    mask = np.zeros((len(sequences), width), dtype=np.bool_)
    segments = np.zeros((len(sequences), width), dtype=np.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = True
        if segment_starts is not None:
            segments[row, segment_starts[row] : len(sequence)] = 1
    return TokenBatch(torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(segments))


def budget_of(device: torch.device) -> int:
    """Padded tokens that a batch may have on a device."""
    return TOKEN_BUDGET if device.type == "cpu" else GPU_TOKEN_BUDGET
