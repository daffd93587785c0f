"""The pure functions against the oracle, on random token outputs with padding that must not count."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from golden import oracle

from polyrank.model.architectures.attention import (
    ContextCodes,
    code_attention,
    first_outputs,
    last_and_first_outputs,
    last_outputs,
    masked_softmax,
    poly_scores,
)

LENGTHS = [9, 1, 4, 7, 5]
DIM = 6


def padded(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, list[list[list[float]]]]:
    """Token outputs (B, T, D) whose padding is large, their mask, and the outputs without padding in float64."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(len(LENGTHS), max(LENGTHS), DIM)).astype(np.float32)
    mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    states[~mask] = 50.0
    plain = [row[:length].astype(np.float64).tolist() for row, length in zip(states, LENGTHS, strict=True)]
    return torch.from_numpy(states), torch.from_numpy(mask), plain


def vectors_of(codes: ContextCodes) -> list[np.ndarray]:
    return [vectors[present].numpy() for vectors, present in zip(codes.vectors, codes.mask, strict=True)]


@pytest.mark.parametrize("scale", [1.0, 0.25, 12.0])
@pytest.mark.parametrize("m", [1, 3, 16])
def test_code_attention(m: int, scale: float) -> None:
    states, mask, plain = padded()
    codes = torch.from_numpy(np.random.default_rng(1).normal(size=(m, DIM)).astype(np.float32))
    made = code_attention(codes, states, mask, scale)
    expected = [oracle.code_attention(codes.double().tolist(), outputs, scale) for outputs in plain]
    assert made.shape == (len(LENGTHS), m, DIM)
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-5)


def test_code_attention_is_unscaled_unless_told() -> None:
    states, mask, plain = padded()
    codes = torch.randn(2, DIM, generator=torch.Generator().manual_seed(3))
    expected = [oracle.code_attention(codes.double().tolist(), outputs) for outputs in plain]
    np.testing.assert_allclose(code_attention(codes, states, mask), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("function", "expected"), [
    (first_outputs, oracle.first_outputs), (last_outputs, oracle.last_outputs),
    (last_and_first_outputs, oracle.last_and_first_outputs),
])  # fmt: skip
@pytest.mark.parametrize("m", [1, 3, 4, 5, 8, 9, 20])
def test_outputs_as_context_vectors(function: Callable[..., Any], expected: Callable[..., Any], m: int) -> None:
    """Lengths 1 to 9 against every m: T < m, T == m, T == m + 1 and T > m all occur."""
    states, mask, plain = padded()
    made = vectors_of(function(states, mask, m))
    for vectors, outputs in zip(made, plain, strict=True):
        np.testing.assert_array_equal(vectors, expected(outputs, m))


def test_the_first_output_is_in_it_once() -> None:
    states, mask, _ = padded()
    assert last_and_first_outputs(states, mask, 4).mask.sum(dim=1).tolist() == [5, 1, 4, 5, 5]


@pytest.mark.parametrize("scale", [0.3, 1.0, 20.0])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 4), (5, 1), (16, 4), (64, 9)])
def test_candidate_attention_is_the_papers_two_products(m: int, n: int, scale: float) -> None:
    rng = np.random.default_rng(m * 100 + n)
    vectors = rng.normal(size=(3, m, DIM)).astype(np.float32)
    candidates = rng.normal(size=(n, DIM)).astype(np.float32)
    present = rng.random((3, m)) < 0.7
    present[:, 0] = True
    vectors[~present] = 50.0
    made = poly_scores(
        ContextCodes(torch.from_numpy(vectors) * scale, torch.from_numpy(present)), torch.from_numpy(candidates)
    )
    expected = [
        [
            oracle.candidate_attention(each[counts].astype(float).tolist(), candidate.astype(float).tolist(), scale)
            for candidate in candidates
        ]
        for each, counts in zip(vectors, present, strict=True)
    ]
    assert made.shape == (3, n)
    assert made.dtype == torch.float32
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-5 * max(1.0, np.abs(expected).max()))


def test_each_context_may_have_candidates_of_its_own() -> None:
    rng = np.random.default_rng(5)
    vectors = torch.from_numpy(rng.normal(size=(3, 4, DIM)).astype(np.float32))
    context = ContextCodes(vectors, torch.ones(3, 4, dtype=torch.bool))
    candidates = torch.from_numpy(rng.normal(size=(3, 2, DIM)).astype(np.float32))
    made = poly_scores(context, candidates)
    for b in range(3):
        alone = poly_scores(ContextCodes(vectors[b : b + 1], context.mask[b : b + 1]), candidates[b])
        torch.testing.assert_close(made[b : b + 1], alone)


def test_half_precision_is_summed_in_float32() -> None:
    vectors = torch.randn(1, 8, 64, generator=torch.Generator().manual_seed(0)).half()
    candidates = torch.randn(5, 64, generator=torch.Generator().manual_seed(1)).half()
    present = torch.ones(1, 8, dtype=torch.bool)
    single = poly_scores(ContextCodes(vectors.float(), present), candidates.float())
    assert torch.equal(poly_scores(ContextCodes(vectors, present), candidates), single)


def test_a_masked_position_has_no_weight_at_all() -> None:
    weights = masked_softmax(torch.tensor([1.0, 1e30, 2.0]), torch.tensor([True, False, True]))
    assert weights[1].item() == 0.0
    np.testing.assert_allclose(weights[[0, 2]], oracle.softmax([1.0, 2.0]), rtol=1e-6)
