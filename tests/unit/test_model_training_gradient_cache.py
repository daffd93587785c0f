"""Gradient caching by itself: values, gradients, scaling and the random state, on functions small enough to follow."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from polyrank.model.training.objective import cached_backward, plain_backward

CHUNKS = [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -1.0], [0.5, 0.25]])]

MASK = torch.tensor([True])  # what no gradient goes through


def coupled(encoded: Sequence[tuple[Tensor, ...]]) -> Tensor:
    """A loss in which every representation meets every other, so that a sum over chunks would be wrong."""
    return torch.cat([each for each, _ in encoded]).sum(dim=0).square().prod()


def gradients(step: object, scale: float = 1.0, dropout: float = 0.0) -> tuple[float, Tensor, Tensor]:
    """Loss, gradient, and the next number that the generator gives."""
    torch.manual_seed(4)
    weight = torch.tensor([[0.3, -0.2], [0.1, 0.7]], requires_grad=True)
    encodes = [lambda chunk=chunk: (torch.dropout(chunk @ weight, dropout, True), MASK) for chunk in CHUNKS]
    loss = step(encodes, coupled, lambda each: (each * scale).backward())  # type: ignore[operator]
    assert weight.grad is not None
    assert not loss.requires_grad
    return loss.item(), weight.grad, torch.rand(1)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_it_gives_what_the_plain_step_gives_and_leaves_the_same_random_state(dropout: float) -> None:
    (plain_loss, plain, plain_next), (loss, found, after) = (
        gradients(step, dropout=dropout) for step in (plain_backward, cached_backward)
    )
    assert loss == plain_loss
    torch.testing.assert_close(found, plain, rtol=1e-6, atol=1e-6)
    assert torch.equal(after, plain_next), "a resumed run and the plain step go on alike"


def test_the_loss_is_not_scaled_but_its_gradient_is() -> None:
    loss, once, _ = gradients(cached_backward)
    same, scaled, _ = gradients(cached_backward, scale=0.25)
    assert same == loss
    torch.testing.assert_close(scaled, once / 4)


def test_gradients_are_added_to_those_there_are() -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    encodes = [lambda chunk=chunk: (chunk @ weight, MASK) for chunk in CHUNKS]
    for _ in range(2):
        cached_backward(encodes, coupled, lambda each: each.backward())  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    twice = weight.grad.clone()
    weight.grad = None
    cached_backward(encodes, coupled, lambda each: each.backward())  # type: ignore[no-untyped-call]
    torch.testing.assert_close(twice, 2 * weight.grad)


def test_one_graph_is_in_memory_at_a_time() -> None:
    """While a chunk is encoded for its gradient, those before it are done and those after it not begun."""
    weight = torch.ones(2, 2, requires_grad=True)
    events: list[str] = []

    def encode(name: str, chunk: Tensor) -> tuple[Tensor, Tensor]:
        events.append(f"{name} {'with' if torch.is_grad_enabled() else 'without'}")
        made = chunk @ weight
        if made.requires_grad:
            made.register_hook(lambda _: events.append(f"{name} back"))  # type: ignore[no-untyped-call]
        return made, MASK

    encodes = [lambda at=at, chunk=chunk: encode("ab"[at], chunk) for at, chunk in enumerate(CHUNKS)]
    cached_backward(encodes, coupled, lambda each: each.backward())  # type: ignore[no-untyped-call]
    assert events == ["a without", "b without", "a with", "a back", "b with", "b back"]
