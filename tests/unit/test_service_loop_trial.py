"""How conversations end, as a canary counts them."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feedback_logs import write_log
from numpy.typing import NDArray

from polyrank.service.feedback.records import Event, Kind, Ranking, Side, Use
from polyrank.service.loop import statistics
from polyrank.service.loop.trial import look

STEPS = [(100.0, 0.2), (200.0, 0.5)]


@pytest.fixture(autouse=True)
def any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single conversation is enough to say something."""
    monkeypatch.setattr(statistics, "_FIRST_LOOK", 0.1)


def use(conversation: str | None, at: float, side: Side | None, *kinds: Kind) -> Use:
    """A ranking, and what became of it."""
    ranking = Ranking(
        id=f"{conversation}{at}", at=at, generation="trial" if side == "trial" else "live", revision=0,
        fingerprint="f", shown=(), side=side, conversation=conversation,
    )  # fmt: skip
    return Use(ranking, tuple(Event(id=kind, at=at, ranking=ranking.id, kind=kind) for kind in kinds))


def arrays(rows: list[tuple[bool, float, float]]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Whether each is of the new model, the share, and the outcome."""
    sides, shares, outcomes = zip(*rows, strict=True)
    return np.array(sides, np.bool_), np.array(shares), np.array(outcomes)


def counted(root: Path, *uses: Use, before: float = 1000.0) -> tuple[int, int]:
    """How many conversations were counted of the new model and of the old one."""
    found = look(write_log(root, uses), "trial", STEPS, before)
    return found.new, found.old


def test_a_conversation_counts_once_on_the_side_of_its_first_ranking(tmp_path: Path) -> None:
    later, first = use("a", 250.0, "trial", "down"), use("a", 150.0, "live")
    assert counted(tmp_path, later, first, use("a", 260.0, None)) == (0, 1)
    assert look(tmp_path, "trial", STEPS, 1000.0) == statistics.effect(*arrays([(False, 0.2, 0.0)]))


def test_a_ranking_without_a_conversation_stands_for_itself(tmp_path: Path) -> None:
    assert counted(tmp_path, use(None, 150.0, "live"), use(None, 151.0, "trial"), use(None, 152.0, "trial")) == (2, 1)


def test_what_is_no_part_of_the_canary_is_not_counted(tmp_path: Path) -> None:
    before, pinned, young = use("a", 99.0, "trial"), use("b", 150.0, None), use("c", 900.0, "trial")
    assert counted(tmp_path, before, pinned, young, use("d", 150.0, "live"), before=900.0) == (0, 1)


@pytest.mark.parametrize("kind", ["handed_over", "down", "none_good"])
def test_without_resolved_all_that_was_not_bad_is_good(tmp_path: Path, kind: Kind) -> None:
    uses = [use("a", 110.0, "trial", kind), use("b", 210.0, "live", "up", "chosen"), use("c", 220.0, "trial")]
    found = look(write_log(tmp_path, uses), "trial", STEPS, 1000.0)
    assert found == statistics.effect(*arrays([(True, 0.2, 0.0), (False, 0.5, 1.0), (True, 0.5, 1.0)]))


def test_where_most_are_resolved_only_what_is_known_counts(tmp_path: Path) -> None:
    told = [use("a", 110.0, "trial", "resolved"), use("b", 111.0, "live", "down"), use("c", 112.0, "live")]
    both = use("d", 113.0, "live", "resolved", "handed_over")
    found = look(write_log(tmp_path, [*told, both]), "trial", STEPS, 1000.0)
    assert found == statistics.effect(*arrays([(True, 0.2, 1.0), (False, 0.2, 0.0), (False, 0.2, 0.0)]))


def test_an_odd_resolved_changes_no_other_outcome(tmp_path: Path) -> None:
    told = [use("a", 110.0, "trial", "resolved"), use("b", 111.0, "live", "down"), use("c", 112.0, "live")]
    rows = [(True, 0.2, 1.0), (False, 0.2, 0.0), (False, 0.2, 1.0)]
    assert look(write_log(tmp_path, told), "trial", STEPS, 1000.0) == statistics.effect(*arrays(rows))
    young = [use(f"young {number}", 900.0 + number, "live", "resolved") for number in range(9)]
    assert look(write_log(tmp_path, [*told, *young]), "trial", STEPS, 900.0) == statistics.effect(*arrays(rows))


def test_what_answered_before_a_server_followed_is_not_counted(tmp_path: Path) -> None:
    """After a step servers may take the share before it, and after another trial that one's."""
    soon = [use("a", 104.9, "trial"), use("b", 200.5, "live"), use("c", 205.0, "live")]
    other = [use("d", 150.0, "trial"), use("e", 150.0, "live"), use("f", 150.0, "trial")]
    ids = ["of another trial", "trial", "live"]
    other = [replace(each, ranking=replace(each.ranking, generation=of)) for each, of in zip(other, ids, strict=True)]
    other[2] = replace(other[2], ranking=replace(other[2].ranking, replaced="timeout"))
    assert counted(tmp_path, *soon, *other) == (1, 1)


def test_in_a_watch_the_trial_is_the_old_model(tmp_path: Path) -> None:
    draw = random.Random(0)
    uses = [
        use(str(n), 150.0 + n / 100, draw.choice(("trial", "live")), *draw.choice(([], ["down"]))) for n in range(99)
    ]
    mirrored = [
        replace(each, ranking=replace(each.ranking, side=other, generation=other))
        for each in uses
        for other in [("live" if each.ranking.side == "trial" else "trial")]
    ]
    even = [(100.0, 0.5)]
    watched = look(write_log(tmp_path / "a", uses), "trial", even, 1000.0, trial_is_new=False)
    assert watched == look(write_log(tmp_path / "b", mirrored), "trial", even, 1000.0)
