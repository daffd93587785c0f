"""Fits what a score says: the probability that a reply is right, by dialogues whose reply is known.

It is Platt's scaling (Platt 1999, "Probabilistic outputs for support vector machines", with his targets): a line under
the sigmoid, which keeps the order of the scores. The lists are those that words are weighed by, without the repeated
turns. All right replies of a file together weigh PRIOR, all wrong ones the rest, however many there are.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.config import CalibrationConfig, EvidenceConfig
from polyrank.model.evidence.features import FEATURES
from polyrank.model.evidence.fit import Files, ScoredList
from polyrank.model.training.weighing import FEWEST_LISTS

PRIOR = 0.1  # one text in ten is right: a search has found ten, one of which answers
_LEAST_SLOPE = 1e-4


class Calibrated(NamedTuple):
    """The calibration, how many lists it was fitted on, and what a threshold of 0.5 does.

    Attributes:
        right, wrong: shares of right and of wrong replies at 0.5 or above, in dialogues that it was not fitted on.
    """

    calibration: CalibrationConfig
    lists: int
    right: float
    wrong: float

    def summary(self) -> dict[str, object]:
        """Return what a checkpoint says of it."""
        return {"lists": self.lists, "right_above_half": self.right, "wrong_above_half": self.wrong}


def lack(files: Files) -> str | None:
    """Return why scored lists cannot tell what a score says; None: they can."""
    told = _telling(files)
    if (lists := sum(map(len, told))) < FEWEST_LISTS:
        return f"{lists} lists with wrong replies are too few, {FEWEST_LISTS} are needed; give more dialogues"
    if len({each.fold for file in told for each in file}) < 2:
        return "the lists are of too few dialogues to fit on some and measure on others; give more dialogues"
    return None


def calibrate(files: Files, evidence: EvidenceConfig | None, scores_pairs: bool) -> Calibrated | None:
    """Fit the calibration of a model on the scored lists of all files; None: they cannot tell (`lack`).

    evidence: how words count in its scores. scores_pairs: the pairs may also count alone, where a server has no words.
    """
    if lack(files):
        return None
    files = _telling(files)
    lists = sum(map(len, files))
    scored = [[_scored(each, evidence) for each in file] for file in files]
    slope, intercept = _line(scored)
    alone = _line([[_scored(each, None) for each in file] for file in files]) if evidence and scores_pairs else None
    calibration = CalibrationConfig(
        prior=PRIOR,
        slope=slope,
        intercept=intercept,
        alone_slope=alone and alone[0],
        alone_intercept=alone and alone[1],
    )
    return Calibrated(calibration, lists, *_at_half(scored))


def _telling(files: Files) -> list[list[ScoredList]]:
    """Return the lists that have wrong replies: a file of a single dialogue gives none."""
    return [[each for each in file if len(each.late) - each.repeats > 1] for file in files]


class _Scored(NamedTuple):
    """The final scores (C,) of a list, the right reply first, and its fold."""

    scores: NDArray[np.float64]
    fold: int


def _scored(each: ScoredList, evidence: EvidenceConfig | None) -> _Scored:
    numbers = each.numbers(repeats=False)
    if evidence is None:
        return _Scored(numbers[:, 0], each.fold)
    weights = np.array([evidence.late_weight, *(evidence.weights.get(name, 0.0) for name in FEATURES)])
    return _Scored(numbers @ weights, each.fold)


def _line(files: Sequence[Sequence[_Scored]]) -> tuple[float, float]:
    """Return slope and intercept, the slope above 0."""
    from scipy.optimize import minimize  # takes a tenth of a second, which only a fit needs

    known = [_file(file) for file in files if file]
    scores, targets, weights = (np.concatenate(column) for column in zip(*known, strict=True))
    middle, width = float(scores.mean()), float(scores.std()) or 1.0
    standard = (scores - middle) / width

    def loss(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logits = values[0] * standard + values[1]
        lost = np.logaddexp(0.0, logits) - targets * logits
        slopes = weights * (1 / (1 + np.exp(-np.clip(logits, -700, 700))) - targets)
        return float((weights * lost).sum()), np.array([(slopes * standard).sum(), slopes.sum()])

    start = np.array([1.0, float(np.log(PRIOR / (1 - PRIOR)))])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(_LEAST_SLOPE * width, None), (None, None)])
    slope = found.x[0] / width
    return _rounded(slope), _rounded(found.x[1] - slope * middle)


def _file(file: Sequence[_Scored]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return scores, targets and weights of a file's texts; the weights add up to its share, up to FEWEST_LISTS."""
    right = np.array([each.scores[0] for each in file])
    wrong = np.concatenate([each.scores[1:] for each in file])
    share = min(1.0, len(file) / FEWEST_LISTS)
    targets = (len(right) + 1) / (len(right) + 2), 1 / (len(wrong) + 2)  # Platt's, so that no list is separated by more
    weights = share * PRIOR / len(right), share * (1 - PRIOR) / len(wrong)
    columns = [
        np.concatenate([np.full(len(right), one), np.full(len(wrong), other)]) for one, other in (targets, weights)
    ]
    return np.concatenate([right, wrong]), columns[0], columns[1]


def _at_half(files: Sequence[Sequence[_Scored]]) -> tuple[float, float]:
    """Measure the shares of right and wrong replies at 0.5 or above; each fold by the line of the other."""
    right, wrong = [], []
    for fold in (0, 1):
        slope, intercept = _line([[each for each in file if each.fold != fold] for file in files])
        for each in (each for file in files for each in file if each.fold == fold):
            above = slope * each.scores + intercept >= 0
            right.append(above[0])
            wrong.append(above[1:])
    return _rounded(float(np.mean(right))), _rounded(float(np.concatenate(wrong).mean()))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
