"""What tells a better model from chance: the gate over examples, and the canary over conversations.

The gate compares two models over the same examples. Whole conversations are drawn with replacement, so the quantiles of
the mean difference are paired (`resampled_means` in model/measures.py). A new model that has to be better in one of
several figures has several chances: each of them is tried at GAIN_LEVEL divided by their number (Bonferroni). So of
models that differ by chance alone about one in forty passes, and of 200 comparisons hardly ever more than 10.

The canary looks again and again, so its interval must hold at every look at once: an asymptotic confidence sequence
(Waudby-Smith et al. 2021, "Time-uniform central limit theory and asymptotic confidence sequences", theorem 2.2).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite, log, sqrt
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from polyrank.model.measures import Values, group_numbers, resampled_means

FIGURES: Final = ("recall@1", "mrr")
LEVEL: Final = 0.05
GAIN_LEVEL: Final = 0.025
MARGIN: Final = 0.02  # what a figure may seem to lose, by its quantile at LEVEL
SLICE_MARGIN: Final = 0.05  # what a slice may lose on average
SLICE_CONVERSATIONS: Final = 200  # of a slice that is looked at
FEWEST_CONVERSATIONS: Final = 100  # of a set; of fewer the quantiles say too little

Verdict = Literal["passed", "refused", "not enough evidence"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The new model's figure minus the old one's, over the conversations of a set.

    Attributes:
        mean: over all examples.
        low, high: the quantiles of the mean at LEVEL and 1 - LEVEL.
        sure: the quantile at GAIN_LEVEL divided by the number of chances.
    """

    mean: float
    low: float
    high: float
    sure: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


@dataclass(frozen=True, slots=True)
class Compared:
    """Two models over a set of examples.

    Attributes:
        conversations: how many the set holds.
        figures: by name, those of FIGURES.
        slices: the mean differences of those that are large enough, by the name of the slice.
    """

    conversations: int
    figures: Mapping[str, Difference]
    slices: Mapping[str, Mapping[str, float]]


def compared(new: Values, old: Values, groups: NDArray[np.int64], slices: Sequence[str], sets: int) -> Compared:
    """Compare two models over one of several sets.

    `new` and `old` are figures of each example, (examples,) each, at least those of FIGURES.

    groups: the number of each example's conversation, from 0 without a gap, (examples,). slices: the name of each
    example's slice, (examples,). sets: how many sets there are.
    """
    values = np.column_stack([new[name] - old[name] for name in FIGURES])
    levels = [LEVEL, 1 - LEVEL, GAIN_LEVEL / (sets * len(FIGURES))]
    ends = np.quantile(resampled_means(values, groups), levels, axis=0)
    found = zip(FIGURES, values.mean(axis=0).tolist(), *ends.tolist(), strict=True)
    return Compared(
        conversations=int(groups.max()) + 1,
        figures={name: Difference(mean, low, high, sure) for name, mean, low, high, sure in found},
        slices=dict(_slices(values, groups, group_numbers(slices), list(dict.fromkeys(slices)))),
    )


def _slices(
    values: NDArray[np.float64], groups: NDArray[np.int64], numbers: NDArray[np.int64], names: Sequence[str]
) -> Iterator[tuple[str, dict[str, float]]]:
    for number, name in enumerate(names):
        own = numbers == number
        if len(np.unique(groups[own])) >= SLICE_CONVERSATIONS:
            yield name, dict(zip(FIGURES, values[own].mean(axis=0).tolist(), strict=True))


def judged(sets: Mapping[str, Compared]) -> tuple[Verdict, str]:
    """Judge a new model by all sets; returns the verdict and, in a clause, why.

    It passes where on every set no figure may have lost more than MARGIN, some figure of some set has surely gained,
    and no slice has lost more than SLICE_MARGIN. It is refused where it is shown to be worse, or where sets that would
    let an equal model keep within MARGIN show no gain. Otherwise the sets are too small to tell.
    """
    if why := next(_worse(sets), None):
        return "refused", why
    if why := next(_too_small(sets), None):
        return "not enough evidence", why
    named = _named(sets)
    for what, each in named:
        if each.low <= -MARGIN:
            return "refused", f"it may lose too much: {what} {each}"
    what, best = max(named, key=lambda pair: pair[1].sure)
    return ("passed", f"{what} {best}") if best.sure > 0 else ("refused", f"no figure is surely better: {what} {best}")


def _named(sets: Mapping[str, Compared]) -> list[tuple[str, Difference]]:
    return [(f"{figure} on {name}", each) for name, own in sets.items() for figure, each in own.figures.items()]


def _worse(sets: Mapping[str, Compared]) -> Iterator[str]:
    """Say what is shown to be worse."""
    for name, own in sets.items():
        for where, means in own.slices.items():
            if (worst := min(means.values())) < -SLICE_MARGIN:
                yield f"on {name} it loses {-worst:.3f} where {where}"
    for what, each in _named(sets):
        if each.high < 0:
            yield f"it is worse: {what} {each}"


def _too_small(sets: Mapping[str, Compared]) -> Iterator[str]:
    """Say which set is too small: it has few conversations, or an equal model might fail on it, too."""
    for name, own in sets.items():
        if own.conversations < FEWEST_CONVERSATIONS:
            yield f"{name} has {own.conversations} conversations of at least {FEWEST_CONVERSATIONS}"
        for figure, each in own.figures.items():
            width = each.mean - each.low
            if each.low <= -MARGIN and width >= MARGIN:
                wanted = ceil(own.conversations * (width / MARGIN) ** 2)
                yield f"{figure} on {name} {each}, over {own.conversations} conversations of about {wanted}"


_SEQUENCE_LEVEL = 0.05
_TIGHTNESS = 0.045  # r of the sequence: it is tightest near 2,000 conversations
_FIRST_LOOK = 200  # conversations, counted as at equal shares


@dataclass(frozen=True, slots=True)
class Effect:
    """By how much the mean outcome of the trial's conversations is above that of the live generation's.

    Attributes:
        mean, low, high: the estimate and its interval, which holds at all looks at once with 95 %; it is infinite while
            too few conversations were counted.
        new, old: conversations that were counted of each model.
    """

    mean: float
    low: float
    high: float
    new: int
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
