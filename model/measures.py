"""How good rankings are: figures of single examples, and intervals of their means.

Where scores tie, the order says nothing of the model. So no figure counts the order that candidates have in a file:
each is its expected value over random orders of tied candidates (McSherry and Najork 2008, "Computing information
retrieval performance measures efficiently in the presence of tied scores").

An interval says how far a figure would move with other examples (bootstrap, Efron 1979). Examples of one dialogue are
not independent, so whole dialogues are drawn (the cluster bootstrap). All columns of one call share every draw. The
difference of two models over the same examples, given as a column, therefore gets a paired interval, which does not
depend on how hard the drawn examples are.
"""

from collections.abc import Hashable, Iterable, Sequence
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyrank.model.text.folding import folded_line


class Ties(NamedTuple):
    """A ranking as groups of candidates with equal scores, best first; within a group all orders are as likely."""

    sizes: NDArray[np.int64]  # how many candidates each group has, (G,)
    right: NDArray[np.int64]  # how many of them are right, (G,)
    gains: NDArray[np.float64]  # the sum of their gains, (G,)

    @classmethod
    def of(cls, scores: ArrayLike, gains: ArrayLike) -> "Ties":
        """Group candidates with these scores and gains, (C,) each; those with a gain above 0 are right.

        >>> Ties.of([2.0, 3.0, 2.0], [1, 0, 0]).recall_at(2)
        0.5
        """
        numbers = np.asarray(gains, np.float64)
        values, group = np.unique(-np.asarray(scores), return_inverse=True)
        return cls(
            np.bincount(group, minlength=len(values)),
            np.bincount(group, numbers > 0, len(values)).astype(np.int64),
            np.bincount(group, numbers, len(values)).astype(np.float64),
        )

    def then(self, others: "Ties") -> "Ties":
        """Put these ahead of others."""
        return Ties._make(np.concatenate(each) for each in zip(self, others, strict=True))

    def widened(self, size: int, gains: ArrayLike) -> "Ties":
        """Add candidates to the last group, which must be there: how many, and the gains of those that are right."""
        ties = Ties._make(each.copy() for each in self)
        ties.sizes[-1] += size
        ties.right[-1] += np.count_nonzero(gains)
        ties.gains[-1] += np.sum(gains)
        return ties

    @property
    def first_right(self) -> tuple[int, int, int] | None:
        """How many are ahead of the first group with a right one, its size, and how many of it are right."""
        groups = np.flatnonzero(self.right)
        if not len(groups):
            return None
        group = groups[0]
        return int(self.sizes[:group].sum()), int(self.sizes[group]), int(self.right[group])

    @property
    def tie_at_first(self) -> bool:
        """Whether several candidates, not all of them right, tie for the first place."""
        return bool(len(self.sizes) and self.sizes[0] > max(1, self.right[0]))

    def recall_at(self, k: int) -> float:
        """Return the chance that a right one is among the first k: R@k of Humeau et al. 5.1 for one example.

        It is 1 less that of drawing wrong ones alone for the places that the group has there.
        """
        if self.first_right is None:
            return 0.0
        ahead, size, right = self.first_right
        places = min(max(0, k - ahead), size)
        ways = comb(size, places)
        return (ways - comb(size - right, places)) / ways

    def reciprocal(self, depth: int | None = None) -> float:
        """Return the mean of 1 / rank of the first right one, where a rank beyond the depth counts 0."""
        if self.first_right is None:
            return 0.0
        ahead, size, right = self.first_right
        most = size - right + 1  # places where the first right one can be
        places = np.arange(most if depth is None else min(most, max(0, depth - ahead)))
        here = right / (size - places)  # the chance of a right one, given wrong ones alone before
        wrong_before = np.cumprod(np.append(1.0, 1 - here)[: len(places)])
        return float((wrong_before * here / (ahead + 1 + places)).sum())

    def gain(self, k: int) -> float:
        """Return the mean of the discounted gain of the first k, where that at rank r counts 1 / log2(r + 1)."""
        discounts = np.append(0.0, np.cumsum(1 / np.log2(np.arange(2, k + 2))))
        ends = np.cumsum(self.sizes)
        within = discounts[np.minimum(ends, k)] - discounts[np.minimum(ends - self.sizes, k)]
        return float((self.gains / self.sizes * within).sum())

    def right_among(self, k: int) -> float:
        """Return the mean number of right ones among the first k."""
        before = np.cumsum(self.sizes) - self.sizes
        return float((self.right / self.sizes * np.clip(k - before, 0, self.sizes)).sum())


RECALL_AT = (1, 2, 5, 10)
DEPTH = 100  # texts retrieved for each context

Values = dict[str, NDArray[np.float64]]


def equal_to(right: str, texts: Sequence[str]) -> NDArray[np.bool_]:
    """Tell which texts count as the same as the right one, (texts,): those that `text_key` takes for the same.

    >>> equal_to("I use C#.", ["i  use c#.", "I use C++."])
    array([ True, False])
    """
    form = folded_line(right)
    return np.array([folded_line(text) == form for text in texts], np.bool_)


def ndcg_at_k(ties: Ties, judged: NDArray[np.float64], k: int) -> float:
    """nDCG@k, trec_eval's `ndcg_cut`: discounted gain of the first k documents over that of the best possible order.

    The gain is the judgement itself, not a power of 2; the document at rank r counts 1 / log2(r + 1) of its gain.

    ties: the retrieved documents, with gain 0 if not judged. judged: gains of all judged documents, retrieved or not,
    in any order, (judged,). Returns 0 to 1; 0 if no judged document has a gain.

    >>> ties = Ties.of([2.0, 1.0], [0.0, 2.0])
    >>> round(ndcg_at_k(ties, np.array([1.0, 2.0]), 10), 4)  # (2 / log2(3)) / (2 + 1 / log2(3))
    0.4796
    """
    best = Ties.of(judged, judged).gain(k)
    return ties.gain(k) / best if best > 0 else 0.0


def rank_values(ties: Sequence[Ties], at: Sequence[int] = RECALL_AT, depth: int | None = None) -> Values:
    """Compute the metrics of examples with one right reply, which several texts may equal.

    Returns `recall@k` for each k of `at`: the chance that it is among the first k; and `mrr`, the mean of 1 / rank. A
    reply that was not found counts 0 in all of them, and one beyond `depth` in `mrr`.
    """
    recalls = {f"recall@{k}": np.array([each.recall_at(k) for each in ties]) for k in at}
    return {**recalls, "mrr": np.array([each.reciprocal(depth) for each in ties])}


def judged_values(ties: Sequence[Ties], judged: Sequence[NDArray[np.float64]]) -> Values:
    """Compute the metrics of queries with graded judgements: `ndcg@10`, `mrr@10` and `recall@100`.

    For each query, `ties` and `judged` are as in `ndcg_at_k`; a document with a gain above 0 is relevant.
    """
    pairs = list(zip(ties, judged, strict=True))
    return {
        "ndcg@10": np.array([ndcg_at_k(own, gains, 10) for own, gains in pairs]),
        "mrr@10": np.array([own.reciprocal(10) for own in ties]),
        "recall@100": np.array([own.right_among(100) / max(1, (gains > 0).sum()) for own, gains in pairs]),
    }


RESAMPLES = 10_000
CONFIDENCE = 0.95
_DRAWN_AT_ONCE = 2**20  # group numbers held in memory at a time


def group_numbers(names: Iterable[Hashable]) -> NDArray[np.int64]:
    """Number the names from 0 in order of appearance; equal names get the same number, (examples,).

    >>> group_numbers(["b", "a", "b"])
    array([0, 1, 0])
    """
    number_of: dict[Hashable, int] = {}
    return np.array([number_of.setdefault(name, len(number_of)) for name in names], np.int64)


def intervals(values: NDArray[np.float64], groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute the 95 % percentile interval of each column's mean; the same for the same arguments.

    values: (examples, figures). groups: number of the dialogue that each example is part of, from 0 without a gap,
    (examples,). Returns low and high ends, (2, figures).
    """
    tail = (1 - CONFIDENCE) / 2
    ends: NDArray[np.float64] = np.quantile(resampled_means(values, groups), [tail, 1 - tail], axis=0)
    return ends


def resampled_means(values: NDArray[np.float64], groups: NDArray[np.int64], seed: int = 0) -> NDArray[np.float64]:
    """Compute the mean of each column in every resample, (RESAMPLES, figures).

    A resample is as many dialogues as there are, drawn with replacement; all columns share the draws.
    """
    n = int(groups.max()) + 1
    sums = np.zeros((n, values.shape[1] + 1))  # of each dialogue's examples; the last column counts them
    np.add.at(sums, groups, np.column_stack([values, np.ones(len(values))]))
    rng = np.random.default_rng(seed)
    at_once = max(1, _DRAWN_AT_ONCE // n)
    draws = [_draw_counts(rng, min(at_once, RESAMPLES - start), n) @ sums for start in range(0, RESAMPLES, at_once)]
    totals = np.concatenate(draws)
    means: NDArray[np.float64] = totals[:, :-1] / totals[:, -1:]
    return means


def _draw_counts(rng: np.random.Generator, resamples: int, n: int) -> NDArray[np.float64]:
    """Count how often each of n was drawn in n draws, (resamples, n)."""
    draws = rng.integers(0, n, (resamples, n), dtype=np.int32)
    draws += n * np.arange(resamples, dtype=np.int32)[:, None]  # one count for all rows
    return np.bincount(draws.ravel(), minlength=resamples * n).reshape(resamples, n).astype(np.float64)
