"""Code attention, the four kinds of context vectors, and candidate attention: pure functions of tensors.

Axes: B contexts, N candidates, T tokens, M context vectors, D dimensions. Masks are True where a position counts; a
padding position never takes part in a softmax. Source throughout: Humeau et al. 2020 (arXiv 1905.01969), section 4.4
and Appendix C.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class ContextCodes(NamedTuple):
    """The context vectors of B contexts, and which of them exist.

    vectors: (B, M, D). mask: (B, M), False where a short context has fewer than M vectors.
    """

    vectors: Tensor
    mask: Tensor


def one_vector_each(vectors: Tensor) -> ContextCodes:
    """Give each of B contexts one vector, of (B, D)."""
    mask = torch.ones_like(vectors[:, :1], dtype=torch.bool)  # len(vectors) would be a constant of a traced model
    return ContextCodes(vectors[:, None], mask)


def masked_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last axis in float32, exactly zero where the mask is False.

    >>> masked_softmax(torch.zeros(3), torch.tensor([True, True, False])).tolist()
    [0.5, 0.5, 0.0]
    """
    return logits.float().masked_fill(~mask, float("-inf")).softmax(dim=-1)


def code_attention(code_vectors: Tensor, states: Tensor, mask: Tensor, scale: float = 1.0) -> Tensor:
    """Let each learnt code attend over the token states, by unscaled dot products.

    `w_i = softmax_j(scale * c_i . h_j)`, `y_i = sum_j w_ij h_j`; in the paper the scale is 1.

    code_vectors: (M, D). states: (B, T, D). mask: (B, T). Returns context vectors, (B, M, D), float32.
    """
    states = states.float()
    logits = torch.einsum("md,btd->bmt", code_vectors.float() * scale, states)
    return masked_softmax(logits, mask[:, None, :]) @ states


def first_outputs(states: Tensor, mask: Tensor, m: int) -> ContextCodes:
    """Take the first `m` outputs; a context of fewer tokens has fewer vectors (Appendix C).

    states: (B, T, D), mask: (B, T), padding on the right. Returns vectors (B, min(m, T), D).
    """
    return ContextCodes(states[:, :m].float(), mask[:, :m])


def last_outputs(states: Tensor, mask: Tensor, m: int) -> ContextCodes:
    """Take the last `m` outputs that are not padding, in their order (Appendix C).

    states: (B, T, D), mask: (B, T), padding on the right. Returns vectors (B, m, D), absent ones first and zero.
    """
    lengths = mask.sum(dim=1, keepdim=True)  # (B, 1)
    positions = lengths - m + torch.arange(m, device=states.device)  # (B, M), negative where T < M
    present = positions >= 0
    index = positions.clamp(min=0)[..., None].expand(-1, -1, states.shape[-1])
    return ContextCodes(states.gather(1, index).float() * present[..., None], present)


def last_and_first_outputs(states: Tensor, mask: Tensor, m: int) -> ContextCodes:
    """Take the last `m` outputs and the first one; where T <= m the first is among the last already (Appendix C).

    Returns vectors (B, m + 1, D), the first output in front.
    """
    last = last_outputs(states, mask, m)
    first_is_extra = mask.sum(dim=1, keepdim=True) > m  # (B, 1)
    first = states[:, :1].float() * first_is_extra[..., None]
    return ContextCodes(torch.cat([first, last.vectors], dim=1), torch.cat([first_is_extra, last.mask], dim=1))


def poly_scores(context: ContextCodes, candidate_embeddings: Tensor) -> Tensor:
    """Score candidates by candidate attention, in its closed form.

    The paper's `score = (sum_i w_i y_i) . y_cand` with `w = softmax_i(y_i . y_cand)` needs only `s_i = y_i . y_cand`:
    it is `sum_i softmax(s)_i s_i`, so the attended context vector is never formed.

    The score scale is part of the context vectors already. candidate_embeddings: (N, D), the same for all contexts, or
    (B, N, D). Returns scores, (B, N), float32.

    >>> import math
    >>> vectors = torch.tensor([[[math.log(3.0), 0.0], [0.0, 0.0]]])  # s = (ln 3, 0): weights 3/4 and 1/4
    >>> context = ContextCodes(vectors, torch.ones(1, 2, dtype=torch.bool))
    >>> round(poly_scores(context, torch.tensor([[1.0, 0.0]])).item(), 4)  # 3/4 ln 3
    0.824
    """
    s = candidate_embeddings.float() @ context.vectors.float().transpose(-1, -2)  # (B, N, M)
    weights = masked_softmax(s, context.mask[:, None, :])
    return (weights * s.masked_fill(~context.mask[:, None, :], 0.0)).sum(dim=-1)


def attended_vectors(context: ContextCodes, candidate_embeddings: Tensor) -> Tensor:
    """Return the context vector that each candidate attends to, `sum_i softmax(s)_i y_i`, (B, N, D).

    Arguments and s as in `poly_scores`.

    >>> vectors = torch.tensor([[[2.0, 0.0], [0.0, 4.0]]])
    >>> attended_vectors(ContextCodes(vectors, torch.ones(1, 2, dtype=torch.bool)), torch.zeros(1, 2)).tolist()
    [[[1.0, 2.0]]]
    """
    s = candidate_embeddings.float() @ context.vectors.float().transpose(-1, -2)  # (B, N, M)
    return masked_softmax(s, context.mask[:, None, :]) @ context.vectors.float()
