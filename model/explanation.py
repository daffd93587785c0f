"""Where a score comes from: what each token of the context, each code and each token of the reply adds.

The score of a Poly-encoder is a sum, and is taken apart in float64, without approximation. Axes: M context vectors, T
tokens of the context, K tokens of the reply, D dimensions. With the context vectors `y_i = sum_t f_i a_it h_t`
(`StateSums`) and the reply's vector v, the score is `S = sum_i w_i s_i` with `s_i = y_i . v` and `w = softmax(s)`
(docs/explanation/mathematics.md). So it is the sum over codes and tokens of

    C_it = w_i f_i a_it (h_t . v)

A score has no zero: adding the same number to all s_i adds it to the score of every reply. What tells replies apart is
a contribution less that to the other replies (`relative`).

The score of a Cross-encoder or a Uni-Encoder is no sum. There a part of the context is left out, and what the score
loses is told. That is not additive: what two parts say together is lost with each of them. Source of the idea: Zeiler
and Fergus 2014, "Visualizing and Understanding Convolutional Networks", section 4.2.

Importing this needs no torch. What runs the torch modules of a model, whatever serves, is in explainers.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from polyrank.model.architectures.sums import Float64, StateSums, softmax
from polyrank.model.text.sequences import Pairs, PlacedToken


class CodeContributions(NamedTuple):
    """What each context vector and each token of the context add to the score of one reply.

    attention: a, (M, T): how much each context vector takes of each token. scores: s, (M,). weights: w, (M,).
    contributions: C, (M, T), whose sum is the score.
    """

    attention: Float64
    scores: Float64
    weights: Float64
    contributions: Float64

    @property
    def effective(self) -> float:
        """How many context vectors took part: e to the power of the entropy of their weights, from 1 to M."""
        counted = self.weights[self.weights > 0]
        return float(np.exp(-(counted * np.log(counted)).sum()))

    def without_each(self) -> Float64:
        """Return the score without each of the context vectors, (M,); NaN where it is the only one.

        The others share its weight: it is `(S - w_i s_i) / (1 - w_i)`, computed without the cancellation.
        """
        count = len(self.scores)
        if count == 1:
            return np.full(1, np.nan)
        rest: Float64 = softmax(np.where(np.eye(count, dtype=np.bool_), -np.inf, self.scores)) @ self.scores
        return rest


def code_contributions(context: StateSums, reply: Float64) -> CodeContributions:
    """Take the score of a reply's vector (D,) apart."""
    parts = context.factors[:, None] * context.weights * (context.values @ reply)  # (M, T)
    scores = parts.sum(axis=-1)
    weights = softmax(scores)
    return CodeContributions(context.weights, scores, weights, weights[:, None] * parts)


def pair_contributions(context: StateSums, weights: Float64, reply: StateSums) -> Float64:
    """Return what each token of the context with each of the reply adds to the score, (T, K).

    The reply's vector is the sum `v = sum_k f b_k g_k` over its own tokens, so that

        J_tk = sum_i w_i f_i a_it f b_k (h_t . g_k)

    The score less their sum is what a stored vector was rounded by. weights: w, (M,), of the stored vector.
    """
    of_context = (weights * context.factors) @ context.weights  # (T,)
    of_reply = reply.factors[0] * reply.weights[0]  # (K,)
    pairs: Float64 = of_context[:, None] * of_reply * (context.values @ reply.values.T)
    return pairs


def relative(contributions: Float64, against: int | None) -> Float64:
    """Return what speaks for each of N replies beside the others, (N, T), from what tokens contribute, (N, T).

    against: the reply that the others are compared with; None: the mean of all.

    >>> relative(np.array([[3.0, 0.0], [1.0, 2.0]]), None).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    beside: Float64 = contributions - (contributions.mean(axis=0) if against is None else contributions[against])
    return beside


By = Literal["turns", "words"]


class Unit(NamedTuple):
    """A part of a context that is left out."""

    turn: int | None
    persona: int | None
    start: int
    end: int
    places: tuple[int, ...]


_KEYS: dict[By, Callable[[PlacedToken], object]] = {
    "turns": lambda token: (token.turn, token.persona),
    "words": lambda token: token.word,
}


def units(tokens: Sequence[PlacedToken], by: By) -> list[Unit]:
    """Return the turns and sentences of the persona, or the words, of a context's tokens, in their order."""
    groups: dict[object, list[int]] = {}
    for place, token in enumerate(tokens):
        if token.start is not None:
            groups.setdefault(_KEYS[by](token), []).append(place)
    return [_unit(tokens, places) for places in groups.values()]


def _unit(tokens: Sequence[PlacedToken], places: Sequence[int]) -> Unit:
    own = [tokens[place] for place in places]
    start, end = min(each.start or 0 for each in own), max(each.end or 0 for each in own)
    return Unit(own[0].turn, own[0].persona, start, end, tuple(places))


def without(ids: Sequence[int], places: Sequence[int]) -> list[int]:
    """Return token ids without those at some places."""
    left_out = {*places}
    return [id_ for place, id_ in enumerate(ids) if place not in left_out]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a reply's score by vectors consists of; T tokens of the context, K of the reply."""

    tokens: Float64 | None = None  # what each token of the context adds, (T,); None: it is no sum over them
    codes: CodeContributions | None = None  # the same by context vector; None: there are none, or `tokens` is None
    # What each token of the context adds with each of the reply, (T, K); None: it is no sum over them.
    pairs: Float64 | None = None


class Occluded(NamedTuple):
    """One pair, and the places of the context's tokens that are left out of it."""

    pair: Pairs
    places: tuple[int, ...]
