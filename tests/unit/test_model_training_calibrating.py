"""Scores as probabilities: lists whose right line is known by theory."""

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from polyrank.model.config import CalibrationConfig, EvidenceConfig
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.lexical.features import FEATURES
from polyrank.model.lexical.fit import ScoredList
from polyrank.model.training.weighing import FEWEST_LISTS, PRIOR, Calibrated, calibrate, lack

RIGHT, WRONG, DEVIATION = 3.0, -1.0, 2.0


def lists(count: int, *, factor: float = 1.0, others: int = 30, repeats: int = 0) -> list[ScoredList]:
    """Scores of right and wrong replies from two normal distributions; a repeated turn scores far above."""
    draw = np.random.default_rng(0)
    return [
        ScoredList(
            np.concatenate([draw.normal(RIGHT, DEVIATION, 1), draw.normal(WRONG, DEVIATION, others), [50.0] * repeats])
            * factor,
            np.ones((1 + others + repeats, len(FEATURES))),
            repeats,
            at % 2,
        )
        for at in range(count)
    ]


def made(
    files: list[list[ScoredList]], evidence: EvidenceConfig | None = None, scores_pairs: bool = False
) -> Calibrated:
    found = calibrate(files, evidence, scores_pairs)
    assert found is not None
    return found


@pytest.mark.parametrize("factor", [1.0, 0.01, 300.0])
def test_the_line_is_that_of_two_normal_distributions(factor: float) -> None:
    """By Bayes' rule the log odds are linear in the score."""
    slope = (RIGHT - WRONG) / DEVIATION**2
    intercept = math.log(PRIOR / (1 - PRIOR)) - (RIGHT**2 - WRONG**2) / (2 * DEVIATION**2)
    found = made([lists(1500, factor=factor)])
    assert found.lists == 1500
    assert found.calibration.prior == PRIOR
    assert found.calibration.slope * factor == pytest.approx(slope, rel=0.1)
    assert found.calibration.intercept == pytest.approx(intercept, rel=0.1)
    half = -intercept / slope
    assert found.right == pytest.approx(1 - NormalDist(RIGHT, DEVIATION).cdf(half), abs=0.04)
    assert found.wrong == pytest.approx(1 - NormalDist(WRONG, DEVIATION).cdf(half), abs=0.004)


def test_repeated_turns_do_not_count() -> None:
    assert made([lists(100, repeats=1)]).calibration.slope > 0.5


def test_the_number_of_wrong_replies_does_not_move_the_line() -> None:
    few, many = (made([lists(1500, others=each)]).calibration for each in (5, 60))
    assert few.slope == pytest.approx(many.slope, rel=0.15)
    assert few.intercept == pytest.approx(many.intercept, abs=0.3)


def test_words_count_as_they_do_in_the_score() -> None:
    evidence = EvidenceConfig(late_weight=0.5, weights={FEATURES[0]: 2.0})
    plain = made([lists(300)]).calibration
    late = made([lists(300)], evidence).calibration
    assert late.slope == pytest.approx(2 * plain.slope, rel=1e-2)
    assert late.intercept == pytest.approx(plain.intercept - 2.0 * late.slope, rel=1e-2)
    assert late.line(words=False) == late.line(words=True)
    pairs = made([lists(300)], evidence, scores_pairs=True).calibration
    assert pairs.line(words=True) == late.line(words=True)
    assert pairs.line(words=False) == plain.line(words=True)


def test_a_model_that_ranks_the_wrong_way_round_keeps_its_order() -> None:
    assert made([lists(200, factor=-1.0)]).calibration.slope > 0


def test_too_few_lists_tell_nothing() -> None:
    assert calibrate([lists(FEWEST_LISTS - 1)], None, False) is None
    assert calibrate([[]], None, False) is None
    assert calibrate([lists(FEWEST_LISTS - 10), lists(10), []], None, False) is not None


def test_lists_that_cannot_tell_are_no_lists() -> None:
    """Lists of one dialogue are all of one fold, and have no wrong replies where the file holds no other dialogue."""
    of_one_dialogue = [each._replace(fold=0) for each in lists(2 * FEWEST_LISTS)]
    alone = lists(2 * FEWEST_LISTS, others=0, repeats=1)
    for file, said in ((of_one_dialogue, "too few dialogues"), (alone, "0 lists with wrong replies")):
        assert calibrate([file], None, False) is None
        assert said in str(lack([file]))
        assert made([file, lists(300)]).calibration.slope > 0
    assert made([alone, lists(300)]) == made([lists(300)])
    assert lack([lists(FEWEST_LISTS)]) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"slope": 0.0},
        {"slope": float("nan")},
        {"prior": 1.0},
        {"intercept": float("inf")},
        {"alone_slope": 1.0},
        {"version": 2},
    ],
    ids=str,
)
def test_a_line_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(CheckpointInvalid, match="calibration"):
        replace(CalibrationConfig(prior=0.1, slope=1.0, intercept=0.0), **wrong)  # type: ignore[arg-type]
