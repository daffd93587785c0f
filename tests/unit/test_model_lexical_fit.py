"""Weights that are known are found again."""

import numpy as np
import pytest

from polyrank.model.lexical.fit import ScoredList, fit, shares
from polyrank.model.lexical.score import FEATURES

TRUE = {"persona": 0.8, "told": -0.5, "last": 1.0, "before": 0.0, "older": 0.3, "length": -0.4}


def lists(count: int, seed: int, late_weight: float = 2.0, repeats: int = 1) -> list[ScoredList]:
    """Lists of 4 to 12 candidates, the right one drawn by the softmax; then an earlier turn, which is never right."""
    draw = np.random.default_rng(seed)
    weights = np.array([TRUE.get(name, 0.0) for name in FEATURES])
    found = []
    for number in range(count):
        size = int(draw.integers(4, 13))
        late, features = draw.normal(size=size), draw.normal(size=(size, len(FEATURES)))
        features[:, [FEATURES.index("said"), FEATURES.index("asked")]] = 0
        right = int((late_weight * late + features @ weights + draw.gumbel(size=size)).argmax())
        order = [right, *(place for place in range(size) if place != right)]
        turn = draw.normal(size=(1, len(FEATURES)))
        turn[0, FEATURES.index("said")], turn[0, FEATURES.index("asked")] = 2.0, 0.0
        late, features = np.append(late[order], 3.0), np.vstack([features[order], turn])
        found.append(ScoredList(late[: size + repeats], features[: size + repeats], repeats, number % 2))
    return found


def test_the_weights_are_found() -> None:
    found = fit([lists(4000, 0), lists(4000, 1)])
    assert found.late_weight == pytest.approx(2.0, abs=0.1)
    assert {name: found.weights[name] for name in TRUE} == pytest.approx(TRUE, abs=0.1)
    assert found.weights["said"] < -2


def test_earlier_turns_move_the_weight_of_said_alone() -> None:
    with_turns, without = fit([lists(500, 0)]), fit([lists(500, 0, repeats=0)])
    assert without.weights["said"] == 0
    assert {**with_turns.weights, "said": 0.0} == dict(without.weights)
    assert with_turns.late_weight == without.late_weight


def test_a_small_file_counts_as_much_as_a_large_one() -> None:
    many, few = lists(2000, 0, late_weight=4.0), lists(500, 1, late_weight=1.0)
    found = fit([many, few])
    assert found.late_weight < 0.5 * (fit([many]).late_weight + fit([few]).late_weight) + 0.2
    assert fit([many, few, []]) == found


@pytest.mark.slow
def test_a_file_with_very_few_lists_hardly_moves_the_weights() -> None:
    many = lists(500, 0)
    contrary = [each._replace(late=-each.late, features=-each.features) for each in lists(4, 1)]
    alone, both = fit([many]), fit([many, contrary])
    assert both.late_weight == pytest.approx(alone.late_weight, rel=0.5)
    assert both.weights["last"] == pytest.approx(alone.weights["last"], rel=0.5)
    figures = [shares(files)["all features"].plain for files in ([many], [many, contrary])]
    assert figures[1] == pytest.approx(figures[0], abs=0.1)


def test_names_never_count_against_a_reply() -> None:
    contrary, names = lists(500, 0), FEATURES.index("names")
    for each in contrary:
        each.features[0, names] = each.features[1:, names].min() - 1
    assert fit([contrary]).weights["names"] == 0


def test_a_late_score_that_is_worse_than_none_keeps_a_weight_above_0() -> None:
    assert 0 < fit([lists(500, 0, late_weight=-1.0)]).late_weight < 0.01


def test_nothing_to_learn_from_gives_the_late_score_alone() -> None:
    alone = [ScoredList(np.zeros(1), np.zeros((1, len(FEATURES))), 0, 0)]
    for files in ([], [[]], [alone]):
        found = fit(files)
        assert found.late_weight == 1
        assert {name: weight for name, weight in found.weights.items() if weight} == {"asked": 5.0}


@pytest.mark.slow
def test_shares_say_what_each_feature_adds() -> None:
    figures = shares([lists(2000, 0)])
    assert list(figures) == ["without words", "all features", *(f"without {name}" for name in FEATURES)]
    together = figures["all features"].plain
    assert together > figures["without words"].plain + 0.05
    assert together > figures["without last"].plain + 0.02
    assert together == pytest.approx(figures["without before"].plain, abs=0.01)
    assert figures["all features"].repeats > figures["without said"].repeats + 0.1
    assert figures["without said"].plain == together


def test_replies_that_a_desk_repeats_say_nothing_against_words() -> None:
    """In lists without an earlier turn "said" can only cost: there the replies that were said before are left out."""
    plain, desk = lists(500, 0), lists(500, 0)
    for each in desk[::5]:
        each.features[0, FEATURES.index("said")] = 2.0
    told = shares([plain])["all features"].plain, shares([desk])["all features"].plain
    assert told[1] == pytest.approx(told[0], abs=0.02)
    assert shares([desk])["all features"].plain > shares([desk])["without words"].plain
