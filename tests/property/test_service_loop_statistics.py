"""The gate over many pairs of models of which we know which one is better."""

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from polyrank.model.measures import Values
from polyrank.service.loop.statistics import Verdict, compared, judged

RUNS = 200
CANDIDATES = 20
# How far the scores of the right reply, of wrong ones and of two models spread, so that R@1 is near 0.6, both models
# disagree on a fifth of the examples, and those of a conversation are alike, as with the shipped models over ConvAI2.
RIGHT, CONVERSATION, EXAMPLE, MODEL = 2.6, 0.6, 0.8, 0.55


def values(scores: NDArray[np.float64]) -> Values:
    """Figures of examples by the scores of their candidates, (examples, CANDIDATES); the first one is right."""
    ranks = 1 + (scores[:, 1:] > scores[:, :1]).sum(1)
    return {"recall@1": (ranks == 1).astype(float), "mrr": 1 / ranks}


def pair(rng: np.random.Generator, conversations: int, gain: float) -> tuple[Values, Values, NDArray[np.int64]]:
    """Figures of a new and of an old model over the same lists, and the conversation of each."""
    groups = np.repeat(np.arange(conversations), rng.integers(1, 9, conversations))
    shared = rng.normal(size=(len(groups), CANDIDATES))
    shared[:, 0] += (
        RIGHT + CONVERSATION * rng.normal(size=conversations)[groups] + EXAMPLE * rng.normal(size=len(groups))
    )
    new, old = (shared + MODEL * rng.normal(size=shared.shape) for _ in range(2))
    new[:, 0] += gain
    return values(new), values(old), groups


def verdicts(gain: float, golden: int, later: int, runs: int = RUNS) -> Counter[Verdict]:
    """What the gate says of so many new models that are better by `gain`, of the score of right replies."""
    rng, said = np.random.default_rng([runs, golden, later]), Counter[Verdict]()
    for _ in range(runs):
        sets = {}
        for name, conversations in (("golden", golden), ("later", later)):
            new, old, groups = pair(rng, conversations, gain)
            sets[name] = compared(new, old, groups, [""] * len(groups), sets=2)
        said[judged(sets)[0]] += 1
    return said


def test_the_lists_are_like_those_of_two_good_models() -> None:
    new, old, _ = pair(np.random.default_rng(0), 3000, gain=0.0)
    assert 0.55 < old["recall@1"].mean() < 0.75
    assert abs(new["recall@1"].mean() - old["recall@1"].mean()) < 0.01
    assert 0.15 < (new["recall@1"] != old["recall@1"]).mean() < 0.3


@pytest.mark.parametrize(("golden", "later"), [(150, 300), (400, 400)])
def test_of_models_that_are_equal_one_in_twenty_passes_at_most(golden: int, later: int) -> None:
    said = verdicts(0.0, golden, later)
    assert said["passed"] <= RUNS * 0.05, said


def test_a_model_that_is_worse_never_passes_and_one_that_is_much_better_does() -> None:
    assert verdicts(-0.15, 300, 300, runs=30)["passed"] == 0
    assert verdicts(0.4, 300, 300, runs=30)["passed"] >= 28
