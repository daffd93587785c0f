"""Exact gradients of a loss over a large batch, in the memory of a small one (Gao et al. 2021, arXiv 2101.06983).

An in-batch loss couples all examples, so a batch cannot simply be split. But it couples them only through their
representations. So: encode the chunks without keeping their graphs, take the loss's gradient with respect to the
representations, then encode each chunk again, with its graph, and push its part of that gradient through. Dropout must
fall alike both times, so the random state before each chunk is kept.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Encoded = tuple[Tensor, ...]
"""What one chunk gives: representations (floating), and tensors that no gradient goes through, such as masks."""

Encode = Callable[[], Encoded]
"""Encodes one chunk."""


def cached_backward(
    chunks: Sequence[Encode], loss_of: Callable[[Sequence[Encoded]], Tensor], backward: Callable[[Tensor], None]
) -> Tensor:
    """Add the gradients of `loss_of([encode() for encode in chunks])` to the parameters.

    Every chunk is encoded twice, with the same random state. `backward` runs autograd from the loss, which it may scale
    (accumulation, half precision). Returns the loss, detached.
    """
    states, leaves = [], list[Encoded]()
    for encode in chunks:
        states.append(_random_state())
        with torch.no_grad():
            leaves.append(tuple(tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in encode()))
    after = _random_state()
    loss = loss_of(leaves)
    backward(loss)
    for encode, state, held in zip(chunks, states, leaves, strict=True):
        _set_random_state(state)
        learning = [(tensor, leaf.grad) for tensor, leaf in zip(encode(), held, strict=True) if leaf.requires_grad]
        torch.autograd.backward([tensor for tensor, _ in learning], [gradient for _, gradient in learning])
    _set_random_state(after)
    return loss.detach()


def plain_backward(
    chunks: Sequence[Encode], loss_of: Callable[[Sequence[Encoded]], Tensor], backward: Callable[[Tensor], None]
) -> Tensor:
    """The same with all graphs in memory at once: one forward instead of two; arguments as `cached_backward`."""
    loss = loss_of([encode() for encode in chunks])
    backward(loss)
    return loss.detach()


def _random_state() -> tuple[Tensor, list[Tensor]]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def _set_random_state(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
