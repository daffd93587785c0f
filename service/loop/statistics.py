"""What tells a better model from chance: the gate over examples, and the canary over conversations.

The gate compares two models over the same examples. Whole conversations are drawn with replacement, so the quantiles of
the mean difference are paired (`resampled_means` in model/measures.py). A new model that has to be better in one of
several figures has several chances: each of them is tried at GAIN_LEVEL divided by their number (Bonferroni). So of
models that differ by chance alone about one in forty passes, and of 200 comparisons hardly ever more than 10. Likewise
slices at SLICE_LEVEL: of such models at most one in fifty falls by what one of its slices seems to have lost.

The canary looks again and again, so its interval must hold at every look at once: an asymptotic confidence sequence
(Waudby-Smith et al. 2021, "Time-uniform central limit theory and asymptotic confidence sequences", theorem 2.2).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite, log, sqrt
from statistics import NormalDist
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from polyrank.model.measures import Values, group_numbers, resampled_means

FIGURES: Final = ("recall@1", "mrr")
LEVEL: Final = 0.05
GAIN_LEVEL: Final = 0.025
MARGIN: Final = 0.02  # what a figure may seem to lose, by its quantile at LEVEL
SLICE_MARGIN: Final = 0.05  # what a slice may lose on average
SLICE_LEVEL: Final = 0.02
SLICE_CONVERSATIONS: Final = 200  # of a slice that is looked at
FEWEST_CONVERSATIONS: Final = 100  # of a set; of fewer the quantiles say too little
LATELY: Final = "what came later"  # the set of what people wrote lately

Verdict = Literal["passed", "refused", "not enough evidence"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The new model's figure minus the old one's, over the conversations of a set."""

    mean: float  # over all examples
    low: float  # the quantile of the mean at LEVEL
    high: float  # and at 1 - LEVEL
    sure: float  # the quantile at GAIN_LEVEL divided by the number of chances

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two models over a set of examples."""

    conversations: int  # how many the set holds
    figures: Mapping[str, Difference]  # by name, those of FIGURES
    # By the names of slices that have lost SLICE_MARGIN, and more than chance explains: how much.
    lost: Mapping[str, float]


def compared(new: Values, old: Values, groups: NDArray[np.int64], slices: Sequence[str], sets: int) -> Comparison:
    """Compare two models over one of several sets.

    `new` and `old` are figures of each example, (examples,) each, at least those of FIGURES.

    groups: the number of each example's conversation, from 0 without a gap, (examples,). slices: the name of each
    example's slice, (examples,). sets: how many sets there are.
    """
    values = np.column_stack([new[name] - old[name] for name in FIGURES])
    levels = [LEVEL, 1 - LEVEL, GAIN_LEVEL / (sets * len(FIGURES))]
    ends = np.quantile(resampled_means(values, groups), levels, axis=0)
    rows = zip(FIGURES, values.mean(axis=0).tolist(), *ends.tolist(), strict=True)
    return Comparison(
        conversations=int(groups.max()) + 1,
        figures={name: Difference(mean, low, high, sure) for name, mean, low, high, sure in rows},
        lost=_lost(values, groups, slices, sets),
    )


def _lost(values: NDArray[np.float64], groups: NDArray[np.int64], slices: Sequence[str], sets: int) -> dict[str, float]:
    numbers = group_numbers(slices)
    every = ((name, numbers == number) for number, name in enumerate(dict.fromkeys(slices)))
    large = {name: own for name, own in every if len(np.unique(groups[own])) >= SLICE_CONVERSATIONS}
    chances, lost = sets * len(FIGURES) * len(large), dict[str, float]()
    for name, own in large.items():
        means = values[own].mean(axis=0)
        # Conversations are drawn whole: what the examples of one have above the mean adds up.
        sums = np.zeros((groups.max() + 1, len(FIGURES)))
        np.add.at(sums, groups[own], values[own] - means)
        highs = means + NormalDist().inv_cdf(1 - SLICE_LEVEL / chances) * np.sqrt((sums**2).sum(axis=0)) / own.sum()
        if (fallen := means[(means < -SLICE_MARGIN) & (highs < 0)]).size:
            lost[name] = -float(fallen.min())
    return lost


def judged(sets: Mapping[str, Comparison]) -> tuple[Verdict, str]:
    """Judge a new model by all sets; returns the verdict and, in a clause, why.

    It passes where on every set no figure may have lost more than MARGIN, some figure of some set has surely gained,
    and no slice is lost. It is refused where it is shown to be worse, or where sets that would let an equal model keep
    within MARGIN show no gain. Otherwise the sets are too small to tell. LATELY grows by itself, so while it is too
    small it keeps no model from passing by a golden set.
    """
    for name, own in sets.items():
        for where, loss in own.lost.items():
            return "refused", f"on {name} it loses {loss:.3f} where {where}"
    for what, each in _pairs({name: own for name, own in sets.items() if own.conversations >= FEWEST_CONVERSATIONS}):
        if each.high < 0:
            return "refused", f"it is worse: {what} {each}"
    small = {name: f"too small: {lack}" for name, own in sets.items() if (lack := _lack(own))}
    for name, lack in small.items():
        if name != LATELY or len(sets) == 1:
            return "not enough evidence", f"{name} is {lack}"
    pairs = _pairs({name: own for name, own in sets.items() if name not in small})
    for what, each in pairs:
        if each.low <= -MARGIN:
            return "refused", f"it may lose too much: {what} {each}"
    what, best = max(pairs, key=lambda pair: pair[1].sure)
    notes = "".join(f"; {name} did not count, it is {lack}" for name, lack in small.items())
    if best.sure > 0:
        return "passed", f"{what} {best}{notes}"
    return "not enough evidence" if small else "refused", f"no figure is surely better: {what} {best}{notes}"


def _pairs(sets: Mapping[str, Comparison]) -> list[tuple[str, Difference]]:
    return [(f"{figure} on {name}", each) for name, own in sets.items() for figure, each in own.figures.items()]


def _lack(own: Comparison) -> str | None:
    """Say why a set is too small: it has few conversations, or an equal model might fail on it; None: it is not."""
    if own.conversations < FEWEST_CONVERSATIONS:
        return f"{own.conversations} conversations of at least {FEWEST_CONVERSATIONS}"
    for figure, each in own.figures.items():
        width = each.mean - each.low
        if each.low <= -MARGIN and width >= MARGIN:
            enough = ceil(own.conversations * (width / MARGIN) ** 2)
            return f"{figure} {each} over {own.conversations} conversations of about {enough}"
    return None


_SEQUENCE_LEVEL = 0.05
_TIGHTNESS = 0.045  # r of the sequence: it is tightest near 2,000 conversations
_FIRST_LOOK = 200  # conversations, counted as at equal shares


@dataclass(frozen=True, slots=True)
class Effect:
    """By how much the mean outcome of the trial's conversations is above that of the live generation's."""

    mean: float
    low: float  # of the interval, which holds at all looks at once with 95 %; infinite while too little was counted
    high: float
    new: int  # conversations that were counted of each model
    old: int

    def __str__(self) -> str:
        if not self.new + self.old:
            return "no conversation yet; servers must record feedback, and GET /index must show the trial"
        of = f"{self.new} conversations of the new model and {self.old} of the old one"
        if not isfinite(self.low):
            return f"{of} are too few yet"
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}] over {of}"


def effect(is_new: NDArray[np.bool_], shares: NDArray[np.float64], outcomes: NDArray[np.float64]) -> Effect:
    """Compare the conversations of two models that answer side by side.

    All are (conversations,), in the order in which these began: whether each is of the new model, the share of the new
    model when it began, in (0, 1), and its outcome, 0 or 1.

    Of a conversation whose outcome is y, the difference is estimated by (y - m) / p if it is of the new model,
    else by -(y - m) / (1 - p), where p is the share and m the mean outcome of those before (augmented inverse
    probability weighting). Its variance is v / (p (1 - p)), with v that of outcomes, so each counts with the weight
    4 p (1 - p): one that began at equal shares counts 1. Then `t` of the sequence is the sum of the weights, and its
    deviation 2 sqrt(v). The larger v of both sides counts: a few conversations may by chance all end alike.
    """
    new, old = int(is_new.sum()), int((~is_new).sum())
    weights = 4 * shares * (1 - shares)
    total = float(weights.sum())
    if total < _FIRST_LOOK:
        return Effect(0.0, -inf, inf, new, old)
    means = (np.cumsum(outcomes) - outcomes + 0.5) / np.arange(1, len(outcomes) + 1)
    estimates = np.where(is_new, 1 / shares, -1 / (1 - shares)) * (outcomes - means)
    mean = float((weights * estimates).sum() / total)
    variance = max(_variance(outcomes[is_new]), _variance(outcomes[~is_new]))
    width = 2 * sqrt(variance) * _sequence_width(total)
    return Effect(mean, mean - width, mean + width, new, old)


def _variance(outcomes: NDArray[np.float64]) -> float:
    """Of outcomes that are 0 or 1, as if one more of each had been seen."""
    rate = (float(outcomes.sum()) + 1) / (len(outcomes) + 2)
    return rate * (1 - rate)


def _sequence_width(t: float) -> float:
    """Half the interval's width after t values of standard deviation 1."""
    scaled = t * _TIGHTNESS**2
    return sqrt(2 * (scaled + 1) / (t * scaled) * log(sqrt(scaled + 1) / _SEQUENCE_LEVEL))
