"""Losses by hand and by numbers; the gradient cache gives what one pass gives."""

import math
import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from polyrank.model.training.objective import cached_backward, distillation, listwise, plain_backward, pointwise

Matrix = list[list[float]]
ROWS, COLUMNS = 4, 6
GOLD = [0, 5, 2, 3]


def drawn(seed: int) -> Matrix:
    draw = random.Random(seed)
    return [[draw.uniform(-4, 4) for _ in range(COLUMNS)] for _ in range(ROWS)]


def mask(seed: int) -> list[list[bool]]:
    """Some columns forbidden in each row, never the gold one."""
    draw = random.Random(seed)
    return [[column == gold or draw.random() < 0.6 for column in range(COLUMNS)] for gold in GOLD]


def log_softmax(row: list[float], allowed: list[bool]) -> list[float]:
    total = sum(math.exp(score) for score, counts in zip(row, allowed, strict=True) if counts)
    return [score - math.log(total) for score in row]


def listwise_by_hand(scores: Matrix, allowed: list[list[bool]]) -> float:
    return sum(-log_softmax(scores[row], allowed[row])[GOLD[row]] for row in range(ROWS)) / ROWS


def pointwise_by_hand(scores: Matrix, allowed: list[list[bool]]) -> float:
    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    total = 0.0
    for row in range(ROWS):
        for column in range(COLUMNS):
            if allowed[row][column]:
                right = sigmoid(scores[row][column])
                total -= math.log(right if column == GOLD[row] else 1 - right)
    return total / ROWS


def distillation_by_hand(student: Matrix, teacher: Matrix, allowed: list[list[bool]]) -> float:
    total = 0.0
    for row in range(ROWS):
        p, q = log_softmax(teacher[row], allowed[row]), log_softmax(student[row], allowed[row])
        total += sum(math.exp(p[at]) * (p[at] - q[at]) for at in range(COLUMNS) if allowed[row][at])
    return total / ROWS


@pytest.mark.parametrize("seed", range(5))
def test_they_are_as_their_formulas(seed: int) -> None:
    scores, teacher, allowed = drawn(seed), drawn(seed + 100), mask(seed)
    given = torch.tensor(scores), torch.tensor(GOLD), torch.tensor(allowed)
    assert listwise(*given).item() == pytest.approx(listwise_by_hand(scores, allowed), rel=1e-5)
    assert pointwise(*given).item() == pytest.approx(pointwise_by_hand(scores, allowed), rel=1e-5)
    found = distillation(given[0], torch.tensor(teacher), given[2]).item()
    assert found == pytest.approx(distillation_by_hand(scores, teacher, allowed), rel=1e-5)


@pytest.mark.parametrize("loss", [
    lambda scores, allowed: listwise(scores, torch.tensor(GOLD), allowed),
    lambda scores, allowed: pointwise(scores, torch.tensor(GOLD), allowed),
    lambda scores, allowed: distillation(scores, torch.tensor(drawn(9)), allowed),
], ids=["listwise", "pointwise", "distillation"])  # fmt: skip
def test_a_forbidden_column_has_no_part_in_value_or_gradient(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    allowed = torch.tensor(mask(3))
    assert not allowed.all()
    scores = torch.tensor(drawn(3), requires_grad=True)
    value = loss(scores, allowed)
    value.backward()
    assert (scores.grad[~allowed] == 0).all()
    assert (scores.grad[allowed] != 0).all()
    other = scores.detach().clone()
    other[~allowed] = 77.0
    assert loss(other, allowed).item() == value.item()


def test_scores_far_apart_give_finite_losses() -> None:
    scores, gold, allowed = torch.tensor([[-2e4, 2e4]]), torch.tensor([0]), torch.ones(1, 2, dtype=torch.bool)
    assert listwise(scores, gold, allowed).item() == pytest.approx(4e4)
    assert pointwise(scores, gold, allowed).item() == pytest.approx(4e4)
    assert distillation(scores, -scores, allowed).item() == pytest.approx(4e4)


def test_half_precision_scores_are_summed_in_single_precision() -> None:
    scores = torch.tensor(drawn(1))
    gold, allowed = torch.tensor(GOLD), torch.tensor(mask(1))
    for loss in (listwise, pointwise):
        found = loss(scores.bfloat16(), gold, allowed)
        assert found.dtype == torch.float32
        assert found.item() == pytest.approx(loss(scores.bfloat16().float(), gold, allowed).item(), rel=1e-6)


def test_a_student_as_sure_as_its_teacher_has_nothing_to_learn() -> None:
    scores, allowed = torch.tensor(drawn(2)), torch.tensor(mask(2))
    assert distillation(scores, scores - 3, allowed).item() == pytest.approx(0, abs=1e-6)
    assert distillation(scores, 2 * scores, allowed).item() > 0.01


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
    loss = step(encodes, coupled, lambda each: (each * scale).backward())
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
        cached_backward(encodes, coupled, lambda each: each.backward())
    twice = weight.grad.clone()
    weight.grad = None
    cached_backward(encodes, coupled, lambda each: each.backward())
    torch.testing.assert_close(twice, 2 * weight.grad)


def test_one_graph_is_in_memory_at_a_time() -> None:
    """While a chunk is encoded for its gradient, those before it are done and those after it not begun."""
    weight = torch.ones(2, 2, requires_grad=True)
    events: list[str] = []

    def encode(name: str, chunk: Tensor) -> tuple[Tensor, Tensor]:
        events.append(f"{name} {'with' if torch.is_grad_enabled() else 'without'}")
        made = chunk @ weight
        if made.requires_grad:
            made.register_hook(lambda _: events.append(f"{name} back"))
        return made, MASK

    encodes = [lambda at=at, chunk=chunk: encode("ab"[at], chunk) for at, chunk in enumerate(CHUNKS)]
    cached_backward(encodes, coupled, lambda each: each.backward())
    assert events == ["a without", "b without", "a with", "a back", "b with", "b back"]
