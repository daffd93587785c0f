"""Vectors as sums over tokens, by which scores are taken apart, in float64. Importing this needs no torch.

Axes: T tokens, M vectors, D dimensions.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.config import ContextVectors, Reduction

Float64 = NDArray[np.float64]

# What an explanation may have to leave out: what the context's tokens and codes contribute; what the reply's tokens do;
# all that the second stage does.
Unexplained = Literal["tokens", "reply_tokens", "second_stage"]

_SHORTEST = 1e-12  # a vector's length, as in torch's `normalize`


class StateSums(NamedTuple):
    """M vectors `y_i = scale * u_i`, or `scale * u_i / |u_i|` where `unit`, with `u_i = sum_t weights_it values_t`.

    weights: (M, T). values: (T, D).
    """

    weights: Float64
    values: Float64
    scale: float = 1.0
    unit: bool = False

    @property
    def factors(self) -> Float64:
        """What each vector's sum is multiplied with, (M,); of a vector of zeros 0."""
        if not self.unit:
            return np.full(len(self.weights), self.scale)
        lengths = np.linalg.norm(self.weights @ self.values, axis=-1)
        factors: Float64 = np.divide(self.scale, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        return factors

    @property
    def vectors(self) -> Float64:
        scaled: Float64 = self.factors[:, None] * (self.weights @ self.values)
        return scaled


def softmax(logits: Float64) -> Float64:
    """Return the softmax over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: Float64 = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def of_length_one(vectors: Float64) -> Float64:
    """Scale vectors along the last axis to length 1; zero vectors stay zero."""
    scaled: Float64 = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), _SHORTEST)
    return scaled


def code_sums(code_vectors: Float64, states: Float64, scale: float) -> Float64:
    """Return the weights by which learnt codes (M, D) attend to states (T, D), (M, T)."""
    return softmax(code_vectors @ states.T * scale)


def output_sums(kind: ContextVectors, count: int, tokens: int) -> Float64:
    """Return the weights of vectors that are outputs of single tokens, (M, T): one is 1, the others are 0.

    >>> output_sums("last+first", 1, 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    first, last = range(min(count, tokens)), range(max(0, tokens - count), tokens)
    places = {"first": {*first}, "last": {*last}, "last+first": {0, *last}}[kind]
    return np.eye(tokens)[sorted(places)]


def reduction_sums(reduction: Reduction, m: int, states: Float64) -> tuple[Float64, Float64]:
    """Return the weights (1, T) and the values (T, D) whose sum a reduction of states (T, D) is.

    The largest values ("max") are taken from one token each. So a token's value is what is taken from it, by its share
    of the dimensions, which is its weight. `m` is for "first-m mean".
    """
    tokens, dim = states.shape
    if reduction == "max":
        one_hot = np.zeros_like(states)
        one_hot[states.argmax(axis=0), np.arange(dim)] = 1.0
        shares = one_hot.mean(axis=1)
        return shares[None], states * one_hot / np.maximum(shares, 1 / (2 * dim))[:, None]
    place = np.arange(tokens)
    weights = {
        "first": place == 0,
        "last": place == tokens - 1,
        "mean": place >= 0,
        "first-m mean": place < m,
        "all-but-first mean": place >= min(1, tokens - 1),
        "mean-sqrt-len": place >= 0,
        "weighted-mean": place + 1,
    }[reduction].astype(np.float64)
    total = weights.sum()
    return (weights / (np.sqrt(total) if reduction == "mean-sqrt-len" else total))[None], states
